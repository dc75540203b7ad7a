"""The fleet's clock: time passes for it, what changed is said in the log, who is due for another look is told.

Owns the one timer of all that, and the log lines of a backend's states: one for each change, never one for each
failure. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.watch.supervisor import Supervisor

__all__ = ["FleetClock"]

log = logging.getLogger(__name__)

BUSY_TICK_S = 0.1
"""How often the fleet is looked at while somebody is out; the backoff of a refusal starts at 0.25 s."""
CALM_TICK_S = 0.5
"""The same while nobody is. A wake on an idle machine costs about 0.2 ms, as much as ten streamed tokens."""
LINES_AT_ONCE = 20
"""Changes that are said in one tick; the rest are counted."""


class FleetClock:
    """`on_due` is called with the slot of each backend that refused connections and is to be looked at again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._hear: list[Callable[[int], None]] = []
        self._supervisor = Supervisor()

    def on_due(self, call: Callable[[int], None]) -> None:
        """Have `call(slot)` called, until it was looked at, at every tick."""
        self._hear.append(call)

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._supervisor.start("fleet clock", self._run)

    async def stop(self) -> None:
        """End, with the last word said."""
        await self._supervisor.stop()
        self.say()

    def say(self) -> None:
        """Log what changed since the last time."""
        events = self._fleet.take_events()
        for event in events[:LINES_AT_ONCE]:
            whose = f"backend {self._fleet.at(event.slot).name}: " if event.slot >= 0 else "fleet: "
            log.log(logging.INFO if event.good else logging.WARNING, "%s%s", whose, event.text)
        if len(events) > LINES_AT_ONCE:
            log.warning("%d more backends changed; /fleet tells how each is", len(events) - LINES_AT_ONCE)

    async def _run(self) -> None:
        fleet = self._fleet
        while True:
            await asyncio.sleep(BUSY_TICK_S if 0 in fleet.available else CALM_TICK_S)
            now_s = monotonic()
            fleet.tick(now_s)
            self.say()
            if 0 in fleet.available:
                for backend in fleet.backends:
                    if fleet.retry_due(backend.slot, now_s):
                        for call in self._hear:
                            call(backend.slot)
