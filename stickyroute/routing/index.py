"""What each backend is believed to hold: block hash -> when each backend last touched that block.

A fixed-size table in flat arrays (open addressing, four ways a bucket): no leak, no lock, no eviction thread,
and its memory follows from the configuration alone. A row tells of all backends at once, so blocks that
everybody holds cost one row.

Residency without linked lists: each backend has a clock that counts the tokens it was made to insert, and a row
keeps the clock at the last touch. A block is resident while the clock is less than the backend's capacity past
that. Blocks of a chain differ in size, so the clock counts tokens and not entries. Where old blocks are used
again they become young, and what lies between ages by their size: a touch at age a moves the clock by
size x a / capacity, which is right in the mean over all ages (an exact LRU would need an ordered list).

What comes after a prompt's last whole block, and the answer, is in no chain; but the next turn of that
conversation finds it cached. So the row of that block notes for one backend how much follows, and for whom.

A block is resident only if its parents are, so the longest match is a bisection over the chain, done for all
backends at once. Knows no requests, no time and no names: backends are slots.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from operator import gt, not_

__all__ = ["Index"]

_WAYS = 4
_UNIT_TOKENS = 16  # of a clock's tick: an engine's block; 32 bits of them last a backend for weeks
_OWNER = 0xFF_FFFF
_TAIL_TOKENS = 0xFFF_FFFF
_BACKENDS = 0xFFF
_FORK_LIMIT = 0xFFFF
_YOUNG = 1 / 32  # of the capacity
_CLOCK_END = 0xFFFF_0000


class Index:
    """A table of at least `entries` rows for `capacity_tokens` (KV cache of each backend, by slot).

    `entries` is rounded up to a power of two; a row takes 22 bytes and 4 for each backend.
    """

    __slots__ = (
        "_blank", "_bucket_mask", "_capacity", "_clocks", "_count", "_floors", "_forks", "_keys", "_reach",
        "_rows_used", "_stamps", "_tails", "_tick", "_touched",
    )  # fmt: skip

    def __init__(self, entries: int, capacity_tokens: Sequence[float]) -> None:
        if entries < 1 or any(tokens <= 0 for tokens in capacity_tokens):
            raise ValueError("entries and capacities must be positive")
        if len(capacity_tokens) > _BACKENDS:
            raise ValueError(f"there is room for {_BACKENDS} backends")
        buckets = 1
        while buckets * _WAYS < entries:
            buckets *= 2
        self._bucket_mask = buckets - 1
        self._count = count = len(capacity_tokens)
        rows = buckets * _WAYS
        self._keys = array("Q", bytes(8 * rows))  # 0 is an empty row
        self._touched = array("I", bytes(4 * rows))
        self._stamps = array("I", bytes(4 * rows * count))
        self._tails = array("Q", bytes(8 * rows))  # owner, slot, tokens; 0 is none
        self._capacity = [tokens / _UNIT_TOKENS for tokens in capacity_tokens]
        self._reach = [1.0] * count  # how far back a clock holds, as a multiple of the capacity
        # A clock starts past zero, so that a stamp of 0, never touched, is below every floor.
        self._clocks = [capacity + 1.0 for capacity in self._capacity]
        self._floors = [1] * count
        self._tick = 0
        self._blank = array("I", bytes(4 * count))
        self._forks = array("H", bytes(2 * rows))  # of a first block: after how many the last chain split
        self._rows_used = 0

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._keys)

    @property
    def rows_used(self) -> int:
        """How many of them are taken; never falls."""
        return self._rows_used

    @property
    def memory_bytes(self) -> int:
        """What the table takes, whatever is in it."""
        return sum(
            a.itemsize * len(a) for a in (self._keys, self._touched, self._stamps, self._tails, self._forks)
        )

    def held(self, chain: Sequence[int]) -> list[int]:
        """For each slot how many of the first blocks of `chain` it holds."""
        count = self._count
        found = [0] * count
        if not chain:
            return found
        keys, stamps, floors, mask = self._keys, self._stamps, self._floors, self._bucket_mask
        work: list[tuple[int, int, Sequence[int]]] = []
        everyone: Sequence[int] = range(count)
        slots = everyone
        low, high = 0, len(chain)  # all of `slots` hold `low` blocks and at most `high`
        # Who does not hold the first block holds nothing, which is the common end of a new prompt; and where the
        # last chain with this first block split, at the end of a system prompt say, this one will most likely.
        middle, fork, root = 1, 0, -1
        while True:
            if low == high:
                if low:
                    for slot in slots:
                        found[slot] = low
                if not work:
                    return found
                low, high, slots = work.pop()
                middle = (low + high + 1) >> 1
                continue
            key = chain[middle - 1]
            row = (key & mask) * _WAYS
            if keys[row] != key:
                row += 1
                if keys[row] != key:
                    row += 1
                    if keys[row] != key:
                        row += 1
                        if keys[row] != key:
                            row = -1
            if row < 0:
                high = middle - 1
            else:
                if root < 0:
                    root = row
                    fork = self._forks[row]
                base = row * count
                if slots is everyone:
                    holds = list(map(gt, stamps[base : base + count], floors))
                else:
                    holds = [stamps[base + slot] > floors[slot] for slot in slots]
                if True not in holds:
                    high = middle - 1
                elif False not in holds:
                    low = middle
                else:
                    if middle > 1 and slots is everyone:
                        self._forks[root] = min(middle - 1, _FORK_LIMIT)
                    work.append((low, middle - 1, list(compress(slots, map(not_, holds)))))
                    low = middle
                    slots = list(compress(slots, holds))
            if fork and low < fork <= high:
                middle = fork
            elif fork and low == fork:
                middle = fork + 1
                fork = 0
            else:
                fork = 0
                middle = (low + high + 1) >> 1

    def insert(
        self, slot: int, chain: Sequence[int], ends: Sequence[int], tokens_per_byte: float, owner: int = 0
    ) -> tuple[int, float]:
        """The backend in `slot` computes this chain: all its blocks are its youngest now.

        Returns how many of the first blocks it held already, and how many tokens after those, as `tail` has it
        for `owner`. `ends` are the blocks' cumulative bytes.
        """
        if not chain:
            return 0, 0.0
        keys, stamps, touched, mask, count = (
            self._keys, self._stamps, self._touched, self._bucket_mask, self._count,
        )  # fmt: skip
        matched, worn_bytes, oldest = self._matched(slot, chain, ends)
        held_bytes, tail = 0, 0.0
        if matched:
            held_bytes = ends[matched - 1]
            tail = self._tail(chain[matched - 1], slot, owner)
        scale = tokens_per_byte / _UNIT_TOKENS
        fresh = (ends[len(chain) - 1] - held_bytes) * scale - tail / _UNIT_TOKENS
        stamp = self._advance(slot, max(0.0, fresh) + worn_bytes * scale)
        tick = self._tick = (self._tick + 1) & 0xFFFF_FFFF
        # What is young needs no new stamp: most of a conversation's blocks were touched a minute ago.
        for key in chain[matched:] if oldest < _YOUNG else chain:
            row = (key & mask) * _WAYS
            if keys[row] != key:
                row += 1
                if keys[row] != key:
                    row += 1
                    if keys[row] != key:
                        row += 1
                        if keys[row] != key:
                            row = self._place(key, row)
            stamps[row * count + slot] = stamp
            touched[row] = tick
        return matched, tail

    def extend(self, slot: int, block: int, tokens: float, owner: int) -> None:
        """The backend holds `tokens` more behind `block`, the last of a chain: the rest of the prompt, and its
        answer. Only who asks as the same `owner` (any number that tells conversations apart) has them too."""
        row = self._find(block)
        if row >= 0 and tokens > 0:
            self._tails[row] = (owner & _OWNER) << 40 | slot << 28 | min(int(tokens), _TAIL_TOKENS)

    def tail(self, block: int, owner: int) -> tuple[int, float]:
        """(slot, tokens) of what one backend holds behind `block` for this owner; (-1, 0) for nothing."""
        row = self._find(block)
        noted = self._tails[row] if row >= 0 else 0
        if not noted or noted >> 40 != owner & _OWNER:
            return -1, 0.0
        return noted >> 28 & 0xFFF, float(noted & _TAIL_TOKENS)

    def note(self, slot: int, chain: Sequence[int]) -> None:
        """The backend has these blocks now, whoever had them computed; nothing else ages by them."""
        stamp = int(self._clocks[slot])
        tick = self._tick = (self._tick + 1) & 0xFFFF_FFFF
        for key in chain:
            row = self._find(key)
            if row < 0:
                row = self._place(key, (key & self._bucket_mask) * _WAYS + _WAYS - 1)
            self._stamps[row * self._count + slot] = stamp
            self._touched[row] = tick

    def forget(self, slot: int, chain: Sequence[int]) -> None:
        """The backend in `slot` did not compute these blocks after all."""
        for key in chain:
            row = self._find(key)
            if row >= 0:
                self._stamps[row * self._count + slot] = 0

    def follow(self, slot: int, followed: bool) -> None:
        """Whether the backend tells what it evicts (`forget`). Then age says little: blocks others asked for
        are younger than we know, so they are let go at twice the age."""
        reach = 2.0 if followed else 1.0
        if reach != self._reach[slot]:
            self._reach[slot] = reach
            self._advance(slot, 0.0)

    def record_tokens(self, slot: int, tokens: float) -> None:
        """The backend wrote `tokens` that no chain will show, such as an answer's: its blocks age by them."""
        if tokens > 0:
            self._advance(slot, tokens / _UNIT_TOKENS)

    def set_capacity(self, slot: int, tokens: float) -> None:
        """How many tokens the backend's cache holds, now that it is known."""
        if tokens > 0 and tokens / _UNIT_TOKENS != self._capacity[slot]:
            self._capacity[slot] = tokens / _UNIT_TOKENS
            # The clock may not reach back before what was forgotten: the floor only ever rises.
            self._advance(slot, 0.0)

    def clear(self, slot: int) -> None:
        """The backend holds nothing any more: it started anew."""
        self._clocks[slot] += 1.0
        self._floors[slot] = int(self._clocks[slot])
        self._clocks[slot] += 1.0
        self._advance(slot, 0.0)

    def share(self, slot: int) -> float:
        """The part of the used rows, 0 to 1, that the backend holds. For people: walks the whole table."""
        count, floor = self._count, self._floors[slot]
        held = sum(1 for stamp in self._stamps[slot::count] if stamp > floor)
        return held / self._rows_used if self._rows_used else 0.0

    def _tail(self, block: int, slot: int, owner: int) -> float:
        holder, tokens = self.tail(block, owner)
        return tokens if holder == slot else 0.0

    def _find(self, key: int) -> int:
        row = (key & self._bucket_mask) * _WAYS
        keys = self._keys
        if keys[row] == key:
            return row
        for at in (row + 1, row + 2, row + 3):
            if keys[at] == key:
                return at
        return -1

    def _matched(self, slot: int, chain: Sequence[int], ends: Sequence[int]) -> tuple[int, float, float]:
        """How many blocks the slot holds, the sum over those of bytes x age, and the age of the oldest looked at.

        Ages are shares of the capacity. Blocks between two that are looked at count with the age of the deeper:
        a head that others share is younger than what follows it.
        """
        stamps, count, floor = self._stamps, self._count, self._floors[slot]
        clock = self._clocks[slot]
        low, high, middle, oldest = 0, len(chain), 1, 0.0
        begin, worn = 0, 0.0
        while low < high:
            row = self._find(chain[middle - 1])
            stamp = stamps[row * count + slot] if row >= 0 else 0
            if stamp > floor:
                low = middle
                age = clock - stamp
                worn += (ends[low - 1] - begin) * age
                begin = ends[low - 1]
                if age > oldest:
                    oldest = age
            else:
                high = middle - 1
            middle = (low + high + 1) >> 1
        capacity = self._capacity[slot]
        return low, worn / capacity, oldest / capacity

    def _advance(self, slot: int, ticks: float) -> int:
        """Move a clock; returns the stamp of what is touched now."""
        clock = self._clocks[slot] = self._clocks[slot] + ticks
        if clock >= _CLOCK_END:
            self._restart(slot)
            clock = self._clocks[slot]
        floor = int(clock - self._capacity[slot] * self._reach[slot])
        if floor > self._floors[slot]:
            self._floors[slot] = floor
        return int(clock)

    def _restart(self, slot: int) -> None:
        """32 bits are used up: begin anew, with nothing held. Costs a few cache misses once in weeks."""
        count = self._count
        self._stamps[slot::count] = array("I", bytes(4 * self.rows))
        self._clocks[slot] = self._capacity[slot] + 1.0
        self._floors[slot] = 1

    def _place(self, key: int, last: int) -> int:
        """A row for a new key in the bucket that ends at `last`: an empty one, else the longest untouched."""
        keys, touched, tick = self._keys, self._touched, self._tick
        best, oldest = last, -1
        for row in range(last - _WAYS + 1, last + 1):
            if not keys[row]:
                best = row
                self._rows_used += 1
                break
            age = (tick - touched[row]) & 0xFFFF_FFFF
            if age > oldest:
                best, oldest = row, age
        keys[best] = key
        self._tails[best] = 0
        base = best * self._count
        self._stamps[base : base + self._count] = self._blank
        return best
