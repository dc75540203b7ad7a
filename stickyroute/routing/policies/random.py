"""Any of them, by weight."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["Random"]


class Random(Policy):
    """A random backend, each as likely as its share says."""

    __slots__ = ()
    name = "random"

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        members = view.usable(tried)
        if not members:
            return last_resort(view, tried, self.name)
        weights = view.shares()
        left = rand.random() * sum(weights[member] for member in members)
        for member in members:
            left -= weights[member]
            if left < 0:
                break
        return Decision(view.slots[member], self.name)
