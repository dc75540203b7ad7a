"""What the operator wants of a backend, and what the fleet says of its state. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["BackendState", "Operator"]


class Operator(Enum):
    """ACTIVE: takes requests if it can. DRAINING: takes none but those that only it can answer, and finishes what
    runs. DISABLED: takes none. All reversible, and apart from health."""

    ACTIVE = "active"
    DRAINING = "draining"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class BackendState:
    """`operator`: active, draining or disabled. `health` is what probes say: unknown, healthy or unhealthy.
    `ejected`: real traffic says that it is out, or it refuses connections. `why` is in words, empty where there is
    nothing to say; `since_s` is when it came to this, of the fleet's clock.
    `available`: what policies see. `in_flight`: requests, for a drain what is left; `began_in_flight` what there was
    when the operator spoke. `trying`: let in for one request at a time. `paused_s`: how much longer it wants no
    requests, having said that it is busy. `refusals`: how often in a row it was looked at and refused.
    """

    operator: str
    health: str
    ejected: bool
    why: str
    since_s: float
    available: bool
    in_flight: int
    began_in_flight: int
    trying: bool
    paused_s: float
    refusals: int
