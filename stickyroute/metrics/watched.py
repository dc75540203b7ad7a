"""What metrics read of the fleet: as a shape, so that nothing here can change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stickyroute.fleet import Backend, BackendState, BackendWarning
from stickyroute.fleet.sample import Sample
from stickyroute.routing.loads import Loads

__all__ = ["Watched"]


class Labelled(Protocol):
    """A pool."""

    @property
    def label(self) -> str: ...


class Watched(Protocol):
    """A `fleet.Fleet`; meanings are there."""

    @property
    def backends(self) -> Sequence[Backend]: ...

    @property
    def in_flight(self) -> Sequence[int]: ...

    @property
    def available(self) -> Sequence[int]: ...

    @property
    def loads(self) -> Loads: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def changes(self) -> int: ...

    @property
    def moved_share(self) -> float: ...

    def pool(self, model: str | None) -> Labelled | None: ...

    def state(self, slot: int) -> BackendState: ...

    def sample(self, slot: int) -> tuple[Sample, float] | None: ...

    def ejections(self, slot: int) -> int: ...

    def warnings(self, slot: int) -> Sequence[BackendWarning]: ...
