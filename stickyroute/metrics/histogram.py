"""A histogram in plain integers, and the buckets of each one we keep. Knows no labels and no Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = [
    "DECISION_BUCKETS_S",
    "DURATION_BUCKETS_S",
    "INTER_TOKEN_BUCKETS_S",
    "LAG_BUCKETS_S",
    "PROMPT_BUCKETS",
    "PROMPT_BUCKET_TOKENS",
    "TTFT_BUCKETS_S",
    "Histogram",
]

TTFT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
INTER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
DECISION_BUCKETS_S = (1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6, 64e-6, 128e-6, 256e-6, 512e-6, 1e-3, 1e-2)
LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

PROMPT_BUCKET_TOKENS: Final[tuple[float, ...]] = (1024, 4096, 8192, 16384, 32768)
PROMPT_BUCKETS = ("1k", "4k", "8k", "16k", "32k", "more")
"""How long a prompt is: up to so many tokens."""


class Histogram:
    """Counts per bucket (the last one is +Inf) and the sum of what was observed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """One more value; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
