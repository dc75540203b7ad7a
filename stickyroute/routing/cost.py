"""What it costs to send a request to a backend, in seconds, with every term by its name.

    backlog    uncached prompt tokens ahead of it there x seconds per token
    recompute  its own tokens that the backend does not hold x seconds per token
    again      kappa x recompute: what that costs everybody who queues behind it
    decode     sequences that decode there x what each adds to an answer
    guard      the wait for KV room, once what is in flight would take more than 0.8 of the cache

The first three are divided by the operator's weight. Owns the formula. Pure: numbers in, numbers out.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KV_HIGH_WATER", "Terms", "guard_s"]

KV_HIGH_WATER = 0.8
"""Above this share engines evict silently, preempt, and TTFT jumps."""


class Terms(NamedTuple):
    """Seconds each; their sum is what policies compare."""

    backlog_s: float
    recompute_s: float
    again_s: float
    decode_s: float
    guard_s: float

    @property
    def cost_s(self) -> float:
        return self.backlog_s + self.recompute_s + self.again_s + self.decode_s + self.guard_s


def guard_s(used_tokens: float, capacity_tokens: float, stay_s: float) -> float:
    """The wait for room when `used_tokens`, this request counted, share a cache: 0 up to the high-water mark.

    Room comes back as requests end, the whole of it once in `stay_s`, the mean time in flight.
    """
    over = used_tokens / capacity_tokens - KV_HIGH_WATER
    return over * stay_s if over > 0 else 0.0
