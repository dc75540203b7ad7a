"""Which backend keeps what a client will come back to: a response or a session, by its id.

A memory of fixed size that forgets what was not asked for the longest. It is a help, never a truth: who is not
remembered (another replica took the request, this one was started again) is looked for.
"""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_64_intdigest

__all__ = ["Residence"]


class Residence:
    """Ids to slots, at most `capacity` of them (about 150 bytes each)."""

    __slots__ = ("_capacity", "_slots")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def note(self, name: bytes, slot: int) -> None:
        """The backend in `slot` has it."""
        slots = self._slots
        key = xxh3_64_intdigest(name)
        slots[key] = slot
        slots.move_to_end(key)
        if len(slots) > self._capacity:
            slots.popitem(last=False)

    def forget(self, name: bytes) -> None:
        """Nobody is known to have it."""
        self._slots.pop(xxh3_64_intdigest(name), None)

    def find(self, name: bytes) -> int | None:
        """The slot of the backend that had it when it was last seen; None if that is not known."""
        slots = self._slots
        key = xxh3_64_intdigest(name)
        slot = slots.get(key)
        if slot is not None:
            slots.move_to_end(key)
        return slot
