"""The consistent-hash ring: which member of a pool a key belongs to, and who comes after.

Owns the placement, which depends on the names, weights and number of points alone: not on the order of
members, on history, on the process or on the machine. uhashring makes the points; lookups are a bisection
over a flat tuple. A ring never changes: build another. Knows nothing of load or availability.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from uhashring import HashRing
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

__all__ = ["Ring"]


class Ring:
    """Built by `Ring.build`. Members are known by their index in the sequence they were given in."""

    __slots__ = ("_owners", "_placed", "_points", "fingerprint", "members", "weights")

    def __init__(
        self,
        members: tuple[str, ...],
        weights: tuple[int, ...],
        points: tuple[int, ...],
        owners: tuple[int, ...],
    ) -> None:
        self.members = members
        self.weights = weights
        self._points = points
        self._owners = owners
        self._placed = sum(1 for weight in weights if weight)
        # Two replicas with equal fingerprints agree on every home.
        placed = sorted((name, weight) for name, weight in zip(members, weights, strict=True) if weight)
        self.fingerprint = xxh3_64_hexdigest(repr((len(points), placed)).encode())

    @classmethod
    def build(cls, members: Sequence[tuple[str, int]], vnodes: int) -> Ring:
        """A ring of (name, weight) members with `vnodes` points per unit of weight; weight 0 has none.

        Raises ValueError for a name given twice, a negative weight or fewer than one point.
        """
        names = tuple(name for name, _ in members)
        weights = tuple(weight for _, weight in members)
        if len(set(names)) != len(names):
            raise ValueError("members must have different names")
        if vnodes < 1 or any(weight < 0 for weight in weights):
            raise ValueError("weights must not be negative and vnodes must be at least 1")
        index = {name: i for i, name in enumerate(names)}
        # Where points of two members collide, uhashring keeps the last: in this order, the smallest name.
        placed = {name: weights[index[name]] for name in sorted(names, reverse=True) if weights[index[name]]}
        made = HashRing(placed, hash_fn=_point, vnodes=vnodes).get_points() if placed else []
        return cls(names, weights, tuple(point for point, _ in made), tuple(index[name] for _, name in made))

    def home(self, key: int) -> int:
        """The index of the member that owns `key`; -1 on a ring without points."""
        owners = self._owners
        at = bisect_right(self._points, key)
        if at < len(owners):
            return owners[at]
        return owners[0] if owners else -1

    def walk(self, key: int) -> Iterator[int]:
        """Every member with points once, in ring order from `key`'s home."""
        owners = self._owners
        left = self._placed
        seen = set()
        at = bisect_right(self._points, key)
        for stretch in (range(at, len(owners)), range(at)):
            for i in stretch:
                owner = owners[i]
                if owner not in seen:
                    yield owner
                    seen.add(owner)
                    left -= 1
                    if not left:
                        return

    def shares(self) -> tuple[float, ...]:
        """The part of all keys, 0 to 1, that each member owns."""
        points, owners = self._points, self._owners
        owned = [0] * len(self.members)
        for i, owner in enumerate(owners):
            owned[owner] += (points[i] - points[i - 1]) % (1 << 64) if len(points) > 1 else 1 << 64
        return tuple(part / (1 << 64) for part in owned)


def _point(label: str) -> int:
    return xxh3_64_intdigest(label.encode())
