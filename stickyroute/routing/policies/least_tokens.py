"""The fewest uncached prompt tokens waiting for its weight and speed."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["LeastTokens"]


class LeastTokens(Policy):
    """The backend whose backlog is done soonest; equal ones by requests in flight, then in turn.

    Prompts differ a thousandfold, so requests are a poor measure of work. Looks at no key; what a backend
    holds counts only in that it makes its backlog smaller.
    """

    __slots__ = ()
    name = "least_tokens"
    needs = Needs.CHAIN

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        members = view.usable(tried)
        if not members:
            return last_resort(view, tried, self.name)
        slots, weights = view.slots, view.shares()
        backlog, token_s = view.loads.backlog_tokens, view.loads.token_s
        waits_s = [backlog[slots[m]] * token_s[slots[m]] / weights[m] for m in members]
        least_s = min(waits_s)
        least = [member for member, wait_s in zip(members, waits_s, strict=True) if wait_s <= least_s]
        return Decision(slots[view.take_turn(view.least_loaded(least))], self.name)
