"""A router that cannot exist: it sees the engines' true caches and queues at the moment of the choice.

Owns the yardstick that policies are held against in replay. It is greedy, not optimal: it takes the engine
on which this request's first token comes soonest, where what must be computed counts 1 + kappa times, since
it also delays everybody behind it. kappa is how often a request waits for its own work: (mean TTFT / mean
prefill of the same requests) - 1, measured as the run goes, 0 to 8.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from stickyroute.benchmark.workloads.base import Request
from stickyroute.fleet import Lease
from stickyroute.simulator.cache import Held
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.scheduler import Sequence as EngineSequence

_DECAY: Final = 0.995  # about the last 200 requests


class Omniscient:
    """`engines` by slot, all of one `profile`."""

    def __init__(self, engines: Sequence[Engine], profile: Profile) -> None:
        self._engines = engines
        self._profile = profile
        self._kappa = 0.0
        self._ttft_s = 0.0  # sums that decay, so their ratio follows the load
        self._service_s = 0.0
        self._ahead: list[deque[tuple[EngineSequence, int]]] = [deque() for _ in engines]
        self._coming: list[Counter[int]] = [Counter() for _ in engines]  # ends of prompts not yet computed
        self._given = [0] * len(engines)

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        """The cheapest engine; among nearly equal ones the one with the fewest requests, then the
        emptiest."""
        keys = request.reply.keys()
        costs_s = [
            self._cost_s(slot, keys, request.prompt_tokens, request.output_tokens)
            for slot in range(len(self._engines))
        ]
        limit_s = 1.02 * min(costs_s) + 1e-3
        near = [slot for slot, cost_s in enumerate(costs_s) if cost_s <= limit_s]
        engines = self._engines
        slot = min(near, key=lambda slot: (engines[slot].running + engines[slot].waiting, self._given[slot]))
        self._given[slot] += request.prompt_tokens
        return slot, "omniscient", None

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        """A request has joined the queue of the engine in `slot`."""
        held, tokens = sequence.held, sequence.prompt_tokens
        missing = tokens - self._hit_tokens(slot, held.keys, tokens)
        blocks = tokens // self._profile.block_size
        self._ahead[slot].append((sequence, missing))
        if blocks:
            self._coming[slot][held.keys[blocks - 1]] += 1

    def _hit_tokens(self, slot: int, keys: Sequence[int], tokens: int) -> int:
        """What the engine has of a prompt, or will have by its turn because somebody ahead has it
        computed."""
        size = self._profile.block_size
        hit = self._engines[slot].cache.lookup(Held(keys), tokens)
        coming = self._coming[slot]
        if coming:
            for index in range((tokens - 1) // size - 1, hit // size - 1, -1):
                if keys[index] in coming:
                    return (index + 1) * size
        return hit

    def _backlog(self, slot: int) -> int:
        """Prompt tokens the engine must still compute before a new request's turn."""
        ahead = self._ahead[slot]
        while ahead and (ahead[0][0].first_token_s or ahead[0][0].done):
            self._learn(slot, *ahead.popleft())
        tokens = 0
        for sequence, missing in ahead:
            if not sequence.first_token_s:
                tokens += sequence.prompt_tokens - sequence.computed if sequence.computed else missing
        return tokens

    def _learn(self, slot: int, sequence: EngineSequence, missing: int) -> None:
        blocks = sequence.prompt_tokens // self._profile.block_size
        if blocks:
            coming, key = self._coming[slot], sequence.held.keys[blocks - 1]
            coming[key] -= 1
            if not coming[key]:
                del coming[key]
        time = self._profile.time
        self._ttft_s = _DECAY * self._ttft_s + sequence.first_token_s - sequence.arrived_s
        self._service_s = _DECAY * self._service_s + time.base_s + missing * time.prefill_token_s
        self._kappa = min(8.0, max(0.0, self._ttft_s / self._service_s - 1))

    def _cost_s(self, slot: int, keys: Sequence[int], tokens: int, output_tokens: int) -> float:
        """Seconds: the prefill ahead of it and its own, slowed by who decodes, and the wait for room."""
        time = self._profile.time
        engine = self._engines[slot]
        cache = engine.cache
        ahead = self._backlog(slot)
        missing = tokens - self._hit_tokens(slot, keys, tokens)
        step_s = (
            time.base_s
            + engine.running * time.decode_sequence_s
            + cache.used_tokens * time.decode_attention_s
        )
        prefill_s = (ahead + (1 + self._kappa) * missing) * time.prefill_token_s
        steps = 1 + (ahead + missing) / self._profile.batched_tokens
        need = missing + output_tokens + ahead
        short = max(0, need - (cache.capacity_tokens - cache.used_tokens))
        # Room comes back as running sequences end: a full cache drains in about the length of an answer.
        room_s = short / cache.capacity_tokens * output_tokens * step_s
        return prefill_s + steps * step_s + room_s
