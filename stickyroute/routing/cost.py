"""What it costs to send a request to a backend, in seconds, with every term by its name.

    backlog    uncached prompt tokens ahead of it there x seconds per token
    recompute  its own tokens that the backend does not hold x seconds per token; what k of N backends hold
               counts only ((N - k) / (N - 1)) ** 2, since a beginning that many share is soon worth its copy
    again      kappa x recompute: what that costs everybody who queues behind it
    decode     requests in flight there x what each adds to an answer
    guard      the wait for KV room, once what is in flight would take more than 0.8 of the cache

All are divided by the backend's weight over the mean weight. Owns the formula, and how a request's size and
what is held of it become tokens. Reads the fleet's figures and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.view import FleetView

__all__ = [
    "KV_HIGH_WATER", "Terms", "costs_s", "guard_s", "held_tokens", "prompt_tokens", "terms", "to_compute",
]  # fmt: skip

KV_HIGH_WATER = 0.8
"""Above this share engines evict silently, preempt, and TTFT jumps."""


class Terms(NamedTuple):
    """Seconds each; their sum is what policies compare."""

    backlog_s: float
    recompute_s: float
    again_s: float
    decode_s: float
    guard_s: float

    @property
    def cost_s(self) -> float:
        """The sum."""
        return self.backlog_s + self.recompute_s + self.again_s + self.decode_s + self.guard_s


def prompt_tokens(keys: RequestKeys, view: FleetView) -> float:
    """The length of the prompt: exact where it is token ids, else by the bytes a token has had so far."""
    exact = keys.prompt_tokens
    return keys.prompt_bytes / view.bytes_per_token if exact is None else float(exact)


def held_tokens(keys: RequestKeys, view: FleetView, tokens: float) -> list[float] | None:
    """For each slot how much of the prompt it is believed to hold; None if nobody holds any."""
    chain = keys.chain
    if not chain:
        return None
    index = view.loads.index
    blocks = index.held(chain)
    most = max(blocks)
    if not most:
        return None
    ends = keys.ends
    scale = tokens / keys.prompt_bytes
    trust = view.loads.trust
    held = [ends[count - 1] * scale * trust[slot] if count else 0.0 for slot, count in enumerate(blocks)]
    if keys.affinity is not None:
        slot, more = index.tail(chain[most - 1], keys.affinity)
        if more and blocks[slot] == most:
            held[slot] = min(tokens, held[slot] + more * trust[slot])
    return held


def to_compute(view: FleetView, tokens: float, held: Sequence[float] | None) -> list[float]:
    """What of a prompt counts as to be computed, for each member.

    What k of N members hold counts ((N - k) / (N - 1)) ** 2: fully while one has it, hardly when nearly all do.
    One request alone would never pay for a copy, so a system prompt that is on every request would stay where
    it was first, and all the load with it.
    """
    if held is None:
        return [tokens] * len(view.slots)
    own = [held[slot] for slot in view.slots]
    others = len(own) - 1
    if others < 1:
        return [tokens - own[0]]
    levels = sorted(set(own), reverse=True)
    upper = levels[0]
    left = tokens - upper
    counts = {upper: left}
    holders = 0
    for level in levels[1:]:
        holders += own.count(upper)
        left += (upper - level) * ((others + 1 - holders) / others) ** 2
        counts[level] = left
        upper = level
    return [counts[tokens_held] for tokens_held in own]


def costs_s(
    view: FleetView, members: Sequence[int], tokens: float, held: Sequence[float] | None
) -> list[float]:
    """What a prompt of `tokens` costs on each of `members`: the sums of their `terms`, without the names."""
    loads = view.loads
    slots, relative = view.slots, view.relative_weights
    backlog, token_s, in_flight, ratio = loads.backlog_tokens, loads.token_s, loads.in_flight, loads.kv_ratio
    twice = 1.0 + loads.kappa.value
    decode_s = loads.decode_s
    missing = to_compute(view, tokens, held)
    found = []
    for member in members:
        slot = slots[member]
        cost_s = (backlog[slot] + twice * missing[member]) * token_s[slot] + in_flight[slot] * decode_s
        if ratio[slot]:
            cost_s += guard_s(
                ratio[slot] * (loads.in_flight_tokens[slot] + tokens),
                loads.capacity_tokens[slot],
                loads.stay_s,
            )
        found.append(cost_s / relative[member])
    return found


def terms(view: FleetView, member: int, tokens: float, held: Sequence[float] | None) -> Terms:
    """The same for one member, term by term."""
    loads, slot, relative = view.loads, view.slots[member], view.relative_weights[member]
    recompute_s = to_compute(view, tokens, held)[member] * loads.token_s[slot] / relative
    used = loads.kv_ratio[slot] * (loads.in_flight_tokens[slot] + tokens)
    return Terms(
        loads.backlog_tokens[slot] * loads.token_s[slot] / relative,
        recompute_s,
        loads.kappa.value * recompute_s,
        loads.in_flight[slot] * loads.decode_s / relative,
        guard_s(used, loads.capacity_tokens[slot], loads.stay_s) / relative,
    )


def guard_s(used_tokens: float, capacity_tokens: float, stay_s: float) -> float:
    """The wait for room when `used_tokens`, this request counted, share a cache: 0 up to the high-water mark.

    Room comes back as requests end, the whole of it once in `stay_s`, the mean time in flight.
    """
    over = used_tokens / capacity_tokens - KV_HIGH_WATER
    return over * stay_s if over > 0 else 0.0
