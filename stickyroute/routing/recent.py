"""Where each key was sent last, and when: who is in the middle of a conversation, and where it is warm.

A table of fixed size that is written over: no leak, no eviction thread. A lost entry costs a conversation its
preference for the place where it is, nothing else. Knows no requests and no names: backends are slots.
"""

from __future__ import annotations

from array import array

__all__ = ["Recent"]


class Recent:
    """`rows` is rounded up to a power of two; a row takes 18 bytes. Keys are 64-bit hashes, times of one clock, in
    seconds."""

    __slots__ = ("_keys", "_mask", "_slots", "_times_s", "now_s", "requests", "returns")

    def __init__(self, rows: int) -> None:
        size = 1
        while size < rows:
            size *= 2
        self._mask = size - 1
        self._keys = array("Q", bytes(8 * size))
        self._slots = array("H", bytes(2 * size))
        self._times_s = array("d", bytes(8 * size))
        self.now_s = 0.0
        """When the last key was sent anywhere."""
        self.requests: list[int] = []
        """By slot, how many had a key."""
        self.returns: list[int] = []
        """And of how many the key had been sent to that slot before."""

    def grow(self, count: int) -> None:
        """There are `count` slots now."""
        for counts in (self.requests, self.returns):
            counts.extend([0] * (count - len(counts)))

    def touch(self, key: int, slot: int, now_s: float) -> None:
        """The key is sent to a slot."""
        row = key & self._mask
        self.now_s = now_s
        self.requests[slot] += 1
        if self._keys[row] != key:
            self._keys[row] = key
        elif self._slots[row] == slot:
            self.returns[slot] += 1
        self._slots[row] = slot
        self._times_s[row] = now_s

    def is_warm(self, key: int, slot: int, within_s: float) -> bool:
        """Whether the key was last sent to that slot, and that no longer ago than `within_s`."""
        row = key & self._mask
        return (
            self._keys[row] == key and self._slots[row] == slot and self.now_s - self._times_s[row] < within_s
        )
