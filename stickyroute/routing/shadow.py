"""A policy that decides beside the live one and changes nothing: what would have been cached, how even the load.

Owns a second belief of the fleet, fed by the shadow's own choices: what is in flight and waiting where, and an index
of what would be cached there. What is learned of engines (speed, cache size, trust, availability) it shares with the
live one, to read. Requests end when the live ones do, and backlogs drain at the learned rate, since nobody computes
what the shadow sends. Pure: the clock and the random source are arguments.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import exp
from typing import Final, NamedTuple

from stickyroute.routing.cost import prompt_tokens
from stickyroute.routing.index import Index
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.loads import Loads
from stickyroute.routing.policies import Policy, Rand
from stickyroute.routing.view import FleetView

__all__ = ["Placed", "Shadow"]

_MEMORY_S: Final = 60.0  # over which imbalance is looked at
_VIEWS: Final = 64
_WEIGHT_LIMIT: Final = 1e200


class Placed(NamedTuple):
    """A request as the shadow placed it, to hand back when it ends."""

    slot: int
    live_slot: int
    tokens: float
    keys: RequestKeys


class Shadow:
    """`policy` over a fleet whose `live` loads are those that the proxy goes by; `entries` is the size of its index.

    Each request that it sees stands for `scale` of them: that many are in flight, and caches fill as fast.
    """

    def __init__(self, policy: Policy, rand: Rand, live: Loads, entries: int, scale: int = 1) -> None:
        self.policy = policy
        self.scale = scale
        self._rand = rand
        self._live = live
        count = len(live.in_flight)
        capacity: Sequence[float] = list(live.capacity_tokens) or [1.0]
        self.loads = loads = Loads([0] * count, capacity[:count], 1.0, Index(entries, capacity), live.kappa)
        # Engines are as they are, whoever sends to them.
        loads.token_s, loads.capacity_tokens, loads.trust = live.token_s, live.capacity_tokens, live.trust
        loads.kv_per_token, loads.room = live.kv_per_token, live.room
        self._entries = entries
        self._live_index: Index | None = None
        self._views: dict[int, tuple[FleetView, FleetView]] = {}
        self._settled_s = 0.0
        self.decisions = 0
        self.agreed = 0
        self.prompt_tokens = 0.0
        self.held_tokens = 0.0
        """Prompt tokens expected to be cached where the shadow sends them."""
        self.live_held_tokens = 0.0
        """And where they were sent."""
        self._weight = 1.0
        self._sent = array("d", [0.0] * count)
        self._live_sent = array("d", [0.0] * count)

    def see(
        self, keys: RequestKeys, view: FleetView, slot: int, held_tokens: float | None, now_s: float
    ) -> Placed | None:
        """A request went to `slot`, where `held_tokens` of it are believed cached: what would the shadow have done?

        None for a live policy that has no belief; then the shadow keeps one for it, by where requests went.
        """
        self._sync(now_s)
        own = self._view(view)
        decision = self.policy.choose(keys, own, (), self._rand)
        if decision is None:
            return None
        loads, chosen, size = self.loads, decision.slot, keys.prompt_bytes
        tokens = prompt_tokens(keys, own) if size else 0.0
        held = self._insert(loads.index, chosen, keys, tokens)
        if held_tokens is None:
            index = self._live_index
            if index is None:
                index = self._live_index = Index(self._entries, list(loads.capacity_tokens))
            held_tokens = self._insert(index, slot, keys, tokens)
        if keys.affinity is not None:
            loads.recent.touch(keys.affinity, chosen, now_s)
        scale, missing = self.scale, tokens - loads.trust[chosen] * held
        loads.in_flight[chosen] += scale
        loads.in_flight_tokens[chosen] += scale * tokens
        loads.backlog_tokens[chosen] += scale * missing
        loads.kv_used[chosen] = loads.kv_per_token[chosen] * loads.in_flight_tokens[chosen]
        self.decisions += 1
        self.agreed += chosen == slot
        self.prompt_tokens += tokens
        self.held_tokens += held
        self.live_held_tokens += held_tokens
        self._sent[chosen] += self._weight * tokens
        self._live_sent[slot] += self._weight * tokens
        return Placed(chosen, slot, tokens, keys)

    def _insert(self, index: Index, slot: int, keys: RequestKeys, tokens: float) -> float:
        """The prompt is sent to a slot, for as many as it stands for; the tokens of it that were there."""
        size, chain, ends = keys.prompt_bytes, keys.chain, keys.ends
        held = 0.0
        if chain and size:
            blocks, tail = index.insert(slot, chain, ends, tokens / size, keys.affinity or 0)
            if blocks:
                held = min(tokens, tokens * ends[blocks - 1] / size + tail)
        index.record_tokens(slot, (self.scale - 1) * (tokens - held))
        return held

    def end(self, placed: Placed, answer_tokens: int | None) -> None:
        """The live request is over; its answer is in the cache now."""
        slot, live_slot, tokens, keys = placed
        loads, scale = self.loads, self.scale
        loads.in_flight[slot] = max(0, loads.in_flight[slot] - scale)
        left = loads.in_flight_tokens[slot] - scale * tokens
        loads.in_flight_tokens[slot] = left if loads.in_flight[slot] and left > 0 else 0.0
        loads.kv_used[slot] = loads.kv_per_token[slot] * loads.in_flight_tokens[slot]
        if answer_tokens:
            self._extend(loads.index, slot, tokens, keys, answer_tokens)
            if self._live_index is not None:
                self._extend(self._live_index, live_slot, tokens, keys, answer_tokens)

    def _extend(self, index: Index, slot: int, tokens: float, keys: RequestKeys, answer_tokens: int) -> None:
        index.record_tokens(slot, self.scale * answer_tokens)
        if keys.chain and keys.affinity is not None:
            rest = 1.0 - keys.ends[len(keys.chain) - 1] / keys.prompt_bytes
            index.extend(slot, keys.chain[-1], tokens * rest + answer_tokens, keys.affinity)

    def forget(self, slot: int) -> None:
        """Somebody else is in the slot, or its engine started anew."""
        if slot < len(self._sent):
            self.loads.index.clear(slot)
            if self._live_index is not None:
                self._live_index.clear(slot)
            self._sent[slot] = self._live_sent[slot] = 0.0

    def imbalance(self, slots: Sequence[int]) -> tuple[float, float]:
        """Prompt tokens sent to the fullest of the backends over the mean, by the shadow and by the live one; 1 is
        even."""
        known = [slot for slot in slots if slot < len(self._sent)]
        return _uneven([self._sent[slot] for slot in known]), _uneven(
            [self._live_sent[slot] for slot in known]
        )

    def _sync(self, now_s: float) -> None:
        """Let time pass, and take over what was learned."""
        loads, live = self.loads, self._live
        more = len(live.in_flight) - len(loads.in_flight)
        if more > 0:
            self._grow(more)
        age_s = max(0.0, now_s - self._settled_s) if self._settled_s else 0.0
        self._settled_s = now_s
        backlog, token_s = loads.backlog_tokens, live.token_s
        for slot, waiting in enumerate(backlog):
            if waiting:
                left = waiting - age_s / token_s[slot]
                backlog[slot] = left if left > 0.0 and loads.in_flight[slot] else 0.0
        loads.tight, loads.step_s, loads.decode_s, loads.stay_s = (
            live.tight,
            live.step_s,
            live.decode_s,
            live.stay_s,
        )
        loads.arrivals_s, loads.busy, loads.answer_tokens = live.arrivals_s, live.busy, live.answer_tokens
        loads.stall, loads.unseen = live.stall, live.unseen
        self._weight *= exp(min(100.0, age_s / _MEMORY_S))
        if self._weight > _WEIGHT_LIMIT:
            for sums in (self._sent, self._live_sent):
                for slot, total in enumerate(sums):
                    sums[slot] = total / self._weight
            self._weight = 1.0

    def _grow(self, more: int) -> None:
        loads, count = self.loads, len(self._live.in_flight)
        loads.index.grow(count)
        if self._live_index is not None:
            self._live_index.grow(count)
        loads.recent.grow(count)
        for counts in (loads.in_flight, loads.queued):
            counts.extend([0] * more)
        for sums in (
            loads.in_flight_tokens,
            loads.backlog_tokens,
            loads.kv_used,
            self._sent,
            self._live_sent,
        ):
            sums.extend([0.0] * more)
        self._views.clear()

    def _view(self, view: FleetView) -> FleetView:
        """The pool as the shadow sees it: the same members, its own loads and its own turns."""
        found = self._views.get(id(view))
        if found is None or found[0] is not view:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            own = FleetView(
                view.ring, view.slots, view.weights, self.loads, view.available, view.bytes_per_token
            )
            found = self._views[id(view)] = (view, own)
        found[1].bytes_per_token = view.bytes_per_token
        return found[1]


def _uneven(sent: Sequence[float]) -> float:
    total = sum(sent)
    return max(sent) * len(sent) / total if total else 1.0
