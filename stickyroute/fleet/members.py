"""Who is in which slot: slots are given out, kept by name, and used again.

Owns the map between names and slots. A slot whose backend was removed stays what it was (`at` still names it)
until somebody else needs one, and that not before nothing is in flight there. Knows nothing of load, health or
rings.
"""

from __future__ import annotations

from collections.abc import Sequence

from stickyroute.fleet.spec import Backend, BackendSpec

__all__ = ["Members"]


class Members:
    """`in_flight` (requests, by slot) says whether a slot is free; it has as many slots as there are."""

    def __init__(self, in_flight: Sequence[int]) -> None:
        self.present: tuple[Backend, ...] = ()
        self._in_flight = in_flight
        self._last: list[Backend | None] = [None] * len(in_flight)  # who is, or was, in each slot
        self._slots: dict[str, int] = {}

    def __len__(self) -> int:
        """How many slots there are."""
        return len(self._last)

    def at(self, slot: int) -> Backend:
        """Who is in a slot, or was last. Raises IndexError for one that nobody ever had."""
        backend = self._last[slot]
        if backend is None:  # a slot that was grown and never given out
            raise IndexError(f"nobody has been in slot {slot}")
        return backend

    def last(self, slot: int) -> Backend | None:
        """Who was in a slot last; None for nobody."""
        return self._last[slot] if slot < len(self._last) else None

    def find(self, name: str) -> Backend | None:
        """The present backend of that name."""
        slot = self._slots.get(name)
        return None if slot is None else self._last[slot]

    def is_present(self, slot: int) -> bool:
        """Whether somebody is in the slot who was not removed."""
        backend = self._last[slot]
        return backend is not None and self._slots.get(backend.name) == slot

    def leaving(self) -> tuple[Backend, ...]:
        """Those that were removed and still have requests in flight."""
        return tuple(
            backend
            for slot, backend in enumerate(self._last)
            if backend is not None and self._in_flight[slot] and not self.is_present(slot)
        )

    def places(self, specs: Sequence[BackendSpec]) -> list[int]:
        """The slot that each of `specs` gets: its own if it has one, or had, else a free one, else a new one."""
        staying = {self._slots[spec.name] for spec in specs if spec.name in self._slots}
        # A removed backend that comes back finds what was learned of it, unless its slot is taken.
        former = {
            backend.name: slot
            for slot, backend in enumerate(self._last)
            if backend is not None and slot not in staying and not self.is_present(slot)
        }
        taken = set(staying)
        placed: list[int] = []
        for spec in specs:
            slot = self._slots.get(spec.name, former.get(spec.name, -1))
            placed.append(slot)
            taken.add(slot)
        blank = [slot for slot in range(len(self._last)) if slot not in taken and self._is_free(slot)]
        blank.reverse()
        fresh = len(self._last)
        for i, slot in enumerate(placed):
            if slot < 0:
                if blank:
                    placed[i] = blank.pop()
                else:
                    placed[i] = fresh
                    fresh += 1
        return placed

    def put(self, backends: Sequence[Backend]) -> None:
        """These are the members now, in slots from `places`."""
        for backend in backends:
            while backend.slot >= len(self._last):
                self._last.append(None)
            self._last[backend.slot] = backend
        self._slots = {backend.name: backend.slot for backend in backends}
        self.present = tuple(sorted(backends, key=lambda backend: backend.slot))

    def _is_free(self, slot: int) -> bool:
        """Whether another may have it: not while the one there now is a member or has requests in flight."""
        return not self._in_flight[slot] and not self.is_present(slot)
