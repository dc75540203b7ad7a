"""A workload through a policy onto simulated engines, in virtual time: no sockets, no sleeping, one process.

Owns the order of events: before a request is routed, every engine has lived up to its arrival, so the
counts a policy sees are those it would see in the proxy. Policies, keys and fleet are the product's own, and
are told what the proxy would tell them: first tokens, usage, ends, and a look at the engines' metrics every two
seconds. Deterministic: the same workload, policy and seed give the same run, to the last digit.

With R replicas each has a fleet and a router of its own and gets requests at random, as behind a balancer
that knows nothing; no replica sees what the others have in flight.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from stickyroute import defaults
from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.omniscient import Omniscient
from stickyroute.benchmark.prompts import BLOCK_TOKENS, BYTES_PER_TOKEN, Prompt, text_of
from stickyroute.benchmark.results import EngineTotals, Row, Run, Sample
from stickyroute.benchmark.workloads.base import Request, Workload
from stickyroute.clock import monotonic
from stickyroute.fleet import BackendSpec, Fleet, Lease, Tuning
from stickyroute.fleet.sample import Sample as EngineSample
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Shape
from stickyroute.openai.usage import Usage
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.policies import Policy, make_policy
from stickyroute.routing.prefix import block_ends
from stickyroute.routing.router import Router
from stickyroute.simulator.engine import Engine, StepDone
from stickyroute.simulator.scheduler import Sequence as EngineSequence

OMNISCIENT: Final = "omniscient"
_MODEL: Final = "sim"
_WORD: Final = (1 << 64) - 1
_HEAD_TOKENS: Final = defaults.AFFINITY_PREFIX_BYTES // 4 + 16  # all that the key of a prompt's head can see


_SCRAPE_S: Final = 2.0
_BLOCK_BYTES: Final = 256
_LIMIT_BYTES: Final = 4 << 20


class Chooser(Protocol):
    """Picks an engine for a request at a moment."""

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        """The engine's slot, the reason, and what to release when the request is over."""

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        """The request has been given to that engine."""


class Replica:
    """One router: the product's fleet, affinity rule and policy."""

    def __init__(self, policy: Policy, engines: int, rand: Random, keys: Keys, tuning: Tuning) -> None:
        specs = [
            BackendSpec(f"gpu-{number}", "http", "127.0.0.1", 8000 + number) for number in range(engines)
        ]
        self._fleet = Fleet(specs, defaults.RING_VNODES, tuning)
        self._router = Router(policy, rand)
        self._keys = keys

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        pool = self._fleet.pool(None)
        assert pool is not None  # None stands for all backends
        keys = self._keys.of(request)
        self._fleet.settle(now_s)
        decision = self._router.route(keys, pool.view)
        assert decision is not None  # no backend ever goes away in a replay
        return decision.slot, decision.reason, self._fleet.lease(decision.slot, keys, now_s, pool)

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        """Nothing to learn: what a router knows of an engine is what it sent there."""

    def scraped(self, slot: int, sample: EngineSample, now_s: float) -> None:
        """A look at an engine's metrics."""
        self._fleet.record_sample(slot, sample, now_s)


class Keys:
    """The product's keys of each request: its affinity from a body as the client would send it, its chain from
    the keys of the engines' blocks at the positions where the product's blocks end, so that no text is made."""

    def __init__(
        self, sources: Sequence[str] = defaults.AFFINITY_SOURCES, needs: Needs = Needs.CHAIN
    ) -> None:
        self._rule = AffinityRule(tuple(sources), None, defaults.AFFINITY_PREFIX_BYTES)
        self._known: dict[object, RequestKeys] = {}
        self._needs = needs
        self._ends = block_ends(_BLOCK_BYTES, 32, _LIMIT_BYTES)
        self._at = [end // (BYTES_PER_TOKEN * BLOCK_TOKENS) - 1 for end in self._ends]

    def of(self, request: Request) -> RequestKeys:
        """The keys of a request as the proxy would make them."""
        affinity = self.affinity(request)
        size = request.prompt_tokens * BYTES_PER_TOKEN
        keys = request.reply.keys()
        count = bisect_right(self._ends, size)
        chain = [keys[at] & _WORD for at in self._at[:count]]
        return affinity._replace(chain=chain, ends=self._ends[:count], prompt_bytes=size)

    def affinity(self, request: Request) -> RequestKeys:
        """Requests with one user or one head are asked about once."""
        head = request.user or _head(request.reply)
        found = self._known.get(head)
        if found is None:
            body: dict[str, object] = {"model": _MODEL}
            if isinstance(head, str):
                body["user"] = head
            else:
                body["messages"] = _messages(head)
            found = self._rule.keys({}, Shape.CHAT, Asked(_MODEL, True, body), "")
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[head] = found
        return found


Head = tuple[tuple[str, int, int], ...]


def _head(reply: Prompt) -> Head:
    """The first parts of the prompt, as far as a key made of its head can see."""
    head: list[tuple[str, int, int]] = []
    seen = 0
    for part in reply.parts()[:-1]:
        if seen >= _HEAD_TOKENS:
            break
        tokens = min(part.tokens, _HEAD_TOKENS)
        head.append((part.role, part.seed, tokens))
        seen += tokens
    return tuple(head)


def _messages(head: Head) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for role, seed, tokens in head:
        text = text_of(seed, tokens)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += text
        else:
            messages.append({"role": role, "content": text})
    return messages


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
        keys = Keys(sources)
        for number in range(replicas):
            if policy == OMNISCIENT:
                self._choosers.append(Omniscient(self._engines, spec.profile))
            else:
                rand = Random(f"router {seed} {number}")
                made = make_policy(policy, defaults.BOUNDED_RING_LOAD_FACTOR, defaults.BOUNDED_RING_FLOOR)
                self._replicas.append(Replica(made, spec.engines, rand, keys, tuning or Tuning()))
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
        next_scrape_s = _SCRAPE_S
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
                next_scrape_s += _SCRAPE_S
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
