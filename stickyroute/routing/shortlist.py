"""A few backends of a large pool that are worth a look for one request, as a view of their own.

Owns who they are: those that hold most of the prompt, and the first on the ring from the key's candidates on, which
are others for every key, so that looking at those alone balances nearly as well as looking at all (the power of
choices). What a decision costs then does not go with the size of the pool. Knows no cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from stickyroute.routing.keys import RequestKeys, candidate_keys
from stickyroute.routing.ring import Ring
from stickyroute.routing.view import FleetView, Groups, picker

__all__ = ["FEW", "Part", "shortlist"]

FEW: Final = 64
"""Backends: in a pool of no more all are looked at."""

_HOLDERS: Final = 16
_WALKED: Final = 16
_PLACES: Final = 16


class Part(FleetView):
    """Some members of a view, numbered anew, with `groups` as the whole has them."""

    __slots__ = ("_groups",)

    def __init__(self, whole: FleetView, members: Sequence[int], groups: Groups) -> None:
        self.slots = tuple([whole.slots[member] for member in members])
        self.weights = tuple([whole.weights[member] for member in members])
        self.relative_weights = tuple([whole.relative_weights[member] for member in members])
        self.even = whole.even
        self.loads = whole.loads
        self.in_flight = whole.in_flight
        self.available = whole.available
        self.bytes_per_token = whole.bytes_per_token
        self.size = whole.size
        self.placed = tuple(range(len(members)))
        self.unplaced = ()
        self.total_weight = sum(self.weights)
        self._pick = picker(self.slots)
        self.credits = [0.0] * len(self.slots)
        self.ring = _PartRing(whole.ring, members)
        self._groups = groups

    def groups(self, chain: Sequence[int]) -> Groups:
        """Of the whole view, for the prompt that this part was made for."""
        return self._groups


class _PartRing(Ring):
    """The whole's ring, which tells members by their numbers in the part. It has no points of its own."""

    __slots__ = ("_numbers", "_ring")

    def __init__(self, ring: Ring, members: Sequence[int]) -> None:
        self._ring = ring
        self._numbers = {member: number for number, member in enumerate(members)}

    def home(self, key: int) -> int:
        """-1 where it is not in the part."""
        return self._numbers.get(self._ring.home(key), -1)

    def walk(self, key: int) -> Iterator[int]:
        """All of the part, which was put together in the order of the key that it was made for."""
        return iter(range(len(self._numbers)))


def shortlist(keys: RequestKeys, view: FleetView, tried: Collection[int], seed: int) -> Part:
    """Of the members that have a weight, are available and not in `tried` (slots), those worth a look.

    `seed` stands for the key of a request that has none. There must be one such member at least.
    """
    slots, weights, available = view.slots, view.weights, view.available
    key = keys.affinity if keys.affinity is not None else seed
    groups = view.groups(keys.chain)
    places = candidate_keys(key, min(keys.spread, _PLACES))[1:]
    found: dict[int, None] = {}

    def take(members: Iterator[int], most: int) -> None:
        for member in members:
            slot = slots[member]
            if weights[member] and available[slot] and slot not in tried:
                found[member] = None
                if len(found) >= most:
                    return

    take(view.ring.walk(key), _WALKED)
    take(map(view.ring.home, places), len(found) + len(places))
    most = len(found) + _HOLDERS
    for _, holders in groups:
        begin = key % len(holders)  # of many, others for each key
        take(map(view.member, chain(islice(holders, begin, None), islice(holders, begin))), most)
        if len(found) >= most:
            break
    return Part(view, list(found), groups)
