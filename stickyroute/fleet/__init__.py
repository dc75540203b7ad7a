"""The backends and what is known of them right now: the only shared mutable state.

Owns leases, reachability, models, and the pools they make. Its methods never await, so each is atomic on the
event loop; time and jitter are arguments. Knows nothing of requests, sockets or policies.
"""

from __future__ import annotations

from stickyroute.fleet.fleet import Fleet
from stickyroute.fleet.lease import Lease
from stickyroute.fleet.outcome import Event, HealthRules, Outcome
from stickyroute.fleet.plan import Applied, Plan
from stickyroute.fleet.pools import Pool
from stickyroute.fleet.rules import FleetRules
from stickyroute.fleet.spec import Backend, BackendSpec
from stickyroute.fleet.states import BackendState
from stickyroute.fleet.tuning import Tuning
from stickyroute.fleet.warnings import BackendWarning, WarningRules
from stickyroute.fleet.weights import RoomRules

__all__ = [
    "Applied", "Backend", "BackendSpec", "BackendState", "BackendWarning", "Event", "Fleet", "FleetRules",
    "HealthRules", "Lease", "Outcome", "Plan", "Pool", "RoomRules", "Tuning", "WarningRules",
]  # fmt: skip
