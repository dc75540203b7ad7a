"""The fleet: flat arrays by slot, and the few ways they change.

Owns every count and every fact about a backend that changes while the proxy runs. Nothing else writes the
arrays. What is more than a few lines is in a part of its own: `members` (who is in which slot), `pools` (who
serves what), `health` (who may be sent requests), `books` (what they were given).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stickyroute.fleet.books import Books
from stickyroute.fleet.health import Event, HealthBook, HealthRules, Outcome
from stickyroute.fleet.lease import Lease
from stickyroute.fleet.listed import Listed
from stickyroute.fleet.members import Members
from stickyroute.fleet.plan import Applied, Plan
from stickyroute.fleet.pools import Pool, Pools
from stickyroute.fleet.sample import Sample
from stickyroute.fleet.spec import Backend, BackendSpec
from stickyroute.fleet.states import BackendState, Operator
from stickyroute.fleet.tuning import Tuning
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from stickyroute.routing.loads import Loads
from stickyroute.routing.ring import Points

__all__ = ["Fleet"]

_START_JITTER_S = 1.0


class Fleet:
    """The backends of `specs`, in that order, until `apply` changes them; `vnodes` is the number of ring points per
    unit of weight, `tuning` where learning starts, `rules` when a backend is out.

    `loads` is what policies see. `in_flight` (requests) and `available` (0 or 1) are indexed by slot, for
    others to read; they grow in place. A slot without a member counts as available. Every backend is presumed
    well until something says otherwise. Raises ValueError for a name given twice.
    """

    def __init__(
        self,
        specs: Sequence[BackendSpec],
        vnodes: int,
        tuning: Tuning | None = None,
        rules: HealthRules | None = None,
    ) -> None:
        tuning = tuning if tuning is not None else Tuning()
        count = len(specs)
        self._books = Books(count, tuning)
        self.loads: Loads = self._books.loads
        self.in_flight = self.loads.in_flight
        self.available = bytearray(b"\x01" * count)
        self._limits: list[int] = [0] * count
        self._health = HealthBook(self.available, self._limits, rules if rules is not None else HealthRules())
        self._members = Members(self.in_flight)
        self._listed = Listed()
        self._samples: list[Sample | None] = [None] * count
        self._sampled_s = array("d", [0.0] * count)
        self._drained_from: list[int] = [0] * count
        self._points = Points(vnodes)
        self._pools = Pools(self._points, self.loads, self.available, tuning.bytes_per_token)
        self.generation = 0
        self._now_s = 0.0
        self.apply(self.plan(specs), 0.0)

    # Which backends.

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The present members, by ascending slot. Not to be indexed by slot: see `at`."""
        return self._members.present

    def at(self, slot: int) -> Backend:
        """Who is in a slot; also one that was removed, until the slot is used again."""
        return self._members.at(slot)

    def find(self, name: str) -> Backend | None:
        """The present backend of that name."""
        return self._members.find(name)

    def plan(self, specs: Sequence[BackendSpec]) -> Plan:
        """What it would mean to have these backends instead. Changes nothing.

        Raises ValueError for a name given twice or a negative weight.
        """
        order = [backend.name for backend in self.backends]
        places = self._members.places(specs)
        by_slot = sorted(zip(places, specs, strict=True), key=lambda pair: pair[0])
        before = self._pools.ring
        assert list(before.members) == order
        return Plan(
            [spec for _, spec in by_slot], [backend.spec for backend in self.backends], before, self._points
        )

    def apply(self, plan: Plan, now_s: float) -> Applied:
        """Make the plan's backends the members, in one go.

        Who keeps the name keeps slot, keys, operator's state and all that was learned; another address counts as
        a restart. One that was removed finishes what it has in flight.
        """
        ring = plan.ring
        places = self._members.places(plan.specs)
        if sorted(places) != places:
            # Others were applied since the plan was made.
            order = sorted(range(len(places)), key=places.__getitem__)
            return self.apply(self.plan([plan.specs[i] for i in order]), now_s)
        before = {backend.name: backend for backend in self.backends}
        backends = [Backend(slot, spec) for slot, spec in zip(places, plan.specs, strict=True)]
        added, changed = [], []
        slots = max([len(self._members), *(slot + 1 for slot in places)], default=0)
        self._grow(slots)
        for backend in backends:
            old = before.pop(backend.name, None)
            if old is None:
                self._join(backend, now_s)
                added.append(backend)
            elif old.spec != backend.spec:
                self._change(old.spec, backend, now_s)
                changed.append(backend)
        removed = tuple(before.values())
        if not (added or changed or removed):
            return Applied((), (), ())
        self._members.put(backends)
        self.generation += 1
        self._pools.place(self.backends, ring, self._listed.served)
        self._health.place(
            {backend.slot: backend.name for backend in backends},
            {backend.slot: backend.spec.max_in_flight for backend in backends},
            self._pools.groups(),
        )
        return Applied(tuple(added), removed, tuple(changed))

    def pool(self, model: str | None) -> Pool | None:
        """The backends that serve `model`, for None all. None when everybody's models are known, none is it.

        A backend whose models are unknown is held to serve any.
        """
        return self._pools.find(model)

    @property
    def many_pools(self) -> bool:
        """Whether the model of a request makes a difference."""
        return self._pools.many

    # Requests in flight.

    def settle(self, now_s: float) -> None:
        """Bring backlogs up to date. Call it before a choice; without it they are a little behind."""
        self._books.settle(now_s)

    def lease(
        self,
        slot: int,
        keys: RequestKeys = NO_KEYS,
        now_s: float = 0.0,
        pool: Pool | None = None,
        streams: bool = True,
    ) -> Lease | None:
        """A place on the backend in `slot`, to release on every exit; None when `max_in_flight` are taken, or
        while it is let in for one request at a time and has that one.

        The request counts as dispatched at `now_s`. `keys` say how much the backend has to compute for it;
        `streams` that its first token will be seen.
        """
        in_flight = self.in_flight[slot]
        if in_flight >= self._limits[slot] and not self._health.admits(slot, in_flight, now_s):
            return None
        return Lease(self._books, slot, keys, None if pool is None else pool.view, now_s, streams)

    # What is heard of them.

    def record_sample(self, slot: int, sample: Sample, now_s: float) -> None:
        """What a look at the backend's metrics said. A start time that moved, or a sum that fell, is a restart:
        nothing is cached there any more."""
        before, self._samples[slot] = self._samples[slot], sample
        self._sampled_s[slot] = now_s
        books = self._books
        if before is not None and _restarted(before, sample):
            books.record_restart(slot)
            self._health.restarted(slot, now_s)
        if sample.capacity_tokens is not None:
            books.record_capacity(slot, sample.capacity_tokens)
        elif sample.blocks is not None and sample.block_size_tokens is not None:
            books.record_capacity(slot, sample.blocks * sample.block_size_tokens)
        if sample.kv_utilization is not None:
            books.record_kv(slot, sample.kv_utilization)

    def sample(self, slot: int) -> tuple[Sample, float] | None:
        """The last sample of a backend and when it was taken; it may be old. None if there never was one."""
        sample = self._samples[slot]
        return None if sample is None else (sample, self._sampled_s[slot])

    def record_probe(self, slot: int, ok: bool, now_s: float, why: str = "") -> None:
        """A probe was answered, well or not (`why`). A refused connection is better told as an outcome."""
        self._health.probe(slot, ok, now_s, why)
        self._follow(now_s)

    def record_outcome(
        self,
        slot: int,
        outcome: Outcome,
        now_s: float,
        jitter: float,
        retry_after_s: float | None = None,
        why: str = "",
    ) -> None:
        """What became of an attempt. `jitter`: 0 to 1; `retry_after_s` is what a BUSY answer asks for."""
        self._health.outcome(slot, outcome, now_s, jitter, retry_after_s, why)
        self._follow(now_s)

    def tick(self, now_s: float) -> None:
        """Time passes: pauses end. To be called some times a second."""
        self._now_s = now_s
        self._health.tick(now_s)
        self._follow(now_s)

    def take_events(self) -> list[Event]:
        """The changes of state since the last call, for the log; kept in bounded number."""
        return self._health.take_events()

    # Reachability.

    def record_refused(self, slot: int, now_s: float, jitter: float) -> None:
        """The backend refused a connection: no requests for it until it is reachable again.

        When to look again backs off from 0.25 s to 5 s; `jitter` (0 to 1) stretches a step by up to its
        double. Refusals before that time belong to the same outage and change nothing.
        """
        self.record_outcome(slot, Outcome.CONNECT_FAILED, now_s, jitter)

    def record_reachable(self, slot: int, now_s: float | None = None) -> None:
        """The backend answered: requests may go there, and the next refusal backs off from the start."""
        now_s = self._now_s if now_s is None else now_s
        self._health.reachable(slot, now_s)
        self._follow(now_s)

    def is_refused(self, slot: int) -> bool:
        """Whether it refused connections when last tried."""
        return self._health.retry_at_s(slot) is not None

    def retry_due(self, slot: int, now_s: float) -> bool:
        """Whether it is time to look again at a backend that refused."""
        retry_at_s = self._health.retry_at_s(slot)
        return retry_at_s is not None and now_s >= retry_at_s

    def retry_in_s(self, slot: int, now_s: float) -> float | None:
        """Seconds until a backend that refused is looked at again, 0 when due; None for others."""
        retry_at_s = self._health.retry_at_s(slot)
        return None if retry_at_s is None else max(0.0, retry_at_s - now_s)

    def next_retry_s(self, now_s: float) -> float:
        """Seconds until one of those that are out may be in again; 0 if one may, or nobody is out."""
        return self._health.next_change_s(now_s) or 0.0

    # The operator.

    def drain(self, slot: int, now_s: float) -> None:
        """No more requests, other than those that only this one can answer; what runs is finished."""
        self._operate(slot, Operator.DRAINING, now_s)

    def undrain(self, slot: int, now_s: float) -> None:
        """Take requests again."""
        self._operate(slot, Operator.ACTIVE, now_s)

    def disable(self, slot: int, now_s: float) -> None:
        """No more requests of any kind; what runs is finished."""
        self._operate(slot, Operator.DISABLED, now_s)

    def enable(self, slot: int, now_s: float) -> None:
        """Take requests again."""
        self._operate(slot, Operator.ACTIVE, now_s)

    def takes_pinned(self, slot: int) -> bool:
        """Whether it may be sent what only it can answer: also while it drains."""
        return bool(self._health.pinnable[slot])

    def state(self, slot: int) -> BackendState:
        """What is known of one backend's state."""
        return self._health.state(slot, self._now_s, self.in_flight[slot], self._drained_from[slot])

    # Models.

    def record_models(self, slot: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """What the backend's `/v1/models` lists. An empty list says nothing: its models are then unknown.

        Where the configuration names the backend's models, the rows only add their fields to those.
        """
        if self._members.is_present(slot) and self._listed.record(slot, self.at(slot).spec.models, rows):
            self.generation += 1
            self._pools.rebuild(self._listed.served)
            self._health.regroup(self._pools.groups())

    def served(self, slot: int) -> tuple[str, ...] | None:
        """The names of one backend's models, None while they are unknown."""
        listed = self._listed.served[slot]
        return None if listed is None else listed.names

    def models(self) -> list[list[dict[str, Any]]]:
        """The rows of each available backend, as it listed them."""
        rows = self._listed.rows
        return [rows[backend.slot] for backend in self.backends if self.available[backend.slot]]

    # For people.

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON values, without secrets; `models` is null where they are unknown."""
        pools = self._pools
        shares = pools.ring.shares()
        return {
            "ring_fingerprint": pools.ring.fingerprint,
            "backends": [
                self._backend_state(backend, share)
                for backend, share in zip(self.backends, shares, strict=True)
            ],
            "pools": [
                {"model": name, "backends": [self.at(slot).name for slot in pool.slots]}
                for name, pool in pools.by_model.items()
            ],
        }

    def _backend_state(self, backend: Backend, share: float) -> dict[str, Any]:
        slot, spec = backend.slot, backend.spec
        served = self._listed.served[slot]
        return {
            "name": spec.name,
            "url": spec.url,
            "weight": spec.weight,
            "available": bool(self.available[slot]),
            "in_flight": self.in_flight[slot],
            "max_in_flight": spec.max_in_flight,
            "failures": self._health.refusals(slot),
            "ring_share": round(share, 4),
            "models": None if served is None else list(served.names),
        }

    # Members that come, change and go.

    def _grow(self, count: int) -> None:
        self._books.grow(count)
        self._health.grow(count)
        self._listed.grow(count)
        more = count - len(self._samples)
        if more > 0:
            self._samples += [None] * more
            self._sampled_s.extend([0.0] * more)
            self._drained_from += [0] * more

    def _join(self, backend: Backend, now_s: float) -> None:
        """Somebody new in a slot, or one that was removed and is back."""
        slot = backend.slot
        former = self._members.last(slot)
        self._health.join(slot)
        self._listed.configure(slot, backend.spec.models)
        if former is not None and former.name != backend.name:
            self._books.reset(slot)
            self._samples[slot] = None
        elif former is not None and former.spec.url != backend.spec.url:
            self._restart(slot)

    def _change(self, old: BackendSpec, backend: Backend, now_s: float) -> None:
        slot = backend.slot
        if old.url != backend.spec.url:
            self._restart(slot)
            self._health.forget(slot)
        if old.models != backend.spec.models:
            self._listed.configure(slot, backend.spec.models)

    def _restart(self, slot: int) -> None:
        self._books.record_restart(slot)
        self._samples[slot] = None

    def _operate(self, slot: int, operator: Operator, now_s: float) -> None:
        self._drained_from[slot] = self.in_flight[slot]
        self._health.operate(slot, operator, now_s)

    def _follow(self, now_s: float) -> None:
        """What a change of health means for the rest."""
        health = self._health
        if health.emptied:
            for slot in health.emptied:
                self._books.record_restart(slot)
            health.emptied.clear()
        if health.rejoined:
            health.rejoined.clear()


def _restarted(before: Sample, after: Sample) -> bool:
    if before.started_s is not None and after.started_s is not None:
        # Some engines compute it from their uptime, so it jitters.
        return abs(after.started_s - before.started_s) > _START_JITTER_S
    return (
        before.queries_tokens is not None
        and after.queries_tokens is not None
        and after.queries_tokens < before.queries_tokens
    )
