"""A replay in which the fleet changes under the traffic: an engine dies, comes back empty, or is added.

Owns the events and what clients and router see of them: requests in flight on a dying engine are lost, new ones are
refused and go elsewhere at once, probes tell the router of the return. Fleet, health, keys and policy are the
product's own, in virtual time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.replay import Replay, Replica
from stickyroute.benchmark.results import Row
from stickyroute.benchmark.workloads.base import Request, Workload
from stickyroute.fleet import BackendSpec, Fleet, Lease, Outcome
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies.ring import RingOnly
from stickyroute.routing.router import Router
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.scheduler import Sequence as EngineSequence

PROBE_S = 5.0
SAMPLED_KEYS = 20_000


@dataclass(slots=True)
class Visit:
    """A user's last request."""

    at_s: float
    slot: int
    tokens: int


@dataclass(slots=True)
class Event:
    """What happened at `at_s`. `owners` are the homes of the sampled keys just before and after; `visits` each
    user's last request before, `later` their first after."""

    name: str
    at_s: float
    minimum: float = 0.0
    moved: float = 0.0
    visits: dict[str, Visit] = field(default_factory=dict)
    later: dict[str, Visit] = field(default_factory=dict)


class Drill(Replay):
    """A replay with one replica and `events`: (at_s, "lose" | "return" | "add" | "mark"). A mark changes nothing."""

    def __init__(
        self, workload: Workload, policy: str, spec: FleetSpec, seed: int, events: list[tuple[float, str]]
    ) -> None:
        super().__init__(workload, policy, spec, seed)
        self._replica = self._replicas[0]
        self._choosers[0] = _Clients(self._replica, self)
        self._profile = spec.profile
        self._due = sorted(events)
        self._probe_s = PROBE_S
        self._placed: list[dict[EngineSequence, None]] = [{} for _ in self._engines]
        self._visits: dict[str, Visit] = {}
        self._random = Random(f"drill {seed}")
        self.dead: set[int] = set()
        self.events: list[Event] = []

    @property
    def rows(self) -> list[Row]:
        """One for each request that is over."""
        return self._rows

    def visited(self, request: Request, slot: int, now_s: float) -> None:
        """A user's request was sent somewhere."""
        visit = Visit(now_s, slot, request.prompt_tokens + request.output_tokens)
        if self.events:
            self.events[-1].later.setdefault(request.user, visit)
        self._visits[request.user] = visit

    def submitted(self, slot: int, sequence: EngineSequence) -> None:
        """An engine has taken a request."""
        self._placed[slot][sequence] = None

    def _advance(self, now_s: float) -> None:
        while (self._due and self._due[0][0] <= now_s) or self._probe_s <= now_s:
            if self._due and self._due[0][0] <= self._probe_s:
                at_s, name = self._due.pop(0)
                super()._advance(at_s)
                self._happen(name, at_s)
            else:
                super()._advance(self._probe_s)
                for backend in self._replica.fleet.backends:
                    well = backend.slot not in self.dead
                    self._replica.fleet.record_probe(backend.slot, well, self._probe_s)
                self._probe_s += PROBE_S
        super()._advance(now_s)

    def _finish(self, slot: int, sequence: EngineSequence) -> None:
        del self._placed[slot][sequence]
        super()._finish(slot, sequence)

    def _happen(self, name: str, at_s: float) -> None:
        fleet = self._replica.fleet
        event = Event(name, at_s, visits=dict(self._visits))
        before = _owners(fleet)
        if name == "lose":
            self.dead.add(0)
            for sequence in self._placed[0]:
                owner = sequence.owner
                if owner.lease is not None:
                    owner.lease.release()
                self._rows.append(
                    Row(
                        sequence.arrived_s,
                        sequence.prompt_tokens,
                        None,
                        0,
                        None,
                        None,
                        backend=0,
                        error="lost",
                    )
                )
            self._placed[0] = {}
            self._engines[0] = Engine(self._profile)
            fleet.record_outcome(0, Outcome.CONNECT_FAILED, at_s, self._random.random())
            event.minimum = before.count(0) / len(before)
        elif name == "return":
            self.dead.discard(0)
            fleet.record_probe(0, True, at_s)
            event.minimum = _owners(fleet).count(0) / len(before)
        elif name == "add":
            slot = len(self._engines)
            self._engines.append(Engine(self._profile))
            self._placed.append({})
            self._counts.append(0)
            spec = BackendSpec(f"gpu-{slot}", "http", "127.0.0.1", 8000 + slot)
            plan = fleet.plan([*(backend.spec for backend in fleet.backends), spec])
            fleet.apply(plan, at_s)
            event.minimum = plan.minimum_share
            pool = fleet.pool(None)
            assert pool is not None  # None stands for all backends
            self._replica.keys.move(pool.view.slots)
        after = _owners(fleet)
        event.moved = sum(one != other for one, other in zip(before, after, strict=True)) / len(before)
        self.events.append(event)


