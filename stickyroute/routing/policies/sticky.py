"""Where the first token costs least, all told: the default.

Owns the choice; the terms are `routing.cost`'s, what they are made of the fleet's. Among backends that cost
nearly the same the ring decides, so that a fleet at rest is a consistent-hashing ring, on every replica and
after every restart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from stickyroute.routing.cost import Terms, costs_s, held_tokens, prompt_tokens, terms
from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys, candidate_keys
from stickyroute.routing.policies.base import Policy, Rand, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["Sticky"]


class Sticky(Policy):
    """The cheapest backend; of those within `tolerance` of it, the first of the key's candidates on the ring.

    The hard limit comes last: where the choice would have more than `bound` times its share of the backlog,
    and more than `floor_tokens`, the next one takes the request, unless all are past it.
    """

    __slots__ = ("_bound", "_floor_tokens", "_near")
    name = "sticky"
    needs = Needs.CHAIN

    def __init__(self, tolerance: float = 0.1, bound: float = 4.0, floor_tokens: float = 32_768.0) -> None:
        if not 0 <= tolerance <= 1 or not bound >= 1 or floor_tokens < 0:
            raise ValueError("tolerance is from 0 to 1, bound at least 1, floor_tokens not negative")
        self._near = 1.0 + tolerance
        self._bound = bound
        self._floor_tokens = floor_tokens

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        members = view.usable(tried)
        if not members:
            return last_resort(view, tried, "failover" if keys.affinity is not None else "no_key")
        tokens = prompt_tokens(keys, view)
        held = held_tokens(keys, view, tokens)
        costs = dict(zip(members, costs_s(view, members, tokens, held), strict=True))
        member = self._pick(keys, view, costs)
        if self._past_bound(view, member, members):
            below = {m: cost for m, cost in costs.items() if not self._past_bound(view, m, members)}
            if below:
                member = self._pick(keys, view, below)
        slot = view.slots[member]
        if keys.affinity is None:
            return Decision(slot, "no_key")
        home = view.ring.home(keys.affinity)
        if member == home:
            return Decision(slot, "home")
        if home not in costs:
            return Decision(slot, "failover")
        warm = held is not None and held[slot] > held[view.slots[home]]
        return Decision(slot, "warm" if warm else "spill")

    def explain(self, keys: RequestKeys, view: FleetView) -> dict[int, Terms]:
        """Every term for every backend that has a weight, by slot: what the choice is made of."""
        tokens = prompt_tokens(keys, view)
        held = held_tokens(keys, view, tokens)
        return {view.slots[member]: terms(view, member, tokens, held) for member in view.placed}

    def _pick(self, keys: RequestKeys, view: FleetView, costs: dict[int, float]) -> int:
        """The first candidate on the ring that costs nearly the least, else the one that does."""
        least = min(costs.values())
        near = least * self._near
        key = keys.affinity
        if key is None:
            return view.take_turn(view.least_loaded([m for m, cost in costs.items() if cost <= near]))
        for place in _places(keys):
            member = view.ring.home(place)
            if costs.get(member, near + 1.0) <= near:
                return member
        cheapest = [member for member, cost in costs.items() if cost <= least]
        if len(cheapest) == 1:
            return cheapest[0]
        return next(member for member in view.ring.walk(key) if member in cheapest)

    def _past_bound(self, view: FleetView, member: int, members: Sequence[int]) -> bool:
        backlog, slots = view.loads.backlog_tokens, view.slots
        mine = backlog[slots[member]]
        if mine <= self._floor_tokens:
            return False
        weights = view.weights
        share = weights[member] / sum(weights[other] for other in members)
        return mine > self._bound * share * sum(backlog[slots[other]] for other in members)


def _places(keys: RequestKeys) -> Iterator[int]:
    """The key's candidates on the ring, first one first."""
    assert keys.affinity is not None
    if keys.spread > 2 or keys.second is None:
        yield from candidate_keys(keys.affinity, keys.spread)
    else:
        yield keys.affinity
        yield keys.second
