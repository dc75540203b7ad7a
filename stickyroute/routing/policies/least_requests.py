"""The fewest requests in flight for its weight."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, by_load
from stickyroute.routing.view import FleetView

__all__ = ["LeastRequests"]


class LeastRequests(Policy):
    """The backend with the fewest requests in flight; equal ones in turn, so that a burst spreads."""

    __slots__ = ()
    name = "least_requests"

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        return by_load(view, tried, "least_requests")
