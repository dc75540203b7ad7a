"""The tie between real time and one engine's clock.

Owns the engine's clock (the loop's, times a speed-up, since its start), the timer that fires when a step is
over, and how late it fired. Whatever is late is caught up in one go, so lateness delays bytes but never
bends simulated time.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Callable

from stickyroute.simulator.observed import Histogram

_LATENESS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds


class Pace:
    """`tick` is called when the time given to `wake_at` has come. Simulated time passes `speedup` times as
    fast."""

    def __init__(self, speedup: float, tick: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._speedup = speedup
        self._tick = tick
        self._late = Histogram(_LATENESS)
        self._worst_s = 0.0
        self._started_s = self._loop.time()
        self._stopped_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf

    @property
    def worst_s(self) -> float:
        """How late a timer fired at worst, in real seconds."""
        return self._worst_s

    def late(self, over_s: float) -> int:
        """How many timers fired later than that, in real seconds; rounded down to a bound we count by."""
        return sum(self._late.counts[bisect_right(self._late.bounds, over_s) :])

    def now_s(self) -> float:
        """The engine's clock, in its own seconds."""
        real_s = self._loop.time() if self._stopped_s is None else self._stopped_s
        return (real_s - self._started_s) * self._speedup

    def restart(self) -> None:
        """A new engine: its clock is at zero and runs."""
        self._cancel()
        self._started_s = self._loop.time()
        self._stopped_s = None

    def stop(self) -> None:
        """The clock stands still until `go`."""
        if self._stopped_s is None:
            self._stopped_s = self._loop.time()
            self._cancel()

    def go(self) -> None:
        """The clock runs on from where it stood."""
        if self._stopped_s is not None:
            self._started_s += self._loop.time() - self._stopped_s
            self._stopped_s = None

    def wake_at(self, due_s: float) -> None:
        """Call `tick` when the clock says `due_s`, and at no other time; never when that is infinite."""
        if due_s == self._due_s:
            return
        self._cancel()
        if due_s < math.inf and self._stopped_s is None:
            self._due_s = due_s
            self._timer = self._loop.call_at(self._started_s + due_s / self._speedup, self._fire)

    def _fire(self) -> None:
        late_s = self._loop.time() - self._started_s - self._due_s / self._speedup
        self._worst_s = max(self._worst_s, late_s)
        self._late.observe(late_s)
        self._timer = None
        self._due_s = math.inf
        self._tick()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due_s = math.inf
