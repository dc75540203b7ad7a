"""A workload through a policy onto simulated engines, in virtual time: no sockets, no sleeping, one process.

Owns the order of events: before a request is routed, every engine has lived up to its arrival, so the
counts a policy sees are those it would see in the proxy. Policies, keys and fleet are the product's own, and
are told what the proxy would tell them: first tokens, usage, ends, and a look at the engines' metrics now and
then. Deterministic: the same workload, policy and seed give the same run, to the last digit.

With R replicas each has a fleet and a router of its own and gets requests at random, as behind a balancer
that knows nothing; no replica sees what the others have in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from stickyroute import defaults
from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.keys import Keys
from stickyroute.benchmark.omniscient import Omniscient
from stickyroute.benchmark.results import EngineTotals, Row, Run, Sample
from stickyroute.benchmark.workloads.base import Request, Workload
from stickyroute.clock import monotonic
from stickyroute.fleet import BackendSpec, Fleet, Lease, Tuning
from stickyroute.fleet.sample import Sample as EngineSample
from stickyroute.openai.usage import Usage
from stickyroute.routing.policies import Policy, make_policy
from stickyroute.routing.router import Router
from stickyroute.simulator.engine import Engine, StepDone
from stickyroute.simulator.scheduler import Sequence as EngineSequence

OMNISCIENT: Final = "omniscient"

YARDSTICKS: Final[dict[str, type[Omniscient]]] = {OMNISCIENT: Omniscient}
"""Routers that cannot exist, by name; an experiment may add one."""


class Chooser(Protocol):
    """Picks an engine for a request at a moment."""

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        """The engine's slot, the reason, and what to release when the request is over."""

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        """The request has been given to that engine."""


_TICK_S = 0.5  # as often as the proxy's clock


class Replica:
    """One router: the product's fleet, affinity rule and policy."""

    def __init__(
        self, policy: Policy, engines: int, rand: Random, sources: Sequence[str], tuning: Tuning
    ) -> None:
        specs = [
            BackendSpec(f"gpu-{number}", "http", "127.0.0.1", 8000 + number) for number in range(engines)
        ]
        self.fleet = Fleet(specs, defaults.RING_VNODES, tuning)
        self.router = Router(policy, rand)
        self.keys = Keys(range(engines), sources)
        self._ticked_s = 0.0

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        pool = self.fleet.pool(None)
        assert pool is not None  # None stands for all backends
        keys = self.keys.of(request)
        if now_s >= self._ticked_s + _TICK_S:
            self._ticked_s = now_s
            self.fleet.tick(now_s)
        self.fleet.settle(now_s)
        decision = self.router.route(keys, pool.view)
        assert decision is not None  # no backend ever goes away in a replay
        return decision.slot, decision.reason, self.fleet.lease(decision.slot, keys, now_s, pool)

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        """Nothing to learn: what a router knows of an engine is what it sent there."""

    def scraped(self, slot: int, sample: EngineSample, now_s: float) -> None:
        """A look at an engine's metrics."""
        self.fleet.record_sample(slot, sample, now_s)


def _refused(request: Request, slot: int, reason: str) -> Row:
    return Row(
        request.at_s,
        request.prompt_tokens,
        None,
        0,
        None,
        None,
        backend=slot,
        reason=reason,
        error="too long",
    )


class _Owner:
    """What a sequence carries through its engine."""

    __slots__ = ("lease", "reason", "request")

    def __init__(self, request: Request, reason: str, lease: Lease | None) -> None:
        self.request = request
        self.reason = reason
        self.lease = lease


