"""Pools for the tests: their loads and availability are set directly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count as numbers
from itertools import islice

from stickyroute.routing.index import Index
from stickyroute.routing.kappa import Kappa
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.loads import Loads
from stickyroute.routing.ring import Points, Ring, finish
from stickyroute.routing.view import FleetView

VNODES = 64
_POINTS = Points(VNODES)  # of each member and unit of its weight, made once
NO_KEY = RequestKeys(None, "")


class Script:
    """A random source that says what the test wants, in turn."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = list(numbers)

    def random(self) -> float:
        return self._numbers.pop(0)


def pool(
    weights: Sequence[int],
    loads: Sequence[int] | None = None,
    down: Sequence[int] = (),
    slots: Sequence[int] | None = None,
) -> FleetView:
    """A pool whose member i is called "b{i}". `loads` and `down` go by slot."""
    slots = range(len(weights)) if slots is None else slots
    size = max(slots, default=-1) + 1
    in_flight = list(loads) if loads is not None else [0] * size
    capacity = [300_000.0] * size
    known = Loads(in_flight, capacity, 5e-5, Index(1024, capacity), Kappa())
    known.decode_s = 0.02
    available = bytearray(0 if slot in down else 1 for slot in range(size))
    return FleetView(_ring(tuple(weights)), slots, weights, known, available)


@cache  # a ring never changes, and building one costs more than all a test does with it
def _ring(weights: tuple[int, ...]) -> Ring:
    return finish(_POINTS.build([(f"b{i}", weight) for i, weight in enumerate(weights)]))


def key_at(view: FleetView, member: int) -> RequestKeys:
    """A key whose home is `member`."""
    return RequestKeys(next(key for key in _spread() if view.ring.home(key) == member), "test")


def spread(count: int) -> list[int]:
    """`count` keys all over the ring, the same each time."""
    return list(islice(_spread(), count))


def _spread() -> Iterator[int]:
    return ((i * 0x9E3779B97F4A7C15 + 12345) % (1 << 64) for i in numbers())
