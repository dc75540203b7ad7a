"""How many retries the traffic pays for.

Owns the budget. Whether a request may be tried again at all is the proxy's to know.
"""

from __future__ import annotations

__all__ = ["RetryBudget"]

_UNITS = 1_000_000  # whole parts of a retry: 0.2 added five times is then exactly one


class RetryBudget:
    """Every request earns `ratio` (0 to 1) of a retry; up to `burst` are saved, and are there at the start.

    With a ratio of 0 the burst is all there ever is; with a burst of 0 a retry must be earned first.
    """

    __slots__ = ("_capacity", "_earned", "_saved")

    def __init__(self, ratio: float, burst: int) -> None:
        if not 0 <= ratio <= 1 or burst < 0:
            raise ValueError("ratio must be from 0 to 1 and burst must not be negative")
        self._earned = round(ratio * _UNITS)
        self._saved = burst * _UNITS
        self._capacity = max(self._saved, _UNITS if self._earned else 0)

    def record_request(self) -> None:
        """Count a request, not its retries."""
        saved = self._saved + self._earned
        self._saved = saved if saved < self._capacity else self._capacity

    def try_spend(self) -> bool:
        """Take one retry out of the budget; False, and nothing taken, if there is none."""
        if self._saved < _UNITS:
            return False
        self._saved -= _UNITS
        return True