class _Clients:
    """Sends as the proxy does: who refuses is told to the fleet, and the request goes elsewhere."""

    def __init__(self, replica: Replica, drill: Drill) -> None:
        self._replica = replica
        self._drill = drill

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        fleet, drill = self._replica.fleet, self._drill
        pool = fleet.pool(None)
        assert pool is not None  # None stands for all backends
        keys = self._replica.keys.of(request)
        fleet.settle(now_s)
        tried: list[int] = []
        while True:
            decision = self._replica.router.route(keys, pool.view, tried)
            assert decision is not None  # only one is ever down
            if decision.slot not in drill.dead:
                break
            fleet.record_outcome(decision.slot, Outcome.CONNECT_FAILED, now_s, 0.5)
            tried.append(decision.slot)
        drill.visited(request, decision.slot, now_s)
        return decision.slot, decision.reason, fleet.lease(decision.slot, keys, now_s, pool)

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        self._drill.submitted(slot, sequence)


def _owners(fleet: Fleet) -> list[int]:
    """The homes of some keys, as the ring and who is available have it."""
    pool = fleet.pool(None)
    assert pool is not None  # None stands for all backends
    router, rand = Router(RingOnly(), Random(0)), Random("sampled keys")
    found = []
    for _ in range(SAMPLED_KEYS):
        decision = router.route(RequestKeys(rand.getrandbits(64), "header"), pool.view)
        found.append(-1 if decision is None else decision.slot)
    return found


def hit_rate(rows: list[Row], begin_s: float, end_s: float) -> float:
    """Prompt tokens that were cached, of all that came in that time."""
    asked = cached = 0
    for row in rows:
        if begin_s <= row.at_s < end_s and row.cached_tokens is not None:
            asked += row.prompt_tokens
            cached += row.cached_tokens
    return cached / asked if asked else math.nan


def recovered_s(rows: list[Row], at_s: float, end_s: float, wanted: float) -> float:
    """Seconds after `at_s` from which on three times 10 s in a row have a hit rate of at least `wanted`; infinite if
    there are none before `end_s`."""
    begin_s = at_s
    while begin_s + 30 <= end_s:
        if all(
            hit_rate(rows, one_s, one_s + 10) >= wanted for one_s in (begin_s, begin_s + 10, begin_s + 20)
        ):
            return begin_s - at_s
        begin_s += 1.0
    return math.inf


def prefill_s(spec: FleetSpec, tokens: int) -> float:
    """What one engine takes to compute so many tokens, in steps of thousands."""
    time = spec.profile.time
    return tokens * (time.prefill_token_s + time.base_s / 8192)


def asked_again_s(event: Event, users: list[str]) -> float:
    """When 95 % of those users had sent a request after the event, in seconds; of those that ever did."""
    asked = sorted(event.later[user].at_s - event.at_s for user in users if user in event.later)
    return asked[math.ceil(0.95 * len(asked)) - 1] if asked else 0.0
