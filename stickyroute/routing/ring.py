"""The consistent-hash ring: which member of a pool a key belongs to, and who comes after.

Owns the placement, which depends on the names, weights and number of points alone: not on the order of
members, on history, on the process or on the machine. uhashring makes the points; lookups are a bisection
over a flat tuple. A ring never changes: build another. Knows nothing of load or availability.

A ring of hundreds of members has hundreds of thousands of points, so `Points` remembers those of each member
and builds in steps of a few milliseconds, between which a loop may do other things.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import TypeVar

from uhashring import HashRing
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

__all__ = ["Points", "Ring", "finish"]

_STEP_POINTS = 4096  # merged in one step: a few milliseconds
_KEYS = 1 << 64
_LARGE = 4096  # points; smaller rings are built in no time
_PART = 16  # a part of a ring is looked up on the whole if it has at least this part (1/16) of the members


class Ring:
    """Built by `Ring.build` or `Points`. Members are known by their index in the sequence they were given in."""

    __slots__ = (
        "_contested",
        "_owners",
        "_placed",
        "_points",
        "_shares",
        "fingerprint",
        "members",
        "weights",
    )

    def __init__(
        self,
        members: tuple[str, ...],
        weights: tuple[int, ...],
        points: Sequence[int],
        owners: Sequence[int],
        contested: bool = False,
    ) -> None:
        self._points = tuple(points)
        self._owners = tuple(owners)
        self._contested = contested
        self._name(members, weights, len(self._points))

    @classmethod
    def build(cls, members: Sequence[tuple[str, int]], vnodes: int) -> Ring:
        """A ring of (name, weight) members with `vnodes` points per unit of weight; weight 0 has none.

        Raises ValueError for a name given twice, a negative weight or fewer than one point.
        """
        return finish(Points(vnodes).build(members))

    def _name(self, members: tuple[str, ...], weights: tuple[int, ...], points: int) -> None:
        self.members = members
        self.weights = weights
        self._placed = sum(1 for weight in weights if weight)
        self._shares: tuple[float, ...] | None = None
        # Two replicas with equal fingerprints agree on every home.
        placed = sorted((name, weight) for name, weight in zip(members, weights, strict=True) if weight)
        self.fingerprint = xxh3_64_hexdigest(repr((points, placed)).encode())

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
        if self._shares is None:
            finish(self.share_steps())
        assert self._shares is not None
        return self._shares

    def share_steps(self) -> Generator[None, None, None]:
        """Find out `shares` in steps."""
        points, owners = self._points, self._owners
        owned = [0] * len(self.members)
        last = points[-1] - _KEYS if points else 0
        for start in range(0, len(points), _STEP_POINTS):
            stop = start + _STEP_POINTS
            for point, owner in zip(points[start:stop], owners[start:stop], strict=True):
                owned[owner] += point - last
                last = point
            yield
        self._shares = tuple(part / _KEYS for part in owned)

    def only(self, members: Sequence[int], points: Points) -> Ring:
        """The ring of these members alone, in this order."""
        given = [(self.members[member], self.weights[member]) for member in members]
        few = len(self._points) <= _LARGE or _PART * len(members) < len(self.members)
        # Where points collide, who loses one here may be the one to have it there.
        if few or self._contested:
            return finish(points.build(given))
        return _Part(self, members, points.vnodes)

    def moves(
        self, after: Ring, moved: Callable[[str | None, str | None, float], None]
    ) -> Generator[None, None, None]:
        """Tell which keys another ring gives to somebody else: `moved(from, to, share)`, names, None for nobody;
        the same pair may be told often. In steps."""
        if not self._points or not after._points:
            for name, share in zip(self.members, self.shares(), strict=True):
                if share:
                    moved(name, None, share)
            for name, share in zip(after.members, after.shares(), strict=True):
                if share:
                    moved(None, name, share)
            return
        place = {name: member for member, name in enumerate(after.members)}
        becomes = [place.get(name, -1) for name in self.members]
        old, new, old_owners, new_owners = self._points, after._points, self._owners, after._owners
        i = j = begin = done = 0
        while begin < _KEYS:
            # Past its last point a ring begins anew.
            one, loser = (old[i], old_owners[i]) if i < len(old) else (_KEYS, old_owners[0])
            other, winner = (new[j], new_owners[j]) if j < len(new) else (_KEYS, new_owners[0])
            end = one if one < other else other
            if becomes[loser] != winner and end > begin:
                moved(self.members[loser], after.members[winner], (end - begin) / _KEYS)
            i += one == end
            j += other == end
            begin = end
            done += 1
            if not done % _STEP_POINTS:
                yield


class _Part(Ring):
    """The ring of some members, looked up on the ring of all: made in no time, where another would take long."""

    __slots__ = ("_index",)

    def __init__(self, whole: Ring, members: Sequence[int], vnodes: int) -> None:
        index = [-1] * len(whole.members)
        for place, member in enumerate(members):
            index[member] = place
        self._index = tuple(index)
        self._points = whole._points
        self._owners = whole._owners
        self._contested = False
        self._name(
            tuple(whole.members[member] for member in members),
            tuple(whole.weights[member] for member in members),
            vnodes * sum(whole.weights[member] for member in members),
        )

    def home(self, key: int) -> int:
        """As of any ring."""
        return next(self.walk(key), -1)

    def walk(self, key: int) -> Iterator[int]:
        """As of any ring."""
        owners, index = self._owners, self._index
        left = self._placed
        seen = set()
        at = bisect_right(self._points, key)
        for stretch in (range(at, len(owners)), range(at)) if left else ():
            for i in stretch:
                owner = index[owners[i]]
                if owner >= 0 and owner not in seen:
                    yield owner
                    seen.add(owner)
                    left -= 1
                    if not left:
                        return

    def share_steps(self) -> Generator[None, None, None]:
        """As of any ring."""
        kept = [(point, self._index[owner]) for point, owner in zip(self._points, self._owners, strict=True)]
        yield
        kept = [(point, owner) for point, owner in kept if owner >= 0]
        yield
        alone = Ring(self.members, self.weights, [point for point, _ in kept], [owner for _, owner in kept])
        yield from alone.share_steps()
        self._shares = alone.shares()


class Points:
    """The points of members, remembered, and rings made of them. `vnodes` is the number per unit of weight.

    Raises ValueError for fewer than one.
    """

    __slots__ = ("_of_unit", "vnodes")

    def __init__(self, vnodes: int) -> None:
        if vnodes < 1:
            raise ValueError("vnodes must be at least 1")
        self.vnodes = vnodes
        self._of_unit: dict[tuple[str, int], array[int]] = {}

    def build(self, members: Sequence[tuple[str, int]]) -> Generator[None, None, Ring]:
        """A ring of (name, weight) members, in steps; what the generator returns is the ring.

        Raises ValueError for a name given twice or a negative weight.
        """
        names = tuple(name for name, _ in members)
        weights = tuple(weight for _, weight in members)
        if len(set(names)) != len(names):
            raise ValueError("members must have different names")
        if any(weight < 0 for weight in weights):
            raise ValueError("weights must not be negative")
        # Where points of two members collide, uhashring keeps the last: in this order, the smallest name.
        order = sorted(range(len(names)), key=names.__getitem__, reverse=True)
        runs: list[tuple[int, array[int]]] = []
        for member in order:
            for unit in range(weights[member]):
                known = self._of_unit.get((names[member], unit))
                if known is None:
                    known = self._of_unit[names[member], unit] = self._points(names[member], unit)
                    yield
                runs.append((member, known))
        points: list[int] = []
        owners: list[int] = []
        contested = False
        total = sum(len(run) for _, run in runs)
        stretches = total // _STEP_POINTS + 1
        starts = [0] * len(runs)
        for stretch in range(1, stretches + 1):
            end = stretch * _KEYS // stretches
            owner_of: dict[int, int] = {}
            count = 0
            for number, (member, run) in enumerate(runs):
                start = starts[number]
                stop = starts[number] = len(run) if end == _KEYS else bisect_left(run, end, start)
                count += stop - start
                owner_of.update(dict.fromkeys(run[start:stop], member))
            here = sorted(owner_of)
            contested |= len(here) < count
            points += here
            owners += map(owner_of.__getitem__, here)
            yield
        frozen = tuple(points)
        yield
        return Ring(names, weights, frozen, owners, contested)

    def forget_others(self, names: Collection[str]) -> None:
        """Keep the points of these members alone."""
        for name, unit in list(self._of_unit):
            if name not in names:
                del self._of_unit[name, unit]

    def _points(self, name: str, unit: int) -> array[int]:
        """What uhashring gives a member for the `unit`th of its weight: the points after those of the ones before."""
        first = unit * self.vnodes

        def hash_fn(label: str) -> int:
            if first:
                number = int(label[label.rindex("-") + 1 :])
                label = f"{name}-{first + number}"
            return _point(label)

        made = HashRing({name: 1}, hash_fn=hash_fn, vnodes=self.vnodes).get_points()
        return array("Q", [point for point, _ in made])


_Result = TypeVar("_Result")


def finish(steps: Generator[None, None, _Result]) -> _Result:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # what a generator returns


def _point(label: str) -> int:
    return xxh3_64_intdigest(label.encode())
