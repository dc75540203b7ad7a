"""Which tokens go into the next step of an engine, as vLLM V1 decides it.

Owns the waiting queue, the running set and the walk of every sequence through them. Must not know the clock:
the engine calls `plan` for a step and `settle` when that step is over.

Each step first gives one token to every sequence that decodes, then the rest of the token budget to prompts:
the one left unfinished by the step before, then new ones in order of arrival while the budget, the sequence
limit and the free blocks (for the whole prompt) allow. When a decoding sequence finds no block, the youngest
running one is preempted: it loses its blocks, goes to the head of the queue, and computes prompt and answer
so far again. With `prefill_first`, as SGLang does it, a step is either prompts, as long as some are there and fit,
or one token for every sequence that decodes.

Planning costs nothing for a sequence that merely decodes: it is on two calendars, by the tick (decode step)
at which it next needs a block and the tick at which it ends. That is what lets a replay run years of GPU
time in minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any

from stickyroute.simulator.cache import PrefixCache
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.timing import attended_pairs

_NEVER = -1


class Sequence:
    """One prompt and its answer inside an engine.

    `keys` cover prompt and answer, as the engine's cache wants them; `output_tokens` is how long the answer
    will be (0 for an embedding). Times are seconds of the engine's clock, 0 until they happened.
    `cached_tokens` is what the first admission found in the cache; `generated` counts answer tokens planned
    so far and is exact once finished.
    """

    __slots__ = (
        "arrived_s",
        "cached_tokens",
        "computed",
        "done",
        "ends_tick",
        "finished_s",
        "first_token_s",
        "generated",
        "held",
        "joined_tick",
        "needs_tick",
        "output_tokens",
        "owner",
        "preemptions",
        "prompt_tokens",
        "scheduled_s",
    )

    def __init__(
        self,
        keys: Seq[int],
        prompt_tokens: int,
        output_tokens: int,
        owner: object,
        arrived_s: float,
        held: Any,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.owner = owner
        self.held = held
        self.computed = 0
        self.generated = 0
        self.cached_tokens = 0
        self.preemptions = 0
        self.done = False
        self.joined_tick = _NEVER
        self.ends_tick = _NEVER
        self.needs_tick = _NEVER
        self.arrived_s = arrived_s
        self.scheduled_s = 0.0
        self.first_token_s = 0.0
        self.finished_s = 0.0


class Step:
    """What one step computes. `tokens` are the sequences that get one (all of them only if the scheduler
    traces), `first` those for which it is the first, `last` those that end with it."""

    __slots__ = ("context", "decodes", "first", "last", "pairs", "prefill_tokens", "produced", "tokens")

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.pairs = 0.0
        self.decodes = 0
        self.context = 0
        self.produced = 0
        self.tokens: list[Sequence] = []
        self.first: list[Sequence] = []
        self.last: list[Sequence] = []


class Counters:
    """What the engine has done since it started: the numbers behind its counters on /metrics. Units:
    tokens."""

    __slots__ = ("generated", "hits", "preemptions", "prompt", "queries")

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self.preemptions = 0
        self.prompt = 0
        self.generated = 0


class Scheduler:
    """With `trace`, every step lists every sequence that gets a token; without, only first and last ones."""

    def __init__(
        self, profile: Profile, cache: PrefixCache, trace: bool = False, prefill_first: bool = False
    ) -> None:
        if profile.batched_tokens < profile.sequences:
            raise ValueError(
                "batched_tokens must be at least sequences: every decode gets a token in every step"
            )
        self.profile = profile
        self.cache = cache
        self.counters = Counters()
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}  # in order of admission; the last is preempted first
        self._trace = trace
        self._prefill_first = prefill_first
        self._decoding: dict[Sequence, None] = {}
        self._partial: Sequence | None = None  # admitted, its prompt not yet all planned; always the youngest
        self._tick = 0
        self._offsets = 0  # sum over decoding of computed - joined_tick: context = offsets + count x tick
        self._needs: dict[int, list[Sequence]] = {}
        self._ends: dict[int, list[Sequence]] = {}
        self._blocked_at = -1  # cache.releases when the head of the queue last did not fit

    @property
    def idle(self) -> bool:
        return not self.waiting and not self._decoding and self._partial is None

    @property
    def decoding(self) -> tuple[int, int]:
        """Sequences that decode, and the sum of their contexts in tokens."""
        count = len(self._decoding)
        return count, self._offsets + count * self._tick

    def steps_left(self) -> Iterator[int]:
        """For each decoding sequence, how many steps until it ends."""
        return (sequence.ends_tick - self._tick for sequence in self._decoding)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The client left: free everything the sequence holds, wherever it is."""
        if sequence.done:
            return
        sequence.done = True
        if sequence in self.running:
            self._leave(sequence)
            self.cache.release(sequence.held)
        else:
            self.waiting.remove(sequence)
            self._blocked_at = -1

    def plan(self, now_s: float) -> Step | None:
        """The next step, or None when there is nothing to compute. What it computes counts as computed at
        once."""
        step = Step()
        if self._prefill_first and (self._partial is not None or self.waiting):
            budget, preempted_partial = self._plan_partial(step, self.profile.batched_tokens, now_s)
            if not preempted_partial and self._partial is None:
                self._admit(step, budget, now_s)
            if step.prefill_tokens:
                return step
        preempted = self._plan_decodes(step)
        if self._prefill_first:
            return step if step.decodes else None
        budget = self.profile.batched_tokens - step.decodes
        budget, preempted_partial = self._plan_partial(step, budget, now_s)
        if not preempted and not preempted_partial and self._partial is None and self.waiting:
            self._admit(step, budget, now_s)
        if not step.decodes and not step.prefill_tokens:
            return None
        return step

    def settle(self, step: Step, now_s: float) -> None:
        """The step is over: its tokens are out, and sequences that end with it give their blocks back."""
        self.counters.generated += step.produced
        for sequence in step.first:
            if not sequence.first_token_s:
                sequence.first_token_s = now_s
        for sequence in step.last:
            if sequence.done:
                continue  # aborted meanwhile
            sequence.done = True
            sequence.finished_s = now_s
            sequence.generated = sequence.output_tokens
            if sequence in self.running:
                del self.running[sequence]
                self.cache.register(sequence.held, sequence.computed)
                self.cache.release(sequence.held)
            else:
                self.waiting.remove(
                    sequence
                )  # preempted by the plan of the next step, while its last token was due

    def _plan_decodes(self, step: Step) -> bool:
        decoding = self._decoding
        if not decoding:
            return False
        self._tick = tick = self._tick + 1
        preempted = False
        for sequence in self._needs.pop(tick, ()):
            if sequence.needs_tick != tick:
                continue  # it was preempted or left since
            computed = sequence.computed + tick - sequence.joined_tick
            while not self.cache.grow(sequence.held, computed):
                preempted = True
                if self._preempt_youngest(tick) is sequence:
                    break
            else:
                self.cache.register(sequence.held, computed, answering=True)
                self._schedule_need(sequence)
        step.decodes = step.produced = count = len(decoding)
        step.context = self._offsets + count * tick
        if self._trace:
            step.tokens.extend(decoding)
        for sequence in self._ends.pop(tick, ()):
            if sequence.ends_tick == tick:
                self._stop_decoding(sequence, tick)
                step.last.append(sequence)
        return preempted

    def _plan_partial(self, step: Step, budget: int, now_s: float) -> tuple[int, bool]:
        sequence = self._partial
        if sequence is None or budget <= 0:
            return budget, False
        chunk = min(sequence.prompt_tokens + sequence.generated - sequence.computed, budget)
        if not self.cache.grow(sequence.held, sequence.computed + chunk):
            self._preempt_youngest(
                self._tick
            )  # the partial one is the youngest: it makes room for the others
            return budget, True
        self._compute(step, sequence, chunk, now_s)
        self._blocked_at = -1  # what it computes may be a hit for the head of the queue
        return budget - chunk, False

    def _admit(self, step: Step, budget: int, now_s: float) -> None:
        cache = self.cache
        if cache.releases == self._blocked_at:
            return
        limit = self.profile.sequences
        while self.waiting and budget > 0 and len(self.running) < limit:
            sequence = self.waiting[0]
            wanted = sequence.prompt_tokens + sequence.generated
            hit = cache.lookup(sequence.held, wanted)
            chunk = min(wanted - hit, budget)
            if not cache.admit(sequence.held, hit, hit + chunk, wanted):
                self._blocked_at = cache.releases
                return
            self.waiting.popleft()
            self.running[sequence] = None
            sequence.computed = hit
            if not sequence.preemptions:
                sequence.cached_tokens = hit
                sequence.scheduled_s = now_s
                self.counters.queries += wanted
                self.counters.hits += hit
                self.counters.prompt += wanted
            self._compute(step, sequence, chunk, now_s)
            budget -= chunk

    def _compute(self, step: Step, sequence: Sequence, chunk: int, now_s: float) -> None:
        """Put a chunk of a prompt into the step; with its last chunk the sequence gets a token and starts
        to decode."""
        step.prefill_tokens += chunk
        step.pairs += attended_pairs(sequence.computed, chunk)
        sequence.computed += chunk
        self.cache.register(sequence.held, sequence.computed)
        if sequence.computed < sequence.prompt_tokens + sequence.generated:
            self._partial = sequence
            return
        self._partial = None
        if sequence.output_tokens:
            sequence.generated += 1
            step.produced += 1
            if self._trace:
                step.tokens.append(sequence)
            if sequence.generated == 1:
                step.first.append(sequence)
        if sequence.generated >= sequence.output_tokens:
            step.last.append(sequence)
            return
        sequence.joined_tick = self._tick
        sequence.ends_tick = self._tick + sequence.output_tokens - sequence.generated
        self._decoding[sequence] = None
        self._offsets += sequence.computed - self._tick
        self._ends.setdefault(sequence.ends_tick, []).append(sequence)
        self._schedule_need(sequence)

    def _schedule_need(self, sequence: Sequence) -> None:
        """Note the tick at which the sequence computes the first token that no longer fits its blocks."""
        tick = sequence.joined_tick + sequence.held.room_tokens - sequence.computed + 1
        sequence.needs_tick = tick
        if tick <= sequence.ends_tick:
            self._needs.setdefault(tick, []).append(sequence)

    def _stop_decoding(self, sequence: Sequence, tick: int) -> None:
        """Make `computed` and `generated` explicit again, up to and including `tick`."""
        steps = tick - sequence.joined_tick
        self._offsets -= sequence.computed - sequence.joined_tick
        sequence.computed += steps
        sequence.generated += steps
        sequence.joined_tick = sequence.ends_tick = sequence.needs_tick = _NEVER
        del self._decoding[sequence]

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self._decoding:
            self._stop_decoding(sequence, self._tick)
        elif sequence is self._partial:
            self._partial = None
        del self.running[sequence]

    def _preempt_youngest(self, tick: int) -> Sequence:
        """Take the youngest sequence's blocks away. At `tick` it has not yet been given its token of this
        step."""
        sequence = next(reversed(self.running))
        if sequence in self._decoding:
            self._stop_decoding(sequence, tick - 1)
        self._leave(sequence)
        self.cache.release(sequence.held)
        sequence.computed = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)
        return sequence
