"""What the server of one engine has seen: the numbers behind its histograms and request counters.

Owns counting. Latencies are in seconds of the engine's clock, as a GPU with that profile would show them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


VLLM_TTFT: Final = _bounds(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
)
VLLM_ITL: Final = _bounds("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80")
VLLM_LATENCY: Final = _bounds("0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
SGLANG_TTFT: Final = _bounds("0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400")
SGLANG_ITL: Final = _bounds(
    "0.002 0.004 0.006 0.008 0.01 0.015 0.02 0.025 0.03 0.035 0.04 0.06 0.08 0.1 0.2 0.4 0.6 0.8 1 2 4 6 8"
)
SGLANG_LATENCY: Final = _bounds("0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400 600 1200 1800 2400")
SGLANG_QUEUE: Final = _bounds(
    "0 0.001 0.005 0.01 0.05 0.1 0.2 0.5 1 2 3 4 5 10 15 20 30 40 50 60 70 80 90 100 200 300 400 500 600 "
    "700 800 "
    "900 1000 1200 1400 1600 1800 2000 2500 3000"
)


class Histogram:
    """Counts by upper bound, the last one without a bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class Observed:
    """All of it, for one engine; a restarted engine starts a new one."""

    def __init__(self, dialect: str, started_unix_s: float) -> None:
        vllm = dialect == "vllm"
        self.started_unix_s = started_unix_s
        self.ttft_s = Histogram(VLLM_TTFT if vllm else SGLANG_TTFT)
        self.itl_s = Histogram(VLLM_ITL if vllm else SGLANG_ITL)
        self.latency_s = Histogram(VLLM_LATENCY if vllm else SGLANG_LATENCY)
        self.queue_s = Histogram(VLLM_LATENCY if vllm else SGLANG_QUEUE)
        self.prefill_s = Histogram(VLLM_LATENCY)
        self.finished: Counter[str] = Counter()
        self.rejected = 0
        self.aborted = 0
        self.http: Counter[tuple[str, str, str]] = Counter()
        self.in_flight = 0
