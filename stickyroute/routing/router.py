"""The router: one policy and the random source it is given."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies import Policy, Rand
from stickyroute.routing.view import FleetView

__all__ = ["Decision", "Router"]


class Router:
    """Decides where each request goes. `rand` is anything with `random()`, such as a `random.Random`."""

    __slots__ = ("_rand", "decides", "needs", "policy")

    def __init__(self, policy: Policy, rand: Rand) -> None:
        self.policy = policy.name
        self.needs = policy.needs
        self.decides = policy
        self._rand = rand

    def route(self, keys: RequestKeys, view: FleetView, tried: Collection[int] = ()) -> Decision | None:
        """The backend for a request, or None when every one is unavailable or in `tried` (slots)."""
        return self.decides.choose(keys, view, tried, self._rand)

    def peek(self, keys: RequestKeys, view: FleetView, tried: Collection[int] = ()) -> Decision | None:
        """What `route` would answer now, by the same function; no turn is taken and no random number drawn."""
        turns = view.credits[:]
        rand: Any = self._rand
        state = rand.getstate() if hasattr(rand, "getstate") else None
        try:
            return self.decides.choose(keys, view, tried, rand)
        finally:
            view.credits[:] = turns
            if state is not None:  # such as a `random.Random`, which can be put back
                rand.setstate(state)
