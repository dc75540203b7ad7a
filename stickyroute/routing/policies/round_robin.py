"""One after the other, by weight."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["RoundRobin"]


class RoundRobin(Policy):
    """Each backend in turn. An unavailable one's turns go to all others alike, not to its neighbour."""

    __slots__ = ()
    name = "round_robin"

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        members = view.usable(tried)
        if not members:
            return last_resort(view, tried, self.name)
        return Decision(view.slots[view.take_turn(members)], self.name)
