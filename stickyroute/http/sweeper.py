"""Time limits without a timer per request: one periodic walk over everything that can be overdue.

Starting and cancelling a loop timer on every request and every chunk costs more than the limits are worth.
Here the hot path only stores a number; the sweeper looks at it a few times a second.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from stickyroute.clock import monotonic


class Sweepable(Protocol):
    """Something that can be overdue."""

    def sweep(self, now_s: float) -> None:
        """End, by its own means, whatever is overdue at `now_s`."""


class Sweeper:
    """Calls `sweep(now_s)` on every member each `tick_s` seconds (so a limit is kept to within one tick)."""

    __slots__ = ("_handle", "_loop", "_members", "_tick_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._members: set[Sweepable] = set()
        self._handle: asyncio.TimerHandle | None = None

    def add(self, member: Sweepable) -> None:
        """Start watching a member."""
        self._members.add(member)

    def discard(self, member: Sweepable) -> None:
        """Stop watching a member; unknown ones are fine."""
        self._members.discard(member)

    def retune(self, tick_s: float) -> None:
        """Tick so often from the next tick on."""
        self._tick_s = tick_s

    def start(self) -> None:
        """Begin to tick."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._tick_s, self._tick)

    def stop(self) -> None:
        """Tick no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self) -> None:
        self._handle = self._loop.call_later(self._tick_s, self._tick)
        # A loop that was held up (no CPU, a process that was stopped) comes to its timers before it reads what
        # arrived meanwhile, and a client would be cut for silence whose bytes are there. Two turns later they
        # were read, whichever of the two a loop does first.
        self._loop.call_soon(self._loop.call_soon, self._sweep)

    def _sweep(self) -> None:
        if self._handle is None:
            return
        now_s = monotonic()
        for member in tuple(self._members):
            member.sweep(now_s)
