"""The router: one policy and the random source it is given."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies import Policy, Rand
from stickyroute.routing.view import FleetView

__all__ = ["Decision", "Router"]


class Router:
    """Decides where each request goes. `rand` is anything with `random()`, such as a `random.Random`."""

    __slots__ = ("_choose", "_rand", "needs", "policy")

    def __init__(self, policy: Policy, rand: Rand) -> None:
        self.policy = policy.name
        self.needs = policy.needs
        self._choose = policy.choose
        self._rand = rand

    def route(self, keys: RequestKeys, view: FleetView, tried: Collection[int] = ()) -> Decision | None:
        """The backend for a request, or None when every one is unavailable or in `tried` (slots)."""
        return self._choose(keys, view, tried, self._rand)
