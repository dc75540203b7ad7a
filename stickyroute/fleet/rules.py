"""When a backend is out, how much room it has and what is warned of. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from stickyroute.fleet.outcome import HealthRules
from stickyroute.fleet.warnings import WarningRules
from stickyroute.fleet.weights import RoomRules

__all__ = ["FleetRules"]


@dataclass(frozen=True, slots=True)
class FleetRules:
    """All that may change while the proxy runs, apart from the backends themselves."""

    health: HealthRules = field(default_factory=HealthRules)
    room: RoomRules = field(default_factory=RoomRules)
    warnings: WarningRules = field(default_factory=WarningRules)
