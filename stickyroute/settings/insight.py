"""The settings of what watches decisions without making any: the doctor and the shadow policy.

Owns their groups. Values are frozen.
"""

from __future__ import annotations

from pydantic import Field

from stickyroute import defaults
from stickyroute.settings.checks import Count, Number
from stickyroute.settings.groups import Group

__all__ = ["DoctorSettings"]


class DoctorSettings(Group):
    """The prefix doctor, which tells what breaks prefixes."""

    enabled: bool = Field(default=True, description="Whether prompts are looked at.")
    samples: bool = Field(
        default=False,
        description="Whether it keeps and shows a little text around each kind of break: prompts of your users.",
    )
    keys: Count = Field(
        default=defaults.DOCTOR_KEYS,
        le=1 << 22,
        description="Conversations whose last prompts it remembers (hashes and lengths), 2 to 4 KB each.",
    )
    cpu: Number = Field(
        default=defaults.DOCTOR_CPU,
        gt=0,
        le=1,
        description="Most of one core it takes, 0 to 1; past it fewer conversations are looked at.",
    )
