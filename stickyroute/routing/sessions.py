"""Session memory: which key a conversation without ids was given, so that its next turn gets the same.

Owns a table of fixed size: hash of a turn's whole prompt -> key. The next turn's prompt begins with it, so a
conversation is recognised by the prefix of its last turn, however its anchor has moved meanwhile. Of four
places for a hash the one not used for longest is given away: there is no leak, no timer, no expiry.
Knows nothing of prompts, backends or time.
"""

from __future__ import annotations

from array import array
from typing import Final

__all__ = ["Sessions"]

_WAYS: Final = 4
_SHARED: Final = 4  # continuations of one turn; with more, it is a common opening and not a conversation
_TURN_OVER: Final = (1 << 32) - 1


_SLOTS = ("_clock", "_hashes", "_keys", "_mask", "_touched", "_uses")


class Sessions:
    """Remembers up to `entries` turns (rounded up to a power of two; 21 bytes each)."""

    __slots__ = _SLOTS

    def __init__(self, entries: int) -> None:
        if entries < 1:
            raise ValueError("entries must be at least 1")
        size = max(_WAYS, 1 << (entries - 1).bit_length())
        self._hashes = array("Q", bytes(8 * size))
        self._keys = array("Q", bytes(8 * size))
        self._touched = array("I", bytes(4 * size))
        self._uses = bytearray(size)
        self._mask = size - _WAYS
        self._clock = 0

    @property
    def capacity(self) -> int:
        """Turns that fit in."""
        return len(self._hashes)

    def __len__(self) -> int:
        """Turns remembered; it looks at every place, so it is not for the path of a request."""
        return self.capacity - self._touched.count(0)

    def dry(self) -> Sessions:
        """One that answers as this one would and remembers nothing: for what is no traffic."""
        return _DrySessions(self)

    def find(self, turn: int) -> int | None:
        """The key of a turn, None if it is not remembered."""
        at = self._place(turn)
        return None if at < 0 else self._keys[at]

    def follow(self, turn: int) -> int | None:
        """The key for a continuation of `turn`.

        None if it is not remembered, and where it has been continued so often that it is an opening which
        many conversations share: each of those needs a key of its own.
        """
        at = self._place(turn)
        if at < 0 or self._uses[at] >= _SHARED:
            return None
        self._uses[at] += 1
        return self._keys[at]

    def remember(self, turn: int, key: int) -> None:
        """Note the key of a turn; one known already keeps the key it has."""
        if self._place(turn) >= 0:
            return
        at = turn & self._mask
        touched = self._touched
        ages = touched[at : at + _WAYS]
        at += ages.index(min(ages))
        self._hashes[at] = turn
        self._keys[at] = key
        self._uses[at] = 0
        touched[at] = self._tick()

    def _place(self, turn: int) -> int:
        """Where a turn is, -1 for nowhere. Being asked for is being used."""
        first = turn & self._mask
        hashes = self._hashes
        if turn not in hashes[first : first + _WAYS]:  # most are not: in one step of C
            return -1
        for at in (first, first + 1, first + 2, first + 3):
            if hashes[at] == turn and self._touched[at]:
                self._touched[at] = self._tick()
                return at
        return -1

    def _tick(self) -> int:
        """A number for now, later than all before. Starts over once in four billion uses."""
        clock = self._clock = self._clock + 1 if self._clock < _TURN_OVER else 1
        return clock


class _DrySessions(Sessions):
    """Looks at another's table and leaves it as it is."""

    __slots__ = ()

    def __init__(self, sessions: Sessions) -> None:
        for name in _SLOTS:
            setattr(self, name, getattr(sessions, name))

    def follow(self, turn: int) -> int | None:
        at = self._place(turn)
        return None if at < 0 or self._uses[at] >= _SHARED else self._keys[at]

    def remember(self, turn: int, key: int) -> None:
        pass

    def _place(self, turn: int) -> int:
        first = turn & self._mask
        for at in range(first, first + _WAYS):
            if self._hashes[at] == turn and self._touched[at]:
                return at
        return -1
