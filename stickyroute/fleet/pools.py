"""Which backends serve a model: the pools, rebuilt whole when somebody's models change.

Owns the map from model to pool and the rings in it. Its size is bounded by what backends report, never by
what clients ask for. Knows nothing of load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stickyroute.fleet.spec import Backend
from stickyroute.routing.loads import Loads
from stickyroute.routing.ring import Ring
from stickyroute.routing.view import FleetView

__all__ = ["Models", "Pool", "Pools"]

_OTHER = "other"
"""Label of the pools that no listed model names."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The backends of one model. `label` is a bounded name for metrics: a listed model, or "other"."""

    label: str
    view: FleetView


@dataclass(frozen=True, slots=True)
class Models:
    """The models one backend serves. `adapters`: takes "model:adapter" for any adapter, as SGLang does."""

    names: tuple[str, ...]
    adapters: bool = False


class Pools:
    """Every pool of a fleet. A backend whose models are unknown (None) is in all of them."""

    def __init__(
        self,
        backends: Sequence[Backend],
        vnodes: int,
        loads: Loads,
        available: bytearray,
        served: Sequence[Models | None],
        bytes_per_token: float,
    ) -> None:
        self._backends = backends
        self._vnodes = vnodes
        self._loads = loads
        self._available = available
        self._bytes_per_token = bytes_per_token
        self._views: dict[tuple[int, ...], FleetView] = {}
        self.rebuild(served)

    def rebuild(self, served: Sequence[Models | None]) -> None:
        """Make the pools anew from what each backend serves, by slot. Equal sets keep their ring."""
        old, self._views = self._views, {}
        unknown = {slot for slot, models in enumerate(served) if models is None}
        slots_of: dict[str, set[int]] = {}
        adapting: dict[str, set[int]] = {}
        for slot, models in enumerate(served):
            for name in models.names if models is not None else ():
                slots_of.setdefault(name, set(unknown)).add(slot)
                if models is not None and models.adapters:
                    adapting.setdefault(name, set(unknown)).add(slot)
        everyone = range(len(self._backends))
        self.anyone = Pool(_OTHER, self._view(everyone, old))
        self._unlisted = Pool(_OTHER, self._view(unknown, old)) if unknown else None
        self.by_model = {name: Pool(name, self._view(slots, old)) for name, slots in slots_of.items()}
        self._adapting = {name: Pool(name, self._view(slots, old)) for name, slots in adapting.items()}
        self.many = any(pool.view is not self.anyone.view for pool in self.by_model.values())

    def find(self, model: str | None) -> Pool | None:
        """The pool of `model`; of all backends for None; None for a model that nobody can have."""
        if model is None:
            return self.anyone
        pool = self.by_model.get(model)
        if pool is None:
            pool = self._adapting.get(model.partition(":")[0]) or self._unlisted
        return pool

    def _view(self, slots: Sequence[int] | set[int], old: dict[tuple[int, ...], FleetView]) -> FleetView:
        members = tuple(sorted(slots))
        view = self._views.get(members) or old.get(members)
        if view is None:
            specs = [self._backends[slot].spec for slot in members]
            ring = Ring.build([(spec.name, spec.weight) for spec in specs], self._vnodes)
            view = FleetView(ring, members, ring.weights, self._loads, self._available, self._bytes_per_token)
        self._views[members] = view
        return view
