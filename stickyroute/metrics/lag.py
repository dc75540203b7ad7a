"""How late the event loop is: a timer that looks how long after its time it came.

Owns that one timer. Costs two wake-ups a second.
"""

from __future__ import annotations

import asyncio

from stickyroute.metrics.histogram import Histogram

__all__ = ["LoopLag"]

INTERVAL_S = 0.5


class LoopLag:
    """Observes into `histogram`, in seconds, from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, histogram: Histogram) -> None:
        self._loop = loop
        self._histogram = histogram
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._wait()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        due_s = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(due_s, self._look, due_s)

    def _look(self, due_s: float) -> None:
        self._histogram.observe(max(0.0, self._loop.time() - due_s))
        self._wait()
