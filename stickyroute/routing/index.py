"""What each backend is believed to hold: block hash -> when each backend last touched that block.

A fixed-size table in flat arrays (open addressing, four ways a bucket): no leak, no lock, no eviction thread,
and its memory follows from the configuration alone, whatever the number of backends. A row tells of all backends
at once (`routing.holders`), so blocks that everybody holds cost one row.

Residency without linked lists: each backend has a clock that counts the tokens it was made to insert, and a row
keeps the clock at the last touch. A block is resident while the clock is less than the backend's capacity past
that. Blocks of a chain differ in size, so the clock counts tokens and not entries. Where old blocks are used
again they become young, and what lies between ages by their size: a touch at age a moves the clock by
size x a / capacity, which is right in the mean over all ages (an exact LRU would need an ordered list).

What comes after a prompt's last whole block, and the answer, is in no chain; but the next turn of that
conversation finds it cached. So the row of that block notes for one backend how much follows, and for whom.

A block is resident only if its parents are, so who holds deeper ones is among those who hold it, and the longest
match is a bisection over the chain, done for all backends at once. Knows no requests, no time and no names:
backends are slots.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from stickyroute.defaults import KV_TOKENS
from stickyroute.routing.holders import PLACES, Holders

__all__ = ["Index"]

_WAYS: Final = 4
_UNIT_TOKENS: Final = 16  # of a clock's tick: an engine's block; 32 bits of them last a backend for weeks
_OWNER: Final = 0xFF_FFFF
_TAIL_TOKENS: Final = 0xFFF_FFFF
_BACKENDS: Final = 0xFFF
_FORK_LIMIT: Final = 0xFFFF
_YOUNG: Final = 1 / 32  # of the capacity
_CLOCK_END: Final = 0xFFFF_0000
_TICK_END: Final = 0xFFFF_FFFF


class Index:
    """A table of at least `entries` rows for `capacity_tokens` (KV cache of each backend, by slot).

    `entries` is rounded up to a power of two; a row takes 46 bytes, and about 64 more for its part of the lines where
    there are more than four backends. `grow` adds slots; `clear` empties one that another backend has now. A
    block is held for `reach` times the capacity: what is let go too early is copied, and the copy displaces others.
    """

    __slots__ = (
        "_base_reach", "_bucket_mask", "_capacity", "_clocks", "_count", "_floors", "_forks", "_holders", "_keys",
        "_reach", "_rows_used", "_tails", "_tick", "_touched",
    )  # fmt: skip

    def __init__(self, entries: int, capacity_tokens: Sequence[float], reach: float = 1.0) -> None:
        if entries < 1 or any(tokens <= 0 for tokens in capacity_tokens):
            raise ValueError("entries and capacities must be positive")
        buckets = 1
        while buckets * _WAYS < entries:
            buckets *= 2
        self._bucket_mask = buckets - 1
        rows = buckets * _WAYS
        self._keys = array("Q", [0]) * rows  # 0 is an empty row
        self._touched = array("I", [0]) * rows
        self._tails = array("Q", [0]) * rows  # owner, slot, tokens; 0 is none
        self._forks = array("H", [0]) * rows  # of a first block: after how many the last chain split
        self._capacity: list[float] = []
        self._base_reach = reach
        self._reach: list[float] = []  # how far back a clock holds, as a multiple of the capacity
        self._clocks: list[float] = []
        self._floors: list[int] = []
        self._tick = 0
        self._rows_used = 0
        self._count = 0
        self._holders = Holders(rows, self._floors, self._age, self._is_idle)
        self.grow(len(capacity_tokens))
        for slot, tokens in enumerate(capacity_tokens):
            self.set_capacity(slot, tokens)

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
        arrays = (self._keys, self._touched, self._tails, self._forks)
        return self._holders.memory_bytes + sum(one.itemsize * len(one) for one in arrays)

    def grow(self, count: int, capacity_tokens: float = KV_TOKENS) -> None:
        """Slots up to `count`, the new ones empty and of that capacity. Does nothing if there are as many.

        Lines that become longer become fewer. Takes some milliseconds where they do, for which there is room
        left each time.
        """
        if count > _BACKENDS:
            raise ValueError(f"there is room for {_BACKENDS} backends")
        for _ in range(self._count, count):
            capacity = capacity_tokens / _UNIT_TOKENS
            self._capacity.append(capacity)
            self._reach.append(self._base_reach)
            # A clock starts past zero, so that a stamp of 0, never touched, is below every floor.
            self._clocks.append(capacity + 1.0)
            self._floors.append(1)
        if count > self._count:
            self._count = count
            self._holders.grow(count)

    def held(self, chain: Sequence[int]) -> list[int]:
        """For each slot how many of the first blocks of `chain` it holds."""
        return self.by_slot(self.groups(chain))

    def by_slot(self, groups: list[tuple[int, list[int]]]) -> list[int]:
        """What `groups` says, for each slot."""
        count = self._count
        found = [0] * count
        for level, slots in reversed(groups):
            if len(slots) == count:
                found = [level] * count
            else:
                for slot in slots:
                    found[slot] = level
        return found

    def groups(self, chain: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Who holds how much of `chain`: (how many of its first blocks, the slots that hold so many or more), the
        longest match first. Nothing for what nobody holds."""
        if not chain:
            return []
        row = self._find(chain[0])
        if row < 0:
            return []
        # Where the last chain with this first block split, at the end of a system prompt say, this one will most
        # likely. Where all hold so much, nothing before is of interest.
        low, high, fork = 1, len(chain), self._forks[row]
        probed: list[tuple[int, list[int]]] = []
        if 1 < fork <= high:
            slots = self._who(chain[fork - 1])
            if slots:
                low = fork
                if len(slots) < self._count:
                    probed.append((1, self._holders.of(row)))
                probed.append((fork, slots))
            else:
                high = fork - 1
        if not probed:
            slots = self._holders.of(row)
            if not slots:
                return []
            probed.append((1, slots))
        if low < high and low == fork:
            slots = self._who(chain[low])
            if slots:
                low += 1
                probed.append((low, slots))
            else:
                high = low
        groups: list[tuple[int, list[int]]] = []
        more = 0  # how many hold more
        while True:
            # The deepest block that more than those hold.
            while low < high:
                middle = (low + high + 1) >> 1
                slots = self._who(chain[middle - 1])
                if len(slots) > more:
                    probed.append((middle, slots))
                    low = middle
                else:
                    high = middle - 1
            groups.append(probed.pop())
            low, slots = groups[-1]
            more = len(slots)
            while probed and len(probed[-1][1]) <= more:
                low = probed.pop()[0]
            if not probed:
                self._forks[row] = min(groups[-1][0], _FORK_LIMIT)
                return groups
            high = low - 1
            low = probed[-1][0]

    def _who(self, key: int) -> list[int]:
        """The slots that hold a block."""
        row = (key & self._bucket_mask) * _WAYS
        if self._keys[row] != key:
            row = self._find(key)
            if row < 0:
                return []
        return self._holders.of(row)

    def insert(
        self, slot: int, chain: Sequence[int], ends: Sequence[int], tokens_per_byte: float, owner: int = 0
    ) -> tuple[int, float]:
        """The backend in `slot` computes this chain: all its blocks are its youngest now.

        Returns how many of the first blocks it held already, and how many tokens after those, as `tail` has it
        for `owner`. `ends` are the blocks' cumulative bytes.
        """
        if not chain:
            return 0, 0.0
        matched, row, worn_bytes, oldest = self._matched(slot, chain, ends)
        held_bytes, tail = 0, 0.0
        if matched:
            held_bytes = ends[matched - 1]
            noted = self._tails[row]
            if noted >> 28 == (owner & _OWNER) << 12 | slot:
                tail = float(noted & _TAIL_TOKENS)
        scale = tokens_per_byte / _UNIT_TOKENS
        fresh = (ends[len(chain) - 1] - held_bytes) * scale - tail / _UNIT_TOKENS
        stamp = self._advance(slot, (fresh if fresh > 0.0 else 0.0) + worn_bytes * scale)
        tick = self._tick = self._tick + 1 if self._tick < _TICK_END else self._restart_ticks()
        # What is young needs no new stamp: most of a conversation's blocks were touched a minute ago.
        if oldest < _YOUNG:
            if matched == len(chain):
                return matched, tail
            chain = chain[matched:]
        keys, touched, mask, holders = self._keys, self._touched, self._bucket_mask, self._holders
        slots, stamps = holders.slots, holders.stamps
        for key in chain:
            row = (key & mask) * _WAYS
            if keys[row] != key:
                row += 1
                if keys[row] != key:
                    row += 1
                    if keys[row] != key:
                        row += 1
                        if keys[row] != key:
                            row = self._place(key, row)
                            touched[row] = tick
                            slots[row * PLACES] = slot
                            stamps[row * PLACES] = stamp
                            continue
            touched[row] = tick
            at = row * PLACES
            if slots[at] == slot:
                stamps[at] = stamp
            else:
                holders.touch(row, slot, stamp)
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
        tick = self._tick = self._tick + 1 if self._tick < _TICK_END else self._restart_ticks()
        for key in chain:
            row = self._find(key)
            if row < 0:
                row = self._place(key, (key & self._bucket_mask) * _WAYS + _WAYS - 1)
            self._touched[row] = tick
            self._holders.touch(row, slot, stamp)

    def forget(self, slot: int, chain: Sequence[int]) -> None:
        """The backend in `slot` did not compute these blocks after all."""
        for key in chain:
            row = self._find(key)
            if row >= 0 and self._holders.stamp(row, slot):
                self._holders.touch(row, slot, 0)

    def follow(self, slot: int, followed: bool) -> None:
        """Whether the backend tells what it evicts (`forget`). Then age says little: blocks others asked for
        are younger than we know, so they are let go at twice the age."""
        reach = max(2.0, self._base_reach) if followed else self._base_reach
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
        held = sum(1 for row in range(self.rows) if self._holders.stamp(row, slot) > self._floors[slot])
        return held / self._rows_used if self._rows_used else 0.0

    def _find(self, key: int) -> int:
        row = (key & self._bucket_mask) * _WAYS
        keys = self._keys
        if keys[row] == key:
            return row
        for at in (row + 1, row + 2, row + 3):
            if keys[at] == key:
                return at
        return -1

    def _matched(self, slot: int, chain: Sequence[int], ends: Sequence[int]) -> tuple[int, int, float, float]:
        """How many blocks the slot holds, the row of the last of them, the sum over those of bytes x age, and the age
        of the oldest looked at.

        Ages are shares of the capacity. Blocks between two that are looked at count with the age of the deeper:
        a head that others share is younger than what follows it.
        """
        floor, clock = self._floors[slot], self._clocks[slot]
        keys, mask, holders = self._keys, self._bucket_mask, self._holders
        slots, stamps = holders.slots, holders.stamps
        low, high, at = 0, len(chain), 0
        begin, worn, oldest, last = 0, 0.0, 0.0, -1
        while low < high:
            key = chain[at]
            row = (key & mask) * _WAYS
            if keys[row] != key:
                row = self._find(key)
            stamp = 0
            if row >= 0:
                mine = slots[row * PLACES] == slot
                stamp = stamps[row * PLACES] if mine else holders.stamp(row, slot)
            if stamp > floor:
                low, last, end = at + 1, row, ends[at]
                age = clock - stamp
                worn += (end - begin) * age
                begin = end
                if age > oldest:
                    oldest = age
            else:
                high = at
            at = (low + high - 1) >> 1
        capacity = self._capacity[slot]
        return low, last, worn / capacity, oldest / capacity

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
        self._holders.drop(slot)
        self._clocks[slot] = self._capacity[slot] + 1.0
        self._floors[slot] = 1

    def _restart_ticks(self) -> int:
        """Once in four billion chains: all rows were touched at the same time."""
        self._touched = array("I", bytes(4 * self.rows))
        return 1

    def _place(self, key: int, last: int) -> int:
        """A row for a new key in the bucket that ends at `last`: an empty one, else the longest untouched."""
        keys = self._keys
        row = last - 3
        if not keys[row] or not keys[row := row + 1] or not keys[row := row + 1] or not keys[row := row + 1]:
            self._rows_used += 1
            keys[row] = key
            return row
        touched = self._touched[last - 3 : last + 1].tolist()
        row = last - 3 + touched.index(min(touched))
        keys[row] = key
        self._tails[row] = 0
        self._forks[row] = 0
        self._holders.clear(row)
        return row

    def _age(self, slot: int, stamp: int) -> float:
        """As a share of the slot's capacity."""
        return (self._clocks[slot] - stamp) / self._capacity[slot]

    def _is_idle(self, row: int) -> bool:
        return self._tick - self._touched[row] >= self.rows >> 3
