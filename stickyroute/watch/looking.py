"""What watches that look at every member have in common: a task each, connections, and the fleet's clock.

Owns their start and their end; what is asked, and what follows, is the watch's own.
"""

from __future__ import annotations

from stickyroute.fleet import Fleet
from stickyroute.watch.clock import FleetClock
from stickyroute.watch.members import Askers, MemberTasks

__all__ = ["Looking"]


class Looking:
    """The subclass sets `_tasks`. `askers` and `clock` are shared with others, or its own where they are None."""

    _tasks: MemberTasks  # type: ignore[type-arg]  # each has a kind of its own

    def __init__(self, fleet: Fleet, askers: Askers | None, clock: FleetClock | None) -> None:
        self._fleet = fleet
        self._askers = askers if askers is not None else Askers()
        self._owns_askers = askers is None
        self._clock = clock if clock is not None else FleetClock(fleet)
        self._owns_clock = clock is None

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._tasks.start()
        if self._owns_clock:
            self._clock.start()

    def sync(self) -> None:
        """The fleet's members changed."""
        self._tasks.sync()

    async def stop(self) -> None:
        """End every look and close every connection."""
        await self._tasks.stop()
        if self._owns_clock:
            await self._clock.stop()
        if self._owns_askers:
            self._askers.close()
