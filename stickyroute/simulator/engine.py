"""One simulated engine as a pure state machine: requests in, steps out, the clock is an argument.

Owns the pipeline of steps: one runs, and with async scheduling the next is already planned. Must not know
real time, sockets or text; the virtual-time replay and the server drive the same class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from stickyroute.simulator.cache import BlockCache, PrefixCache
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.scheduler import Counters, Scheduler, Sequence, Step


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step that was over at `time_s`: who got a token (all of them only with `trace`), who the first,
    who ended."""

    time_s: float
    tokens: Seq[Sequence]
    first: Seq[Sequence]
    finished: Seq[Sequence]


class Engine:
    """`submit`, then call `advance` whenever the clock has reached `next_step_s`.

    With `trace` every step is reported with every token, as a server needs it; without, only steps in which
    a first token appears or a sequence ends. `prefill_first` is SGLang's schedule. `slowdown` stretches the
    steps planned from now on (a throttled GPU).
    """

    def __init__(
        self,
        profile: Profile,
        cache: PrefixCache | None = None,
        trace: bool = False,
        prefill_first: bool = False,
    ) -> None:
        self.profile = profile
        self.cache: PrefixCache = (
            cache if cache is not None else BlockCache(profile.blocks, profile.block_size)
        )
        self.next_step_s = math.inf
        """When the running step is over; infinite while idle."""
        self.busy_s = 0.0
        """Time spent in finished steps: GPU seconds."""
        self.steps = 0
        self.slowdown = 1.0
        self._scheduler = Scheduler(profile, self.cache, trace, prefill_first)
        self._trace = trace
        self._time = profile.time
        self._ahead = profile.async_scheduling
        self._current: Step | None = None
        self._current_s = 0.0  # how long it takes
        self._planned: Step | None = None

    @property
    def running(self) -> int:
        """Sequences that hold blocks: the gauge num_requests_running."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue, preempted ones included: the gauge num_requests_waiting."""
        return len(self._scheduler.waiting)

    @property
    def waiting_uncached_tokens(self) -> int:
        """Prompt tokens in the queue that a lookup made now would not find."""
        return sum(
            sequence.prompt_tokens - self.cache.lookup(sequence.held, sequence.prompt_tokens)
            for sequence in self._scheduler.waiting
        )

    @property
    def decoding(self) -> tuple[int, int]:
        """Sequences that get a token in every step now, and the tokens of their contexts together."""
        return self._scheduler.decoding

    def next_start_s(self, now_s: float) -> float:
        """When the first step begins that a request submitted at `now_s` could be part of."""
        if self._current is None:
            return now_s
        step = self._planned
        if step is None:
            return self.next_step_s
        step_s = self._time.step_s(step.prefill_tokens, step.pairs, step.decodes, step.context)
        return self.next_step_s + self.slowdown * step_s

    def steps_left(self) -> Iterator[int]:
        """For each decoding sequence, how many steps until it ends."""
        return self._scheduler.steps_left()

    @property
    def counters(self) -> Counters:
        return self._scheduler.counters

    def submit(
        self, now_s: float, keys: Seq[int], prompt_tokens: int, output_tokens: int, owner: object = None
    ) -> Sequence:
        """Queue a request; call `advance(now_s)` first. `keys` are one per full block of prompt and
        answer."""
        if self.next_step_s < now_s:
            raise ValueError("advance the engine to now_s before you submit")
        if (
            prompt_tokens < 1
            or output_tokens < 0
            or prompt_tokens + output_tokens > self.profile.context_tokens
        ):
            raise ValueError(
                f"{prompt_tokens} + {output_tokens} tokens do not fit {self.profile.context_tokens}"
            )
        if prompt_tokens + output_tokens > self.cache.capacity_tokens:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens never fit the cache")
        sequence = Sequence(keys, prompt_tokens, output_tokens, owner, now_s, self.cache.open(keys, owner))
        self._scheduler.add(sequence)
        if self._current is None:
            self._start(now_s)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Forget a request; a no-op when it has ended. The step in progress still takes its time."""
        self._scheduler.remove(sequence)

    def abort_all(self) -> None:
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            self._scheduler.remove(sequence)

    def advance(self, now_s: float, stop_at_finish: bool = False) -> list[StepDone]:
        """Run every step that ends by `now_s`, in order; with `stop_at_finish`, only up to the first that
        ends one."""
        done: list[StepDone] = []
        scheduler = self._scheduler
        while (step := self._current) is not None and self.next_step_s <= now_s:
            time_s = self.next_step_s
            self.busy_s += self._current_s
            self.steps += 1
            scheduler.settle(step, time_s)
            self._start(time_s)
            if step.first or step.last or self._trace:
                done.append(StepDone(time_s, step.tokens, step.first, step.last))
                if stop_at_finish and step.last:
                    break
        return done

    def _start(self, now_s: float) -> None:
        scheduler = self._scheduler
        step = self._planned
        if step is None:
            step = scheduler.plan(now_s)
        self._planned = None
        self._current = step
        if step is None:
            self.next_step_s = math.inf
            return
        self._current_s = self.slowdown * self._time.step_s(
            step.prefill_tokens, step.pairs, step.decodes, step.context
        )
        self.next_step_s = now_s + self._current_s
        if self._ahead:
            self._planned = scheduler.plan(now_s)
