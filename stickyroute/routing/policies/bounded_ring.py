"""Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam): home, unless it is too full."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, by_load, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["BoundedRing"]


class BoundedRing(Policy):
    """Home, or the first on the ring after it that is below its bound. Without a key, the least loaded.

    A backend may hold `load_factor` times its share of the requests in flight, this one counted, rounded up:
    ceil( load_factor * (in flight + 1) * weight / sum of weights), where the sums are over the available
    backends; and always `floor` requests. Where all are at their bounds (because the others were tried) the
    least loaded takes it.
    """

    __slots__ = ("_factor", "_floor")
    name = "bounded_ring"

    def __init__(self, load_factor: float = 1.25, floor: int = 2) -> None:
        if not load_factor >= 1 or floor < 1:
            raise ValueError("load_factor and floor must be at least 1")
        self._factor = load_factor
        self._floor = floor

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        key = keys.affinity
        if key is None:
            return by_load(view, tried, "no_key")
        slots = view.slots
        home = view.ring.home(key)
        if home < 0:
            return last_resort(view, tried, "failover")
        requests, weight = view.totals()
        allowed = self._factor * (requests + 1)  # shared out by weight
        slot = slots[home]
        if not view.available[slot] or slot in tried:
            return self._after_home(key, view, tried, allowed, weight, "failover")
        load = view.in_flight[slot]
        # For a whole number, load < ceil(x) is load < x; multiplied out, so that no division rounds.
        if load < self._floor or load * weight < allowed * view.weights[home]:
            return Decision(slot, "home")
        return self._after_home(key, view, tried, allowed, weight, "spill")

    def _after_home(
        self, key: int, view: FleetView, tried: Collection[int], allowed: float, weight: int, reason: str
    ) -> Decision | None:
        """The first in ring order below its bound, else the least loaded for its weight."""
        slots, weights, available, in_flight = view.slots, view.weights, view.available, view.in_flight
        least = -1.0
        chosen = -1
        home = -1
        for member in view.ring.walk(key):
            slot = slots[member]
            if home < 0:
                home = slot
            if not available[slot] or slot in tried:
                continue
            load = in_flight[slot]
            if load < self._floor or load * weight < allowed * weights[member]:
                return Decision(slot, reason)
            if chosen < 0 or load / weights[member] < least:
                least = load / weights[member]
                chosen = slot
        if chosen < 0:
            return last_resort(view, tried, "failover")
        return Decision(chosen, "home" if chosen == home else reason)
