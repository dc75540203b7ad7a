"""A router that cannot exist: it sees the engines' true caches, queues and steps at the moment of the choice.

Owns the yardstick that policies are held against in replay. It takes the engine on which a request costs
least in seconds of waiting, its own and everybody's:

    cost = predicted time to first token + what it adds to the waiting of those who come after it

The prediction follows the engine's own schedule: the end of the steps that run and are planned, the prompts
ahead of it, its own missing tokens, the sequences that decode in every step meanwhile, and the wait for free
blocks. What it adds: work of w seconds delays whoever arrives on that engine before its queue is empty again.
With a backlog of q seconds, a rate of arrivals r and a share rho of the time spent on prompts, those are
r (q + w) / (1 - rho) requests, w seconds each. That is local, unlike one price for the fleet: an idle engine
is a cheap place for a second copy however long the queues are elsewhere. Where the cache is full the same holds
for room: its own tokens for the length of its answer are what others then wait for.

It knows the present, not the future, so it is no bound. Knows no policy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from heapq import nsmallest
from math import ceil, exp
from typing import Final

from stickyroute.benchmark.workloads.base import Request
from stickyroute.fleet import Lease
from stickyroute.simulator.cache import Held
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.scheduler import Sequence as EngineSequence
from stickyroute.simulator.timing import attended_pairs

_MEMORY_S: Final = 20.0  # how far back rate and load are measured
_WANTED_MAX: Final = 50_000
_RHO_MAX: Final = 0.9  # at saturation every queue would count as endless


class _Ahead:
    """A request on its way to its first token: what it still had to compute when it was placed, that in
    seconds, and the room it will take, in steps of a whole cache."""

    __slots__ = ("missing", "room", "sequence", "work_s")

    def __init__(self, sequence: EngineSequence, missing: int, work_s: float, room: float) -> None:
        self.sequence = sequence
        self.missing = missing
        self.work_s = work_s
        self.room = room


class Omniscient:
    """`engines` by slot, all of one `profile`."""

    def __init__(self, engines: Sequence[Engine], profile: Profile) -> None:
        self._engines = engines
        self._profile = profile
        self._now_s = 0.0
        self._rate = 0.0  # requests a second of the fleet
        self._load = 0.0  # seconds of prefill a second, of the fleet
        self._room = 0.0  # seconds of a whole cache a second, of the fleet
        self._ahead: list[deque[_Ahead]] = [deque() for _ in engines]
        self._queued = [(0, 0.0, 0.0) for _ in engines]  # sums over _ahead: tokens, seconds, room
        self._coming: list[Counter[int]] = [Counter() for _ in engines]  # ends of prompts not yet computed
        # By prefix: requests, fading, and when they were counted.
        self._wanted: dict[int, tuple[float, float]] = {}
        self._given = [0] * len(engines)

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        """The cheapest engine; among nearly equal ones the one that was given least."""
        keys, tokens = request.reply.keys(), request.prompt_tokens
        self._fade(now_s)
        hits = [self._hit_tokens(slot, keys, tokens) for slot in range(len(self._engines))]
        answer = request.output_tokens
        costs_s = [self._cost_s(slot, hit, tokens, answer) for slot, hit in enumerate(hits)]
        most = max(hits)
        if most:
            wanted = self._asked(keys[most // self._profile.block_size - 1])
            self._invest(hits, costs_s, most, tokens, answer, wanted)
        limit_s = min(costs_s) + 0.01 * abs(min(costs_s)) + 1e-4
        slot = min(
            (slot for slot, cost_s in enumerate(costs_s) if cost_s <= limit_s),
            key=lambda slot: (self._given[slot], slot),
        )
        self._given[slot] += tokens
        self._rate += 1 / _MEMORY_S
        return slot, "omniscient", None

    def _invest(
        self, hits: Sequence[int], costs_s: list[float], most: int, tokens: int, answer: int, wanted: float
    ) -> None:
        """Take off the cost of a cold engine what a copy there would save those who ask for it soon:
        `wanted` requests that find `most` tokens, shared by all engines that have them."""
        copies = sum(hit == most for hit in hits)
        if copies == len(hits):
            return
        warm_s = min(cost_s for hit, cost_s in zip(hits, costs_s, strict=True) if hit == most)
        for slot, hit in enumerate(hits):
            if hit < most:
                there_s = self._cost_s(slot, most, tokens, answer)
                saved_s = max(0.0, warm_s - there_s) * wanted / (copies + 1)
                costs_s[slot] = max(there_s, costs_s[slot] - saved_s)  # at best the copy is free

    def _asked(self, key: int) -> float:
        """How many requests for the prefix that ends with `key` came in the last `_MEMORY_S`; this is one
        more."""
        count, at_s = self._wanted.pop(key, (0.0, 0.0))
        count *= exp((at_s - self._now_s) / _MEMORY_S)
        self._wanted[key] = (count + 1.0, self._now_s)
        if len(self._wanted) > _WANTED_MAX:
            del self._wanted[next(iter(self._wanted))]  # the one not asked for longest
        return count

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        """A request has joined the queue of the engine in `slot`."""
        held, tokens = sequence.held, sequence.prompt_tokens
        hit = self._hit_tokens(slot, held.keys, tokens)
        work_s = self._work_s(hit, tokens - hit)
        room = self._room_of(tokens - hit, sequence.output_tokens)
        self._ahead[slot].append(_Ahead(sequence, tokens - hit, work_s, room))
        queued, queued_s, queued_room = self._queued[slot]
        self._queued[slot] = (queued + tokens - hit, queued_s + work_s, queued_room + room)
        self._load += work_s / _MEMORY_S
        self._room += room * self._beside_s(self._engines[slot]) / _MEMORY_S
        blocks = tokens // self._profile.block_size
        if blocks:
            self._coming[slot][held.keys[blocks - 1]] += 1

    def _fade(self, now_s: float) -> None:
        """Let rate and load forget at their pace."""
        kept = exp((self._now_s - now_s) / _MEMORY_S)
        self._now_s = now_s
        self._rate *= kept
        self._load *= kept
        self._room *= kept

    def _work_s(self, computed: int, missing: int) -> float:
        time = self._profile.time
        return missing * time.prefill_token_s + attended_pairs(computed, missing) * time.prefill_attention_s

    def _room_of(self, missing: int, answer: int) -> float:
        """The steps for which a request alone would fill the cache: its own tokens, not those it shares, for
        as many steps as its answer has tokens."""
        return (missing + answer) * answer / (self._profile.blocks * self._profile.block_size)

    def _beside_s(self, engine: Engine) -> float:
        """Of a step, the time for everything but prompts."""
        return self._profile.time.step_s(0, 0.0, *engine.decoding)

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

    def _backlog(self, slot: int) -> tuple[int, float, float]:
        """Prompt tokens that are in no step yet and will be computed before a new request's; that in seconds;
        and the room those take who have not begun."""
        ahead = self._ahead[slot]
        while ahead and (ahead[0].sequence.first_token_s or ahead[0].sequence.done):
            self._forget(slot, ahead.popleft())
        tokens, work_s, room = self._queued[slot]
        for one in ahead:
            sequence = one.sequence
            if not sequence.computed:
                break  # nor has anyone behind it begun
            left = sequence.prompt_tokens - sequence.computed
            tokens += left - one.missing
            work_s -= one.work_s * (1 - left / one.missing) if one.missing else 0.0
            room -= one.room
        return max(0, tokens), max(0.0, work_s), max(0.0, room)

    def _forget(self, slot: int, one: _Ahead) -> None:
        queued, queued_s, queued_room = self._queued[slot]
        self._queued[slot] = (queued - one.missing, queued_s - one.work_s, queued_room - one.room)
        blocks = one.sequence.prompt_tokens // self._profile.block_size
        if blocks:
            coming, key = self._coming[slot], one.sequence.held.keys[blocks - 1]
            coming[key] -= 1
            if not coming[key]:
                del coming[key]

    def _cost_s(self, slot: int, hit: int, tokens: int, answer: int) -> float:
        profile, engine = self._profile, self._engines[slot]
        ahead, ahead_s, ahead_room = self._backlog(slot)
        missing = tokens - hit
        work_s = self._work_s(hit, missing)
        beside_s = self._beside_s(engine)
        steps = ceil((ahead + missing) / max(1, profile.batched_tokens - engine.decoding[0]))
        computed_s = ahead_s + work_s + steps * beside_s
        cost_s = engine.next_start_s(self._now_s) - self._now_s + computed_s
        cost_s += self._delays_s(ahead_s, work_s, self._load)
        room_s = self._room_s(engine, ahead + missing, beside_s)
        if room_s:  # a cache that is not full delays nobody
            room_s = max(room_s, ahead_room * beside_s)
            cost_s += room_s + self._delays_s(room_s, self._room_of(missing, answer) * beside_s, self._room)
        return cost_s

    def _delays_s(self, ahead_s: float, work_s: float, load: float) -> float:
        """What `work_s` adds to the waiting of those who come later, at `load` seconds of such work a second."""
        engines = len(self._engines)
        rho = min(_RHO_MAX, load / engines)
        return work_s * self._rate / engines * (ahead_s + work_s) / (1 - rho)

    def _room_s(self, engine: Engine, tokens: int, step_s: float) -> float:
        """How long until running sequences have ended whose blocks and places are needed first."""
        cache = engine.cache
        short = tokens - cache.free_blocks * cache.block_size
        places = engine.waiting + 1 - (self._profile.sequences - engine.running)
        if short <= 0 and places <= 0:
            return 0.0
        each = max(1, cache.used_tokens // max(1, engine.running))
        leaving = max(places, ceil(short / each))
        left = nsmallest(leaving, engine.steps_left())
        return left[-1] * step_s if left else 0.0
