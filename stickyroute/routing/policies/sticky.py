"""Where the first token costs least, all told: the default.

Owns the choice; the terms are `routing.cost`'s, what they are made of the fleet's. Among backends that cost
nearly the same the ring decides, so that a fleet at rest is a consistent-hashing ring, on every replica and
after every restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from stickyroute.routing.cost import Terms, costs_s, missing_tokens, prompt_tokens, terms
from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys, candidate_keys, made
from stickyroute.routing.policies.base import Policy, Rand, last_resort
from stickyroute.routing.shortlist import FEW, shortlist
from stickyroute.routing.view import FleetView

__all__ = ["Sticky"]


class Sticky(Policy):
    """The cheapest backend; of those within `tolerance` of it, the first of the key's candidates on the ring. Where
    other routers use the same backends the tolerance is at least `Loads.unseen`.

    The hard limit comes last: where the choice would have more than `bound` times its share of the backlog,
    and more than `floor_tokens`, the next one takes the request, unless all are past it. Of a pool of more than `few`
    only some are looked at (`routing.shortlist`).
    """

    __slots__ = ("_bound", "_few", "_floor_tokens", "_near")
    name = "sticky"
    needs = Needs.CHAIN

    def __init__(
        self, tolerance: float = 0.03, bound: float = 4.0, floor_tokens: float = 32_768.0, few: int = FEW
    ) -> None:
        if not 0 <= tolerance <= 1 or not bound >= 1 or floor_tokens < 0:
            raise ValueError("tolerance is from 0 to 1, bound at least 1, floor_tokens not negative")
        self._near = 1.0 + tolerance
        self._bound = bound
        self._floor_tokens = floor_tokens
        self._few = few

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        members = view.usable(tried)
        if not members:
            return last_resort(view, tried, "failover" if keys.affinity is not None else "no_key")
        if len(members) > self._few:
            seed = 0 if keys.affinity is not None else int(rand.random() * 2.0**64)
            view = shortlist(keys, view, tried, seed)
            members = view.placed
        tokens = prompt_tokens(keys, view)
        found = missing_tokens(keys, view, tokens)
        costs = costs_s(view, tokens, None if found is None else found[0])
        new = found is None or 2.0 * min(found[0]) > tokens
        key = keys.affinity
        home = -1 if key is None else view.ring.home(key)
        member = self._pick(keys, home, view, members, costs, new)
        if view.loads.backlog_tokens[view.slots[member]] > self._floor_tokens:
            below = self._below_bound(view, members)
            if below and member not in below:
                member = self._pick(keys, home, view, below, costs, new)
        slot = view.slots[member]
        if key is None:
            return Decision(slot, "no_key")
        if member == home:
            return made(Decision, (slot, "home"))
        if home not in members:
            return Decision(slot, "failover")
        warm = found is not None and found[1][member] > found[1][home]
        return made(Decision, (slot, "warm" if warm else "spill"))

    def explain(self, keys: RequestKeys, view: FleetView) -> dict[int, Terms]:
        """Every term for every backend that has a weight, by slot: what the choice is made of."""
        tokens = prompt_tokens(keys, view)
        found = missing_tokens(keys, view, tokens)
        return {
            view.slots[member]: terms(
                view, member, tokens if found is None else found[0][member], found is None
            )
            for member in view.placed
        }

    def _pick(
        self,
        keys: RequestKeys,
        home: int,
        view: FleetView,
        members: Sequence[int],
        costs: list[float],
        new: bool,
    ) -> int:
        """The first candidate on the ring that costs nearly the least, else the one that does; `new`: nobody holds half
        of the prompt."""
        least = min(costs) if len(members) == len(costs) else min([costs[member] for member in members])
        near = least * self._near
        if view.loads.unseen:  # other routers know what we don't, and the ring: docs/adr/0010
            near = max(near, least * (1.0 + view.loads.unseen))
        # First tokens come with a step: less is not seen. What begins anew begins at home while that is idle, wherever
        # the system prompt is warm: all would be drawn to the first who has it, whose cache would not hold them.
        at_rest = inf if new else least + view.loads.step_s
        key = keys.affinity
        if key is None:
            return view.take_turn(view.least_loaded([m for m in members if costs[m] <= near]))
        for place in _places(keys):
            member = home if place == key else view.ring.home(place)
            if member not in members:
                continue
            cost_s = costs[member]
            if cost_s <= near or (cost_s <= at_rest and _idle(view, member)):
                return member
        cheapest = [member for member in members if costs[member] <= least]
        if len(cheapest) == 1:
            return cheapest[0]
        return next(member for member in view.ring.walk(key) if member in cheapest)

    def _below_bound(self, view: FleetView, members: Sequence[int]) -> list[int]:
        weights = view.weights
        backlog = view.read(view.loads.backlog_tokens)
        share = self._bound * sum([backlog[m] for m in members]) / sum([weights[m] for m in members])
        floor = self._floor_tokens
        return [m for m in members if backlog[m] <= floor or backlog[m] <= share * weights[m]]


def _idle(view: FleetView, member: int) -> bool:
    slot = view.slots[member]
    return not view.in_flight[slot] and not view.loads.backlog_tokens[slot]


def _places(keys: RequestKeys) -> Sequence[int]:
    """The key's candidates on the ring, first one first."""
    key, second = keys.affinity, keys.second
    assert key is not None
    if keys.spread > 2 or second is None:
        return candidate_keys(key, keys.spread)
    return key, second
