"""How backends are asked whether they are well, and how requests wait while none is.

Owns the shape of these groups. Values are frozen.
"""

from __future__ import annotations

from pydantic import Field

from stickyroute import defaults
from stickyroute.settings.checks import Seconds, WholeNumber
from stickyroute.settings.groups import Group

__all__ = ["HoldSettings", "ProbeSettings"]


class ProbeSettings(Group):
    """How each backend is asked whether it is well."""

    interval_s: Seconds = Field(
        default=defaults.PROBE_INTERVAL_S,
        description="Between two looks at a backend; what it answered meanwhile, to whomever, counts as one.",
    )
    timeout_s: Seconds = Field(
        default=defaults.PROBE_TIMEOUT_S,
        description="For one look, connecting included; longer than an engine may be too busy to answer.",
    )
    first_byte_s: Seconds = Field(
        default=defaults.PROBE_FIRST_BYTE_S,
        description="A stream without a byte for so long speaks against its backend, unless others get theirs.",
    )


class HoldSettings(Group):
    """Requests that may wait while no backend can take them; past either bound 503 with Retry-After."""

    requests: WholeNumber = Field(
        default=defaults.HOLD_REQUESTS, ge=0, description="Requests that may wait at once; 0 is none."
    )
    wait_s: Seconds = Field(default=defaults.HOLD_WAIT_S, description="How long each may wait.")
