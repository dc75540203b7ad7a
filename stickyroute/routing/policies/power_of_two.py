"""The better of two picked at random (Mitzenmacher): nearly as even as the least loaded, without herds."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["PowerOfTwo"]


class PowerOfTwo(Policy):
    """Of two different backends picked at random, the one with fewer requests in flight for its share."""

    __slots__ = ()
    name = "power_of_two"

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        members = view.usable(tried)
        count = len(members)
        if count == 0:
            return last_resort(view, tried, self.name)
        if count == 1:
            return Decision(view.slots[members[0]], self.name)
        at = int(rand.random() * count)
        other_at = int(rand.random() * (count - 1))
        first, second = members[at], members[other_at if other_at < at else other_at + 1]
        slots, shares, in_flight = view.slots, view.shares(), view.in_flight
        one, two = slots[first], slots[second]
        more = 1 if view.loads.tight else 0  # so that room counts also where nothing is in flight
        if (in_flight[two] + more) * shares[first] < (in_flight[one] + more) * shares[second]:
            return Decision(two, self.name)
        return Decision(one, self.name)
