"""What every policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar, Protocol

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.view import FleetView

__all__ = ["Policy", "Rand", "by_load"]


class Rand(Protocol):
    """The random source: `random.Random` in the proxy, a seeded or scripted one in replay and tests."""

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""


class Policy(ABC):
    """Chooses one backend of a pool. `needs` says which of a request's keys it reads."""

    __slots__ = ()
    name: ClassVar[str]
    needs: ClassVar[Needs] = Needs.NOTHING

    @abstractmethod
    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        """A backend that is available and whose slot is not in `tried`; None if there is none."""


def by_load(view: FleetView, tried: Collection[int], reason: str) -> Decision | None:
    """The least loaded backend for its weight, equal ones in turn."""
    members = view.usable(tried)
    if members:
        return Decision(view.slots[view.take_turn(view.least_loaded(members))], reason)
    return last_resort(view, tried, reason)


def last_resort(view: FleetView, tried: Collection[int], reason: str) -> Decision | None:
    """A backend of weight 0, which serves only when no other can."""
    member = view.last_resort(tried)
    return None if member is None else Decision(view.slots[member], reason)
