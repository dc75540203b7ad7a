"""Which backends serve a model: the pools, brought up to date when somebody's models or the members change.

Owns the map from model to pool and the rings in it. Its size is bounded by what backends report, never by
what clients ask for. A pool stays the same object as long as its model is served, so whoever holds one sees
who is in it now. Knows nothing of load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stickyroute.fleet.spec import Backend
from stickyroute.routing.loads import Loads
from stickyroute.routing.ring import Points, Ring
from stickyroute.routing.view import FleetView

__all__ = ["Models", "Pool", "Pools"]

_OTHER = "other"
"""Label of the pools that no listed model names."""


class Pool:
    """The backends of one model, in `slots`. `label` is a bounded name for metrics: a listed model, or "other".

    `view` is what policies see; it is made when the pool is first found, then kept up to date.
    """

    __slots__ = ("_view", "label", "slots", "view")

    view: FleetView

    def __init__(self, label: str) -> None:
        self.label = label
        self.slots: tuple[int, ...] = ()
        self._view: FleetView | None = None

    @property
    def found(self) -> bool:
        """Whether there is a view."""
        return self._view is not None

    def see(self, view: FleetView) -> None:
        """From now on this is what policies see."""
        self.view = self._view = view


@dataclass(frozen=True, slots=True)
class Models:
    """The models one backend serves. `adapters`: takes "model:adapter" for any adapter, as SGLang does."""

    names: tuple[str, ...]
    adapters: bool = False


class Pools:
    """Every pool of a fleet. A backend whose models are unknown (None) is in all of them."""

    def __init__(self, points: Points, loads: Loads, available: bytearray, bytes_per_token: float) -> None:
        self._points = points
        self._loads = loads
        self._available = available
        self._bytes_per_token = bytes_per_token
        self._backends: Sequence[Backend] = ()
        self._views: dict[tuple[int, ...], FleetView] = {}
        self.ring = Ring((), (), (), ())
        self.anyone = Pool(_OTHER)
        self._nobody = Pool(_OTHER)
        self._unlisted: Pool | None = None
        self.by_model: dict[str, Pool] = {}
        self._adapting: dict[str, Pool] = {}
        self.many = False
        self.place((), self.ring, ())

    def place(self, backends: Sequence[Backend], ring: Ring, served: Sequence[Models | None]) -> None:
        """These are the members now, by ascending slot; `ring` has all of them in that order."""
        self._backends = backends
        self.ring = ring
        self._views = {}
        self._points.forget_others({backend.name for backend in backends})
        self.rebuild(served)

    def rebuild(self, served: Sequence[Models | None]) -> None:
        """Make the pools anew from what each backend serves, by slot. Equal sets keep their view."""
        everyone = tuple(backend.slot for backend in self._backends)
        unknown = {slot for slot in everyone if served[slot] is None}
        slots_of: dict[str, set[int]] = {}
        adapting: dict[str, set[int]] = {}
        for slot in everyone:
            models = served[slot]
            if models is None:
                continue
            for name in models.names:
                slots_of.setdefault(name, set(unknown)).add(slot)
                if models.adapters:
                    adapting.setdefault(name, set(unknown)).add(slot)
        self.many = any(len(slots) != len(everyone) for slots in slots_of.values())
        self.by_model = self._renew(self.by_model, slots_of)
        self._adapting = self._renew(self._adapting, adapting)
        if unknown and self._unlisted is None:
            self._unlisted = Pool(_OTHER)
        if self._unlisted is not None:
            self._set(self._unlisted, unknown)
            if not unknown:
                self._unlisted = None
        self._set(self.anyone, everyone)
        self._see(self.anyone)
        used = {pool.slots for pool in self._all()}
        self._views = {slots: view for slots, view in self._views.items() if slots in used}

    def find(self, model: str | None) -> Pool | None:
        """The pool of `model`; of all backends for None; None for a model that nobody can have."""
        if model is None:
            return self.anyone
        pool = self.by_model.get(model)
        if pool is None:
            pool = self._adapting.get(model.partition(":")[0]) or self._unlisted
            if pool is None:
                # With no backend yet nobody can say which models there are not.
                return None if self._backends else self.anyone
        if not pool.found:
            self._see(pool)
        return pool

    def groups(self) -> set[tuple[int, ...]]:
        """The sets of slots that requests are spread over: of each model, or all while none is known. One that has
        not listed its models yet is in the sets of all others, and in none of its own."""
        groups = {pool.slots for pool in (*self.by_model.values(), *self._adapting.values()) if pool.slots}
        return groups or {self.anyone.slots}

    def _all(self) -> Iterable[Pool]:
        yield self.anyone
        yield from self.by_model.values()
        yield from self._adapting.values()
        if self._unlisted is not None:
            yield self._unlisted

    def _renew(self, pools: dict[str, Pool], slots_of: dict[str, set[int]]) -> dict[str, Pool]:
        renewed = {name: pools.get(name) or Pool(name) for name in slots_of}
        for name, slots in slots_of.items():
            self._set(renewed[name], slots)
        for name, pool in pools.items():
            if name not in renewed:
                self._set(pool, ())  # a request may still hold it
        return renewed

    def _set(self, pool: Pool, slots: Iterable[int]) -> None:
        pool.slots = tuple(sorted(slots))
        if pool.found:
            self._see(pool)

    def _see(self, pool: Pool) -> None:
        view = self._views.get(pool.slots)
        if view is None:
            seen = pool.view.bytes_per_token if pool.found else self._bytes_per_token
            view = self._views[pool.slots] = self._view(pool.slots, seen)
        pool.see(view)

    def _view(self, slots: tuple[int, ...], bytes_per_token: float) -> FleetView:
        ring = self.ring
        if len(slots) != len(self._backends):
            index = {backend.slot: member for member, backend in enumerate(self._backends)}
            ring = ring.only([index[slot] for slot in slots], self._points)
        return FleetView(ring, slots, ring.weights, self._loads, self._available, bytes_per_token)
