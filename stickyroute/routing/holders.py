"""Who holds the block of a row, and since when: four places a row, and a line for rows that more hold.

Owns where that is kept, in flat arrays of fixed size, whatever the number of backends. Four places are enough for
what belongs to one user. What more backends hold, such as a system prompt, has a line with a place for every
one of them. There is a line for every row up to 16 backends, and fewer the longer they are; where they run out, a
row keeps the four that are furthest from losing it. Knows neither keys nor time: a stamp counts if it is above its
slot's floor.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import nsmallest
from typing import Final

__all__ = ["PLACES", "WIDE", "Holders"]

PLACES: Final = 4
"""Of a row."""

WIDE: Final = 0xFFFF
"""Stands in all places of a row that has a line; its number is the first stamp."""

_STAMPS: Final = array("I", bytes(4 * PLACES))
_SLOTS: Final = array("H", bytes(2 * PLACES))
_WIDES: Final = array("H", [WIDE] * PLACES)
_LINE_BYTES: Final = 64  # for lines, per row: one each for 16 backends
_MANY_LINES = 16_384
_LINE_STEP: Final = 16  # backends: lines become longer by so many


class Holders:
    """Of `rows` rows. `floors` are the stamps, by slot, up to which nothing is held any more: the list is the
    caller's, who changes it. `age` says of a slot and its stamp how old that is, in a unit that compares slots;
    `is_idle` of a row that it was not touched for so long that its line may go to another.

    `slots` and `stamps` are for the caller to read, and to write where it put the row itself.
    """

    __slots__ = (
        "_age", "_count", "_floors", "_free", "_hand", "_is_idle", "_line_rows", "_lines", "_rows",
        "_stride", "_used", "slots", "stamps",
    )  # fmt: skip

    def __init__(
        self,
        rows: int,
        floors: list[int],
        age: Callable[[int, int], float],
        is_idle: Callable[[int], bool],
    ) -> None:
        self._rows = rows
        self._floors = floors
        self._age = age
        self._is_idle = is_idle
        self.slots = array("H", [0]) * (rows * PLACES)
        self.stamps = array("I", [0]) * (rows * PLACES)  # 0 is below every floor
        self._count = 0
        self._stride = 0
        self._lines = array("I")
        self._line_rows = array("I")  # which row has the line
        self._used = 0
        self._free: list[int] = []
        self._hand = 0

    @property
    def memory_bytes(self) -> int:
        """What the arrays take, whatever is in them."""
        return sum(a.itemsize * len(a) for a in (self.slots, self.stamps, self._lines, self._line_rows))

    def grow(self, count: int) -> None:
        """There are `count` slots now, no fewer than before; `floors` has them already."""
        before, self._count = self._count, count
        if count > PLACES and count > self._stride:
            wanted = max(count, self._stride + (self._stride >> 2))  # some more, so that this is rare
            self._lengthen(-(-wanted // _LINE_STEP) * _LINE_STEP, before)

    def of(self, row: int) -> list[int]:
        """The slots that hold the row's block."""
        at = row * PLACES
        floors, slots, stamps = self._floors, self.slots, self.stamps
        slot, stamp = slots[at], stamps[at]
        if slot == WIDE:
            at = stamp * self._stride
            line = self._lines[at : at + self._count].tolist()
            return [slot for slot, stamp in enumerate(line) if stamp > floors[slot]]
        found = [slot] if stamp > floors[slot] else []
        # Spelt out: a loop over the three takes twice as long, and this is most of what finding a prompt takes.
        if (stamp := stamps[at + 1]) and stamp > floors[slot := slots[at + 1]]:
            found.append(slot)
        if (stamp := stamps[at + 2]) and stamp > floors[slot := slots[at + 2]]:
            found.append(slot)
        if (stamp := stamps[at + 3]) and stamp > floors[slot := slots[at + 3]]:
            found.append(slot)
        return found

    def stamp(self, row: int, slot: int) -> int:
        """When the slot last touched the row; 0 for never, or so long ago that others took its place."""
        at = row * PLACES
        slots = self.slots
        if slots[at] == slot:
            return self.stamps[at]
        if slots[at] == WIDE:
            return self._lines[self.stamps[at] * self._stride + slot]
        for place in (at + 1, at + 2, at + 3):
            if slots[place] == slot:
                return self.stamps[place]
        return 0

    def touch(self, row: int, slot: int, stamp: int) -> None:
        """Note the stamp: in the slot's own place, else in one that nobody needs, else in a line."""
        at = row * PLACES
        slots, stamps = self.slots, self.stamps
        if slots[at] == WIDE:
            self._lines[stamps[at] * self._stride + slot] = stamp
            return
        here = slots[at : at + PLACES]
        if slot in here:
            stamps[at + here.index(slot)] = stamp
            return
        floors = self._floors
        for place, holder in enumerate(here, at):
            if stamps[place] <= floors[holder]:
                slots[place], stamps[place] = slot, stamp
                return
        line = self._take_line()
        if line < 0:
            ages = list(map(self._age, here, stamps[at : at + PLACES]))
            at += ages.index(max(ages))
            slots[at], stamps[at] = slot, stamp
            return
        begin = line * self._stride
        self._lines[begin : begin + self._stride] = array("I", bytes(4 * self._stride))
        for place, holder in enumerate(here, at):
            self._lines[begin + holder] = stamps[place]
        self._lines[begin + slot] = stamp
        self._line_rows[line] = row
        slots[at : at + PLACES] = _WIDES
        stamps[at] = line

    def clear(self, row: int) -> None:
        """Nobody holds it: another block's row now."""
        at = row * PLACES
        if self.slots[at] == WIDE:
            self._free.append(self.stamps[at])
            self.slots[at : at + PLACES] = _SLOTS
        self.stamps[at : at + PLACES] = _STAMPS

    def drop(self, slot: int) -> None:
        """Take the slot out of every row. Walks the whole table in steps of C: some 10 ms."""
        for line in range(self._used):
            self._lines[line * self._stride + slot] = 0
        at = -1
        try:
            while True:
                at = self.slots.index(slot, at + 1)
                self.stamps[at] = 0
        except ValueError:
            pass  # that was the last

    def _take_line(self) -> int:
        """A line that is free, or whose row is idle; -1 if none was found."""
        if self._free:
            return self._free.pop()
        limit = len(self._line_rows)
        if self._used < limit:
            self._used += 1
            return self._used - 1
        if not limit:
            return -1
        line = self._hand = (self._hand + 1) % limit
        row = self._line_rows[line]
        if not self._is_idle(row):
            return -1
        self._narrow(row, line)
        return line

    def _narrow(self, row: int, line: int) -> None:
        """Leave of a row's holders the four for whom it is youngest."""
        age, at = self._age, row * PLACES
        begin = line * self._stride
        stamps = self._lines[begin : begin + self._count]
        found = self.of(row)
        self.slots[at : at + PLACES] = _SLOTS
        self.stamps[at : at + PLACES] = _STAMPS
        for slot in nsmallest(PLACES, found, key=lambda slot: age(slot, stamps[slot])):
            self.slots[at], self.stamps[at] = slot, stamps[slot]
            at += 1

    def _lengthen(self, stride: int, count: int) -> None:
        """Lines of `stride` places, with what the first `count` slots have in them. As long ones are fewer, the last
        may have to go, and what they told is forgotten. Some milliseconds."""
        limit = min(self._rows, max(PLACES, self._rows * _LINE_BYTES // (4 * stride)))
        for line in range(limit, self._used):
            at = self._line_rows[line] * PLACES
            if self.slots[at] == WIDE and self.stamps[at] == line:
                self.slots[at : at + PLACES] = _SLOTS
                self.stamps[at : at + PLACES] = _STAMPS
        self._free = [line for line in self._free if line < limit]
        used = self._used = min(limit, self._used)
        lines, old, size = self._lines, self._stride, limit * stride
        if used <= _MANY_LINES:  # in place, from the end: what is not in use is made blank when it is taken
            lines.extend(array("I", bytes(4 * max(0, size - len(lines)))))
            blank = array("I", bytes(4 * (stride - count)))
            for line in range(used - 1, -1, -1):
                lines[line * stride : line * stride + count] = lines[line * old : line * old + count]
                lines[line * stride + count : (line + 1) * stride] = blank
            del lines[size:]
        else:  # slot by slot, which are fewer
            self._lines = array("I", bytes(4 * size))
            for slot in range(count):
                self._lines[slot : used * stride : stride] = lines[slot : used * old : old]
        self._stride = stride
        self._line_rows = self._line_rows[:limit]
        self._line_rows.extend(array("I", bytes(4 * (limit - len(self._line_rows)))))
        self._hand = 0
