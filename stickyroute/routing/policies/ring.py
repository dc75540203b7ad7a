"""Consistent hashing alone: a key's home, whatever its load."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, by_load, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["RingOnly"]


class RingOnly(Policy):
    """Home, or the next on the ring if home is unavailable or was tried. Without a key, the least loaded."""

    __slots__ = ()
    name = "ring"
    needs = Needs.KEY

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        key = keys.affinity
        if key is None:
            return by_load(view, tried, "no_key")
        slots, available = view.slots, view.available
        home = view.ring.home(key)
        if home >= 0 and available[slots[home]] and slots[home] not in tried:
            return Decision(slots[home], "home")
        for member in view.ring.walk(key):
            slot = slots[member]
            if available[slot] and slot not in tried:
                return Decision(slot, "failover")
        return last_resort(view, tried, "failover")
