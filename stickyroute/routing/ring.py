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
from itertools import compress
from typing import TypeVar

from uhashring import HashRing
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

__all__ = ["KEYS", "STEP_POINTS", "Points", "Ring", "finish"]

STEP_POINTS = 4096
"""Points that one step looks at: a few milliseconds."""
KEYS = 1 << 64
"""How many keys there are."""
_FEW_CHANGES = 4  # one unit of weight in so many, or fewer
_LARGE = 4096  # points; smaller rings are built in no time
_PART = 16  # a part of a ring is looked up on the whole if it has at least this part (1/16) of the members


class Ring:
    """Built by `Ring.build` or `Points`. Members are known by their index in the sequence they were given in.

    `points` ascend; keys up to, not including, `points[i]` belong to `owners[i]`, those past the last to the first.
    `contested`: a point was wanted twice.
    """

    __slots__ = (
        "_placed",
        "_shares",
        "contested",
        "fingerprint",
        "members",
        "owners",
        "points",
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
        self.points = tuple(points)
        self.owners = tuple(owners)
        self.contested = contested
        self._name(members, weights, len(self.points))

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
        owners = self.owners
        at = bisect_right(self.points, key)
        if at < len(owners):
            return owners[at]
        return owners[0] if owners else -1

    def walk(self, key: int) -> Iterator[int]:
        """Every member with points once, in ring order from `key`'s home."""
        owners = self.owners
        left = self._placed
        seen = set()
        at = bisect_right(self.points, key)
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
        if self._shares is not None:
            return
        points, owners = self.points, self.owners
        owned = [0] * len(self.members)
        last = points[-1] - KEYS if points else 0
        for start in range(0, len(points), STEP_POINTS):
            stop = start + STEP_POINTS
            for point, owner in zip(points[start:stop], owners[start:stop], strict=True):
                owned[owner] += point - last
                last = point
            yield
        self._shares = tuple(part / KEYS for part in owned)

    def only(self, members: Sequence[int], points: Points) -> Ring:
        """The ring of these members alone, in this order."""
        given = [(self.members[member], self.weights[member]) for member in members]
        few = len(self.points) <= _LARGE or _PART * len(members) < len(self.members)
        # Where points collide, who loses one here may be the one to have it there.
        if few or self.contested:
            return finish(points.build(given))
        return _Part(self, members, points.vnodes)


class _Part(Ring):
    """The ring of some members, looked up on the ring of all: made in no time, where another would take long."""

    __slots__ = ("_index",)

    def __init__(self, whole: Ring, members: Sequence[int], vnodes: int) -> None:
        index = [-1] * len(whole.members)
        for place, member in enumerate(members):
            index[member] = place
        self._index = tuple(index)
        self.points = whole.points
        self.owners = whole.owners
        self.contested = False
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
        owners, index = self.owners, self._index
        left = self._placed
        seen = set()
        at = bisect_right(self.points, key)
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
        kept = [(point, self._index[owner]) for point, owner in zip(self.points, self.owners, strict=True)]
        yield
        kept = [(point, owner) for point, owner in kept if owner >= 0]
        yield
        alone = Ring(self.members, self.weights, [point for point, _ in kept], [owner for _, owner in kept])
        yield from alone.share_steps()
        self._shares = alone.shares()


class Points:
    """The points of members, remembered, and rings made of them. `vnodes` is the number per unit of weight; `point`
    says where a label lies.

    Raises ValueError for fewer than one.
    """

    __slots__ = ("_of_unit", "_point", "vnodes")

    def __init__(self, vnodes: int, point: Callable[[str], int] | None = None) -> None:
        if vnodes < 1:
            raise ValueError("vnodes must be at least 1")
        self.vnodes = vnodes
        self._point = _point if point is None else point
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
                if (names[member], unit) not in self._of_unit:
                    self._of(names[member], unit)
                    yield
                runs.append((member, self._of(names[member], unit)))
        points: list[int] = []
        owners: list[int] = []
        contested = False
        total = sum(len(run) for _, run in runs)
        stretches = total // STEP_POINTS + 1
        starts = [0] * len(runs)
        for stretch in range(1, stretches + 1):
            end = stretch * KEYS // stretches
            owner_of: dict[int, int] = {}
            count = 0
            for number, (member, run) in enumerate(runs):
                start = starts[number]
                stop = starts[number] = len(run) if end == KEYS else bisect_left(run, end, start)
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

    def change(self, before: Ring, members: Sequence[tuple[str, int]]) -> Generator[None, None, Ring]:
        """The same as `build`, of members of whom most are on the ring `before`: of what that has, what stays is
        kept in order."""
        weights = dict(members)
        had = {name: weight for name, weight in zip(before.members, before.weights, strict=True) if weight}
        fewer = [(n, u) for n, weight in had.items() for u in range(weights.get(n, 0), weight)]
        more = [(n, u) for n, weight in weights.items() for u in range(had.get(n, 0), weight)]
        if len(weights) != len(members) or min(weights.values(), default=0) < 0:
            return (yield from self.build(members))  # which says what is wrong
        if (
            not before.points
            or before.contested
            or _FEW_CHANGES * (len(fewer) + len(more)) > len(before.points) // self.vnodes
        ):
            return (yield from self.build(members))
        place = {name: member for member, (name, _) in enumerate(members)}
        gone: set[int] = set()
        for unit in fewer:
            gone.update(self._of(*unit))
            yield
        coming: list[tuple[int, int]] = []
        for name, number in more:
            coming += [(point, place[name]) for point in self._of(name, number)]
            yield
        coming.sort(reverse=True)
        index = [place.get(name, -1) for name in before.members]
        points: list[int] = []
        owners: list[int] = []
        for start in range(0, len(before.points), STEP_POINTS):
            here = list(before.points[start : start + STEP_POINTS])
            theirs = list(map(index.__getitem__, before.owners[start : start + STEP_POINTS]))
            if gone and not gone.isdisjoint(here):
                kept = [point not in gone for point in here]
                here, theirs = list(compress(here, kept)), list(compress(theirs, kept))
            last = start + STEP_POINTS >= len(before.points)
            end = KEYS if last else before.points[start + STEP_POINTS]
            while coming and coming[-1][0] < end:
                point, owner = coming.pop()
                at = bisect_left(here, point)
                if at < len(here) and here[at] == point:
                    return (yield from self.build(members))
                here.insert(at, point)
                theirs.insert(at, owner)
            points += here
            owners += theirs
            yield
        frozen = tuple(points)
        yield
        return Ring(tuple(name for name, _ in members), tuple(weights.values()), frozen, owners)

    def forget_others(self, names: Collection[str]) -> None:
        """Keep the points of these members alone."""
        for name, unit in list(self._of_unit):
            if name not in names:
                del self._of_unit[name, unit]

    def _of(self, name: str, unit: int) -> array[int]:
        """What uhashring gives a member for the `unit`th of its weight: the points after those of the ones before."""
        known = self._of_unit.get((name, unit))
        if known is not None:
            return known
        first = unit * self.vnodes

        def hash_fn(label: str) -> int:
            if first:
                number = int(label[label.rindex("-") + 1 :])
                label = f"{name}-{first + number}"
            return self._point(label)

        made = HashRing({name: 1}, hash_fn=hash_fn, vnodes=self.vnodes).get_points()
        known = self._of_unit[name, unit] = array("Q", [point for point, _ in made])
        return known


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
