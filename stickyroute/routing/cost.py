"""What it costs to send a request to a backend, in seconds, with every term by its name.

    backlog    uncached prompt tokens ahead of it there x seconds per token
    recompute  its own tokens that the backend does not hold x seconds per token; what many
               backends hold counts less, since a beginning that many share is soon worth its copy
    again      what that costs others: it delays by `recompute` each request that comes before the queue is
               empty again, which are (backlog + recompute) x arrivals / (1 - busy); or kappa x recompute
               where kappa is fixed
    decode     requests in flight there x what each adds to an answer
    stall      recompute x requests in flight there x what their pause counts: a prompt stops who decodes

All are divided by the backend's weight over the mean weight, and, for a prompt of which nobody holds any, by its room.
Owns the formula, and how a request's size and what is held of it become tokens.
Reads the fleet's figures and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.loads import Loads
from stickyroute.routing.view import FleetView

__all__ = ["KV_HIGH_WATER", "Terms", "costs_s", "missing_tokens", "prompt_tokens", "terms"]

KV_HIGH_WATER = 0.8
"""Above this share of its cache in use an engine's first tokens tell of its cache and no more of its speed."""

_BUSY_LIMIT = 0.9  # at saturation every queue would count as endless


class Terms(NamedTuple):
    """Seconds each; their sum is what policies compare."""

    backlog_s: float
    recompute_s: float
    again_s: float
    decode_s: float
    stall_s: float

    @property
    def cost_s(self) -> float:
        """The sum."""
        return self.backlog_s + self.recompute_s + self.again_s + self.decode_s + self.stall_s


def prompt_tokens(keys: RequestKeys, view: FleetView) -> float:
    """The length of the prompt: exact where it is token ids, else by the bytes a token has had so far."""
    exact = keys.prompt_tokens
    return keys.prompt_bytes / view.bytes_per_token if exact is None else float(exact)


def missing_tokens(keys: RequestKeys, view: FleetView, tokens: float) -> tuple[list[float], list[int]] | None:
    """What of a prompt counts as to be computed, and how many blocks are held there, for each member; None if
    nobody holds any.

    What k of N members hold counts ((N - k) / (N - 1)) ** 2: fully while one has it, hardly when nearly all do.
    One request alone would never pay for a copy, so a system prompt that is on
    every request would stay where it was first, and all the load with it.
    """
    chain = keys.chain
    if not chain:
        return None
    groups = view.groups(chain)
    if not groups:
        return None
    loads = view.loads
    blocks = view.read(loads.index.by_slot(groups))
    ends, key = keys.ends, keys.affinity
    scale = tokens / keys.prompt_bytes
    size = view.size
    most = groups[0][0]
    holders = len(groups[0][1])
    above = ends[most - 1] * scale
    saved = {most: above}
    shared = 0.0
    for level, slots in groups[1:]:
        own = ends[level - 1] * scale
        shared += (above - own) * (1.0 - ((size - holders) / (size - 1)) ** 2)
        saved[level] = own + shared
        above, holders = own, len(slots)
    if holders < size:
        saved[0] = shared + above * (1.0 - ((size - holders) / (size - 1)) ** 2)
    trust = view.read(loads.trust)
    missing = [tokens - saved[count] * part for count, part in zip(blocks, trust)]  # noqa: B905 - as below
    if key is not None:
        slot, more = loads.index.tail(chain[most - 1], key)
        if more and slot in view.slots:
            member = view.slots.index(slot)
            if blocks[member] == most:
                left = missing[member] - more * trust[member]
                missing[member] = left if left > 0.0 else 0.0
    return missing, blocks


def costs_s(view: FleetView, tokens: float, missing: list[float] | None) -> list[float]:
    """What a prompt of `tokens` costs on each member: the sums of their `terms`, without the names.

    `missing` are those that count as to be computed, all of them where it is None.
    """
    loads = view.loads
    flat, behind = _prices(loads)
    decode_s = loads.decode_s
    backlog, token_s = view.read(loads.backlog_tokens), view.read(loads.token_s)
    in_flight = view.read(loads.in_flight)
    stall = loads.stall
    new = missing is None
    if missing is None:
        missing = [tokens] * len(token_s)
    costs = [
        # backlog + recompute x (flat + stall x in flight + behind x (backlog + recompute)), in seconds
        each_s * (ahead + own * (flat + stall * count + behind * each_s * (ahead + own))) + decode_s * count
        # Not `strict`, which mypyc makes no loop of: all have one length.
        for ahead, own, each_s, count in zip(backlog, missing, token_s, in_flight)  # noqa: B905 - see above
    ]
    if new and loads.tight:  # what is held somewhere is better left there: docs/adr/0009
        costs = [cost_s / room for cost_s, room in zip(costs, view.read(loads.room), strict=True)]
    if view.even:
        return costs
    return [cost_s / weight for cost_s, weight in zip(costs, view.relative_weights, strict=True)]


def terms(view: FleetView, member: int, missing: float, new: bool = False) -> Terms:
    """The same for one member, which has `missing` tokens to compute, term by term; `new`: nobody holds any."""
    loads, slot = view.loads, view.slots[member]
    relative = view.relative_weights[member] * (loads.room[slot] if new else 1.0)
    recompute_s = missing * loads.token_s[slot]
    backlog_s = loads.backlog_tokens[slot] * loads.token_s[slot]
    flat, behind = _prices(loads)
    return Terms(
        backlog_s / relative,
        recompute_s / relative,
        recompute_s * (flat - 1.0 + behind * (backlog_s + recompute_s)) / relative,
        loads.in_flight[slot] * loads.decode_s / relative,
        recompute_s * loads.stall * loads.in_flight[slot] / relative,
    )


def _prices(loads: Loads) -> tuple[float, float]:
    """What a second of recompute costs: itself and a fixed kappa; and more for each second until its end."""
    fixed = loads.kappa.fixed
    if fixed is not None:
        return 1.0 + fixed, 0.0
    return 1.0, loads.arrivals_s / (1.0 - min(_BUSY_LIMIT, loads.busy))
