"""What the admin side may see of the process: one value, made by the composition root.

Owns the names. A part that is None is off, and whoever shows it has no route for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stickyroute.fleet import Fleet
from stickyroute.metrics import Metrics
from stickyroute.proxy.explain import Explainer
from stickyroute.settings import Settings

if TYPE_CHECKING:
    from stickyroute.control.config import Configured
    from stickyroute.control.decisions import Decisions
    from stickyroute.control.doctor import Ward

__all__ = ["Deps"]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """`settings` gives those in force, which may change while the process runs; `is_stopping` whether the process
    has begun to stop; `exact` how exact mode goes."""

    fleet: Fleet
    metrics: Metrics
    settings: Callable[[], Settings]
    is_stopping: Callable[[], bool] = _never
    exact: Callable[[], dict[str, Any] | None] | None = None
    explainer: Explainer | None = None
    decisions: Decisions | None = None
    doctor: Ward | None = None
    config: Configured | None = None
