"""The anchor of a request without a key: the block at which its prompt stops being everybody's.

Owns the count of recent traffic and the rule. A system prompt is on every request, so its hash is no key. The
anchor is the hash of the shallowest block that carries less than about 1/(2N) of the recent traffic of a pool
of N backends: a document or a conversation keeps its home, the common head does not collapse the fleet. A
block is common from twice that share on and until it falls below half of it, so anchors do not flutter. With few
requests the same holds with the error of small counts: three that share a block are enough where that is far
above its part, as it is with 8 backends and no other traffic; and what became common by chance soon ceases to be.

Counts decay with the number of requests, not with time, so a quiet night forgets nothing. They live in one
fixed array, a cell for a hash: two blocks in one cell count as both, which at worst makes an anchor one block
deeper. Spans that differ on every request are masked here, and here only. There is no clock in this module.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import MutableSequence, Sequence
from itertools import filterfalse, islice
from math import sqrt
from typing import Final

from xxhash import xxh3_64_intdigest

from stickyroute.routing.prefix import Prefixes, block_ends
from stickyroute.routing.volatile import LONGEST, has_volatile, masked

__all__ = ["Anchors"]

# Levels are every so many blocks: an anchor is told an eighth of its depth past where prompts part.
_LEVELS_PER_DEPTH: Final = 8
_HALF_LIFE: Final = 2048  # requests after which an old one counts half
_FEWEST: Final = 2.5  # requests with a block, at least, before it can be common: not two that came by chance
_SETTLED: Final = (
    8.0  # requests at the threshold: so many are hardly ever twice or half of what they should be
)
_EVIDENCE: Final = 16  # requests of a key before it can be said to outgrow a backend
_WEIGHT_LIMIT: Final = 1e200
_POOLS: Final = 256


_SLOTS = (
    "_counts",
    "_growth",
    "_last_pool",
    "_last_total",
    "_level_blocks",
    "_level_ends",
    "_mask",
    "_masked_bytes",
    "_totals",
    "_weight",
    "common",
)


class Anchors:
    """Counts and finds. `prefixes` cuts the prompts; `cells` is the size of the table, rounded up to a power
    of two (8 bytes each); spans are masked in the `masked_bytes` after the first, no further.
    """

    __slots__ = _SLOTS

    def __init__(
        self, prefixes: Prefixes, cells: int, masked_bytes: int, half_life: int = _HALF_LIFE
    ) -> None:
        if cells < 1 or masked_bytes < 0 or half_life < 1:
            raise ValueError("cells and half_life must be at least 1")
        size = 1 << (cells - 1).bit_length()
        self._counts: MutableSequence[float] | dict[int, float] = array("d", bytes(8 * size))
        self._mask = size - 1
        self._masked_bytes = masked_bytes
        # Instead of shrinking all that was counted, each request weighs a little more than the one before.
        self._weight = 1.0
        self._growth = 2.0 ** (1 / half_life)
        self._totals: dict[Sequence[int], list[float]] = {}  # each alone in a list, to be added to
        self._last_pool: Sequence[int] = ()
        self._last_total: list[float] | None = None
        self.common: set[int] = set()
        """Hashes of the levels that are everybody's and hold nothing volatile."""
        block, limit = prefixes.block_bytes, prefixes.limit_bytes
        self._level_ends = block_ends(block, _LEVELS_PER_DEPTH, limit)
        places = {end: index for index, end in enumerate(prefixes.ends)}
        self._level_blocks = tuple(places[end] for end in self._level_ends)

    @property
    def cells(self) -> int:
        """The size of the table."""
        return self._mask + 1

    def dry(self) -> Anchors:
        """One that answers as this one would and counts for itself alone: for what is no traffic. Valid until this
        one counts again."""
        return _DryAnchors(self)

    def record(self, pool: Sequence[int]) -> None:
        """Count a request of a pool (its backends' slots), with or without a key of its own."""
        weight = self._weight = self._weight * self._growth
        if weight > _WEIGHT_LIMIT:
            weight = self._rescale()
        if pool is self._last_pool and self._last_total is not None:  # a large fleet's takes long to look up
            self._last_total[0] += weight
            return
        total = self._totals.get(pool)
        if total is None:
            self._totals[pool] = total = [self._inherited(pool)]
        total[0] += weight
        self._last_pool, self._last_total = pool, total

    def _total(self, pool: Sequence[int]) -> float:
        if pool is self._last_pool and self._last_total is not None:
            return self._last_total[0]
        return self._totals[pool][0]

    def share(self, key: int, pool: Sequence[int]) -> float:
        """Count a request with `key`; the part of the pool's recent requests that have it, 0 to 1.

        0 as long as there were only few of them.
        """
        cell = key & self._mask
        count = self._counts[cell] = self._counts[cell] + self._weight
        if count < _EVIDENCE * self._weight:
            return 0.0
        return min(1.0, count / self._total(pool))

    def spread(self, key: int, pool: Sequence[int]) -> int:
        """Count a request with `key`; how many nested candidates it needs: 2, or 4, 8, ... where it alone
        carries more than one backend's part of the requests, so that each gets two thirds of a part at most.
        """
        share = self.share(key, pool)
        spread = 2
        if not share:
            return spread
        backends = len(pool)
        parts = 1.5 * share * backends
        while spread < parts and spread < backends:
            spread *= 2
        return spread

    def find(self, text: bytes, chain: Sequence[int], root: int, pool: Sequence[int]) -> tuple[int, bool]:
        """Count a request without a key, already recorded for its pool, and find its anchor.

        `chain` is `text` hashed by the prefixes from `root`. Also whether the anchor is a block that others
        can share; False where all whole blocks are common, and the anchor is the whole prompt's hash.
        """
        ends, mask, weight, counts, common = (
            self._level_ends,
            self._mask,
            self._weight,
            self._counts,
            self.common,
        )
        levels = [chain[block] for block in self._level_blocks[: bisect_right(ends, len(text))]]
        for level in levels:
            counts[level & mask] += weight
        low, high = self._bounds(pool)
        first = next(filterfalse(common.__contains__, levels), None)
        depth = len(levels) if first is None else levels.index(first)
        # A block has at most what the one before it has, so the deepest cools first.
        if depth and counts[levels[depth - 1] & mask] < low:
            while depth and counts[levels[depth - 1] & mask] < low:
                depth -= 1
                common.discard(levels[depth])
            return levels[depth], True
        parent = root
        begin = 0
        if depth:
            parent, begin = levels[depth - 1], ends[depth - 1]
        for level in islice(levels, depth, None):
            end = ends[depth]
            if has_volatile(text[begin : end + LONGEST], end - begin):
                return self._find_masked(text, begin, depth, parent, low, high)
            if counts[level & mask] <= high:
                return level, True
            self._make_common(level, low)
            parent, begin = level, end
            depth += 1
        rest = text[begin:]
        if has_volatile(rest[: self._masked_bytes], len(rest)):
            return self._find_masked(text, begin, depth, parent, low, high)
        return xxh3_64_intdigest(rest, parent), False

    def _find_masked(
        self, text: bytes, begin: int, depth: int, parent: int, low: float, high: float
    ) -> tuple[int, bool]:
        """The same from level `depth` on, which begins at `begin`, with volatile spans masked.

        Levels end where they do in every prompt, counted in masked bytes: what comes after a span is in the
        same place however long the span is.
        """
        ends, mask, weight, counts, common = (
            self._level_ends,
            self._mask,
            self._weight,
            self._counts,
            self.common,
        )
        end = begin + self._masked_bytes
        rest = masked(text[begin:end]) + text[end:]
        anchor: int | None = None
        at = 0
        for level_end in ends[depth:]:
            to = level_end - begin
            if to > len(rest):
                break
            parent = xxh3_64_intdigest(rest[at:to], parent)
            at = to
            count = counts[parent & mask] = counts[parent & mask] + weight
            if anchor is not None:
                continue
            if parent in common:
                if count < low:
                    common.discard(parent)
                    anchor = parent
            elif count <= high:
                anchor = parent
            else:
                self._make_common(parent, low)
        if anchor is not None:
            return anchor, True
        return xxh3_64_intdigest(rest[at:], parent), False

    def _bounds(self, pool: Sequence[int]) -> tuple[float, float]:
        """The counts at which a block ceases, and begins, to be common: half and twice 1/(2N) of traffic, nearer to
        that where it comes to few requests, and one standard deviation on top."""
        weight = self._weight
        backends = len(pool)
        if backends < 2:  # nothing to spread over
            return 0.0, float("inf")
        part = self._total(pool) / (weight * backends)
        low = max(part / 4, min(part / 2, _SETTLED))
        return low * weight, max(part + sqrt(part) + 0.5, _FEWEST) * weight

    def _make_common(self, level: int, low: float) -> None:
        common = self.common
        if len(common) >= self.cells >> 3:
            # Heads of yesterday are never asked about again, so nobody noticed that they cooled.
            counts, mask = self._counts, self._mask
            kept = {known for known in common if counts[known & mask] >= low}
            common.clear()
            if len(kept) < self.cells // 11:  # else it would be as full again at once
                common |= kept
        common.add(level)

    def _inherited(self, pool: Sequence[int]) -> float:
        """What a pool not seen before starts from: the traffic of the one most like it, which in most cases it
        replaces (a backend came or went), so that what was rare does not become common overnight."""
        totals = self._totals
        if not totals:
            return 0.0
        if len(totals) >= _POOLS:
            del totals[min(totals, key=totals.__getitem__)]
        slots = set(pool)
        return totals[max(totals, key=lambda other: (len(slots.intersection(other)), totals[other]))][0]

    def _rescale(self) -> float:
        """Once in a million requests or so: make the numbers small again."""
        scale = 1 / self._weight
        self._counts = array("d", [count * scale for count in self._counts])
        for total in self._totals.values():
            total[0] *= scale
        self._weight = 1.0
        return 1.0


class _DryAnchors(Anchors):
    """Anchors whose counts begin as another's, without a copy of the table."""

    __slots__ = ()

    def __init__(self, anchors: Anchors) -> None:
        for name in _SLOTS:
            setattr(self, name, getattr(anchors, name))
        self._counts = _Overlay(anchors._counts)
        self._totals = {pool: list(total) for pool, total in anchors._totals.items()}
        self._last_total = None
        self.common = set(anchors.common)

    def _rescale(self) -> float:
        return self._weight  # there is room for the few that are counted here


class _Overlay(dict[int, float]):
    """What was changed of a table, and the table below it."""

    __slots__ = ("_below",)

    def __init__(self, below: MutableSequence[float] | dict[int, float]) -> None:
        self._below = below

    def __missing__(self, cell: int) -> float:
        return self._below[cell]