class Replay:
    """One run. `run` may be called once."""

    def __init__(
        self,
        workload: Workload,
        policy: str,
        spec: FleetSpec,
        seed: int = 0,
        replicas: int = 1,
        sources: Sequence[str] = defaults.AFFINITY_SOURCES,
        samples: int = 120,
        tuning: Tuning | None = None,
    ) -> None:
        if replicas < 1:
            raise ValueError("a run needs one replica at least")
        self._workload = workload
        self._policy = policy
        self._seed = seed
        self._engines = [Engine(spec.profile) for _ in range(spec.engines)]
        self._choosers: list[Chooser] = []
        self._replicas: list[Replica] = []
        for number in range(replicas):
            if policy in YARDSTICKS:
                self._choosers.append(YARDSTICKS[policy](self._engines, spec.profile))
            else:
                rand = Random(f"router {seed} {number}")
                made = make_policy(policy, defaults.BOUNDED_RING_LOAD_FACTOR, defaults.BOUNDED_RING_FLOOR)
                self._replicas.append(Replica(made, spec.engines, rand, sources, tuning or Tuning()))
        self._choosers += self._replicas
        self._rows: list[Row] = []
        self._samples: list[Sample] = []
        self._sample_count = samples
        self._counts = [0] * spec.engines

    def run(self, tell: Callable[[int], None] | None = None) -> Run:
        """Play everything to its end. `tell(requests so far)` is called now and then."""
        began_s = monotonic()
        spread = Random(f"replicas {self._seed}")
        choosers, engines = self._choosers, self._engines
        only = choosers[0] if len(choosers) == 1 else None
        period_s = self._workload.seconds / self._sample_count
        next_sample_s = period_s
        next_scrape_s = defaults.SCRAPE_INTERVAL_S
        requests = self._workload.requests(Random(f"workload {self._seed}"))
        for number, request in enumerate(requests, 1):
            now_s = request.at_s
            while next_sample_s <= now_s:
                self._advance(next_sample_s)
                self._sample(next_sample_s)
                next_sample_s += period_s
            while next_scrape_s <= now_s:
                self._advance(next_scrape_s)
                self._scrape(next_scrape_s)
                next_scrape_s += defaults.SCRAPE_INTERVAL_S
            self._advance(now_s)
            chooser = only if only is not None else choosers[int(spread.random() * len(choosers))]
            slot, reason, lease = chooser.choose(request, now_s)
            self._counts[slot] += 1
            try:
                sequence = engines[slot].submit(
                    now_s,
                    request.reply.keys(),
                    request.prompt_tokens,
                    request.output_tokens,
                    _Owner(request, reason, lease),
                )
            except ValueError:  # longer than the engine's context: it answers 400
                if lease is not None:
                    lease.release()
                self._rows.append(_refused(request, slot, reason))
            else:
                chooser.placed(slot, sequence)
            if tell is not None and not number % 1000:
                tell(number)
        last_s = self._drain()
        return Run(
            workload=self._workload.name,
            policy=self._policy,
            seed=self._seed,
            duration_s=max(last_s, self._workload.seconds),
            rows=self._rows,
            engines=[
                EngineTotals(
                    engine.counters.queries,
                    engine.counters.hits,
                    self._counts[slot],
                    engine.counters.generated,
                    engine.counters.preemptions,
                    engine.busy_s,
                )
                for slot, engine in enumerate(engines)
            ],
            samples=self._samples,
            replicas=len(choosers),
            rate=self._workload.rate,
            wall_s=monotonic() - began_s,
        )

    def _advance(self, now_s: float) -> None:
        for slot, engine in enumerate(self._engines):
            if engine.next_step_s <= now_s:
                for step in engine.advance(now_s):
                    self._note(slot, step)

    def _note(self, slot: int, step: StepDone) -> None:
        for sequence in step.first:
            owner = sequence.owner
            assert isinstance(owner, _Owner)  # this module submitted it
            if owner.lease is not None:
                owner.lease.first_token(step.time_s)
        for sequence in step.finished:
            self._finish(slot, sequence)

    def _scrape(self, now_s: float) -> None:
        """What a scrape of every engine would show, to every replica."""
        for slot, engine in enumerate(self._engines):
            sample = EngineSample(
                kv_utilization=engine.cache.usage,
                running=engine.running,
                waiting=engine.waiting,
                preemptions=engine.counters.preemptions,
                queries_tokens=engine.counters.queries,
                hits_tokens=engine.counters.hits,
                capacity_tokens=engine.cache.capacity_tokens,
            )
            for replica in self._replicas:
                replica.scraped(slot, sample, now_s)

    def _drain(self) -> float:
        """Let every engine finish. Returns when the last one did."""
        last_s = 0.0
        for slot, engine in enumerate(self._engines):
            while engine.next_step_s < math.inf:
                last_s = max(last_s, engine.next_step_s)
                for step in engine.advance(engine.next_step_s + 60.0):
                    last_s = max(last_s, step.time_s)
                    self._note(slot, step)
        return last_s

    def _finish(self, slot: int, sequence: EngineSequence) -> None:
        owner = sequence.owner
        assert isinstance(owner, _Owner)  # this module submitted it
        if owner.lease is not None:
            owner.lease.usage(
                Usage(sequence.prompt_tokens, sequence.cached_tokens, sequence.output_tokens),
                sequence.finished_s,
            )
            owner.lease.release(sequence.finished_s)
        pauses = sequence.output_tokens - 1
        self._rows.append(
            Row(
                at_s=sequence.arrived_s,
                prompt_tokens=sequence.prompt_tokens,
                cached_tokens=sequence.cached_tokens,
                output_tokens=sequence.output_tokens,
                ttft_s=sequence.first_token_s - sequence.arrived_s,
                latency_s=sequence.finished_s - sequence.arrived_s,
                itl_s=(sequence.finished_s - sequence.first_token_s) / pauses if pauses > 0 else None,
                backend=slot,
                reason=owner.reason,
            )
        )

    def _sample(self, at_s: float) -> None:
        engines = self._engines
        self._samples.append(
            Sample(
                at_s,
                [float(engine.running) for engine in engines],
                [float(engine.waiting) for engine in engines],
                [engine.cache.usage for engine in engines],
            )
        )
