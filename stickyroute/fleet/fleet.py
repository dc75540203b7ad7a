"""The fleet: flat arrays by slot, and the few ways they change.

Owns every count and every fact about a backend that changes while the proxy runs. Nothing else writes the
arrays. What is more than a few lines is in a part of its own: `members` (who is in which slot), `pools` (who
serves what), `health` (who may be sent requests), `books` (what they were given).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stickyroute.fleet.lease import Lease
from stickyroute.fleet.listed import Listed
from stickyroute.fleet.members import Members
from stickyroute.fleet.plan import Applied, Plan
from stickyroute.fleet.pools import Pool, Pools
from stickyroute.fleet.rules import FleetRules
from stickyroute.fleet.snapshot import snapshot
from stickyroute.fleet.spec import Backend, BackendSpec
from stickyroute.fleet.standing import Standing
from stickyroute.fleet.tuning import Tuning
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from stickyroute.routing.ring import Points

__all__ = ["Fleet"]


class Fleet(Standing):
    """The backends of `specs`, in that order, until `apply` changes them; `vnodes` is the number of ring points per
    unit of weight, `tuning` where learning starts, `rules` when a backend is out and how much room it has.

    `loads` is what policies see. `in_flight` (requests) and `available` (0 or 1) are indexed by slot, for
    others to read; they grow in place. A slot without a member counts as available. Every backend is presumed
    well until something says otherwise. `generation` grows with each change of members or of the models they list,
    `changes` counts those of members or weights since the start, `moved_share`
    sums up the parts of all keys, 0 to 1, that they gave another home. Raises ValueError for a name given twice.
    """

    def __init__(
        self,
        specs: Sequence[BackendSpec],
        vnodes: int,
        tuning: Tuning | None = None,
        rules: FleetRules | None = None,
    ) -> None:
        tuning = tuning if tuning is not None else Tuning()
        super().__init__(len(specs), tuning, rules if rules is not None else FleetRules())
        self._members = Members(self.in_flight)
        self._listed = Listed()
        self._points = Points(vnodes)
        self._pools = Pools(self._points, self.loads, self.available, tuning.bytes_per_token)
        self.generation = 0
        self.changes = 0
        self.moved_share = 0.0
        self.apply(self.plan(specs), 0.0)

    # Which backends.

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The present members, by ascending slot. Not to be indexed by slot: see `at`."""
        return self._members.present

    def at(self, slot: int) -> Backend:
        """Who is in a slot; also one that was removed, until the slot is used again."""
        return self._members.at(slot)

    @property
    def fingerprint(self) -> str:
        """Two replicas with equal ones agree on every home; hexadecimal."""
        return self._pools.ring.fingerprint

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

    def apply(self, plan: Plan, now_s: float, *, serving: bool = True) -> Applied:
        """Make the plan's backends the members, in one go.

        Who keeps the name keeps slot, keys, operator's state and all that was learned; another address counts as
        a restart. One that was removed finishes what it has in flight. Who comes while nobody is `serving` yet
        begins with its whole share: it joins no running fleet.
        """
        ring = plan.ring
        places = self._members.places(plan.specs)
        if sorted(places) != places:
            # Others were applied since the plan was made.
            order = sorted(range(len(places)), key=places.__getitem__)
            return self.apply(self.plan([plan.specs[i] for i in order]), now_s, serving=serving)
        before = {backend.name: backend for backend in self.backends}
        backends = [Backend(slot, spec) for slot, spec in zip(places, plan.specs, strict=True)]
        added, changed = [], []
        slots = max([len(self._members), *(slot + 1 for slot in places)], default=0)
        self._grow(slots)
        self._listed.grow(slots)
        for backend in backends:
            old = before.pop(backend.name, None)
            if old is None:
                self._join(backend, now_s, serving)
                added.append(backend)
            elif old.spec != backend.spec:
                self._change(old.spec, backend, now_s)
                changed.append(backend)
        removed = tuple(before.values())
        if not (added or changed or removed):
            return Applied((), (), ())
        if self.generation:
            self.changes += 1
            self.moved_share += plan.moved_share
        self._members.put(backends)
        self._books.present = max(1, len(backends))
        for backend in removed:
            self._rooms.forget(backend.slot)
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
        if self.in_flight[slot] >= self._limits[slot] and not self._health.admits(slot, now_s):
            return None
        if keys.affinity is not None:
            self._recent.touch(keys.affinity, slot, now_s)
        return Lease(self._books, slot, keys, None if pool is None else pool.view, now_s, streams)

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

    def pool_slots(self) -> dict[str, tuple[int, ...]]:
        """For each listed model who serves it."""
        return {name: pool.slots for name, pool in self._pools.by_model.items()}

    @property
    def pool_count(self) -> int:
        """How many models are listed."""
        return len(self._pools.by_model)

    # For people.

    def leaving(self) -> tuple[Backend, ...]:
        """Those that were removed and still have requests in flight."""
        return self._members.leaving()

    def snapshot(self, now_s: float | None = None) -> dict[str, Any]:
        """The state as JSON values, without secrets; what is not known is null."""
        return snapshot(self, self._now_s if now_s is None else now_s)

    # Members that come, change and go.

    def _join(self, backend: Backend, now_s: float, serving: bool) -> None:
        """Somebody new in a slot, or one that was removed and is back."""
        slot = backend.slot
        former = self._members.last(slot)
        self._listed.configure(slot, backend.spec.models)
        self._health.join(slot, now_s)
        if former is not None and former.name != backend.name:
            self._blank(slot)
        elif former is not None and former.spec.url != backend.spec.url:
            self._restart(slot)
        if serving and self.backends:  # who comes first has nobody to leave the load to
            self._rooms.join(slot, now_s)

    def _change(self, old: BackendSpec, backend: Backend, now_s: float) -> None:
        slot = backend.slot
        if old.url != backend.spec.url:
            self._restart(slot)
            self._health.forget(slot, now_s)
            self._rooms.join(slot, now_s)
        if old.models != backend.spec.models:
            self._listed.configure(slot, backend.spec.models)
