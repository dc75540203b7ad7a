"""A held place on a backend."""

from __future__ import annotations

from collections.abc import MutableSequence

__all__ = ["Lease"]


class Lease:
    """One request in flight on the backend in `slot`, until `release`. Made by `Fleet.lease`."""

    __slots__ = ("_held", "_in_flight", "slot")

    def __init__(self, in_flight: MutableSequence[int], slot: int) -> None:
        self.slot = slot
        self._in_flight = in_flight
        self._held = True
        in_flight[slot] += 1

    def release(self) -> None:
        """Give the place back. Only the first call counts."""
        if self._held:
            self._held = False
            self._in_flight[self.slot] -= 1
