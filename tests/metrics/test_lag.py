"""The loop's lag, on a loop whose time is the test's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stickyroute.metrics.histogram import LAG_BUCKETS_S, Histogram
from stickyroute.metrics.lag import INTERVAL_S, LoopLag


class Timer:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Keeps the last timer, to be fired by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due_s = 0.0
        self.timer = Timer()

    def time(self) -> float:
        return self.now_s

    def call_at(self, due_s: float, call: Callable[..., None], *arguments: Any) -> Timer:
        self.due_s, self._call = due_s, lambda: call(*arguments)
        self.timer = Timer()
        return self.timer

    def fire(self, late_s: float) -> None:
        self.now_s = self.due_s + late_s
        self._call()


def test_each_look_counts_how_late_it_came_and_the_next_is_due_from_then() -> None:
    loop, histogram = Loop(), Histogram(LAG_BUCKETS_S)
    lag = LoopLag(loop, histogram)  # type: ignore[arg-type]
    lag.start()
    assert loop.due_s == 100.0 + INTERVAL_S
    loop.fire(0.0)
    loop.fire(0.3)
    assert loop.due_s == loop.now_s + INTERVAL_S
    loop.fire(20.0)
    assert sum(histogram.counts) == 3
    assert (histogram.counts[0], histogram.counts[-1]) == (1, 1)
    assert histogram.sum > 20.29
    lag.stop()
    assert loop.timer.cancelled
