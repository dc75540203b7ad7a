"""Which keys have another home on another ring, and how many.

Owns the comparison. Where few points differ only those are looked at, else both rings are walked; either way in
steps of a few milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence

from stickyroute.routing.ring import KEYS, STEP_POINTS, Ring

__all__ = ["Moved", "moves"]

Moved = Callable[[str | None, str | None, float], None]
"""Hears of keys that move: from whom, to whom (names, None for nobody), and which part of all keys, 0 to 1."""

_FEW = 6  # one in so many points differs, or fewer


def moves(before: Ring, after: Ring, moved: Moved) -> Generator[None, None, None]:
    """Tell `moved` of all keys that `after` gives to somebody else; it may hear of a pair of names often."""
    if not before.points or not after.points:
        for name, share in zip(before.members, before.shares(), strict=True):
            if share:
                moved(name, None, share)
        for name, share in zip(after.members, after.shares(), strict=True):
            if share:
                moved(None, name, share)
        return
    differing: list[int] = []
    total = len(before.points) + len(after.points)
    stretches = total // STEP_POINTS + 1
    i = j = 0
    for stretch in range(1, stretches + 1):
        end = stretch * KEYS // stretches
        here, there = bisect_left(before.points, end, i), bisect_left(after.points, end, j)
        differing += sorted(set(before.points[i:here]).symmetric_difference(after.points[j:there]))
        i, j = here, there
        yield
    if before.contested or after.contested or _FEW * len(differing) > total:
        yield from _walk(before, after, moved)
    else:
        yield from _look(before, after, differing, moved)


def _look(before: Ring, after: Ring, differing: Sequence[int], moved: Moved) -> Generator[None, None, None]:
    """Only keys just below a point that one ring has and the other has not can have another home."""
    old, new = before.points, after.points
    for number, point in enumerate(differing, 1):
        loser, winner = before.members[before.home(point - 1)], after.members[after.home(point - 1)]
        if loser != winner:
            i, j = bisect_left(old, point), bisect_left(new, point)
            begin = max(old[i - 1] if i else 0, new[j - 1] if j else 0)
            if point > begin:
                moved(loser, winner, (point - begin) / KEYS)
        if not number % STEP_POINTS:
            yield
    # Past its last point a ring begins anew.
    loser, winner = before.members[before.owners[0]], after.members[after.owners[0]]
    begin = max(old[-1], new[-1])
    if loser != winner and begin < KEYS - 1:
        moved(loser, winner, (KEYS - begin) / KEYS)


def _walk(before: Ring, after: Ring, moved: Moved) -> Generator[None, None, None]:
    """All points of both."""
    place = {name: member for member, name in enumerate(after.members)}
    becomes = [place.get(name, -1) for name in before.members]
    old, new, old_owners, new_owners = before.points, after.points, before.owners, after.owners
    i = j = begin = done = 0
    while begin < KEYS:
        # Past its last point a ring begins anew.
        one, loser = (old[i], old_owners[i]) if i < len(old) else (KEYS, old_owners[0])
        other, winner = (new[j], new_owners[j]) if j < len(new) else (KEYS, new_owners[0])
        end = one if one < other else other
        if becomes[loser] != winner and end > begin:
            moved(before.members[loser], after.members[winner], (end - begin) / KEYS)
        i += one == end
        j += other == end
        begin = end
        done += 1
        if not done % STEP_POINTS:
            yield
