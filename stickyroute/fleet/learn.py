"""Straight lines through what is observed: seconds against tokens, seconds against running sequences.

Owns the robust running fit. Knows neither backends nor requests.
"""

from __future__ import annotations

from math import sqrt

__all__ = ["Line", "Mean", "toward"]

_DEVIATION = 1.25  # standard deviations in a mean absolute one, of a normal distribution
_SPREAD_LIMIT = 3.0  # residuals past so many times the mean one count as if they were that large


class Line:
    """y = base + slope x, fitted to the last hundred or so points by least squares.

    `base` and `slope` are where it begins. `unit` is a distance in x over which a slope can be told: while the
    points lie closer together the slope stays as it was. The slope is never negative, nor more than `limit`
    times off its start. A point far off the line pulls no more than one at three mean residuals (Huber), so
    that a request that was stuck for other reasons doesn't count for hundreds. `error` is the standard error of the
    slope.
    """

    __slots__ = (
        "_bounds", "_count", "_decay", "_miss", "_ridge", "_x", "_xx", "_xy", "_y", "base", "error", "slope",
    )  # fmt: skip

    def __init__(
        self, base: float, slope: float, unit: float, limit: float = 20.0, decay: float = 0.99
    ) -> None:
        self.base = base
        self.slope = slope
        self.error = slope
        self._bounds = slope / limit, slope * limit
        self._decay = decay
        self._ridge = unit * unit
        self._count = 4.0  # points at x = 0, on the line
        self._x = self._xx = self._xy = 0.0
        self._y = 4.0 * base
        self._miss = base + slope * unit  # mean residual, generous at first

    def add(self, x: float, y: float) -> None:
        """One more point."""
        off = y - self.base - self.slope * x
        far = abs(off)
        limit = _SPREAD_LIMIT * self._miss
        if far > limit:
            y -= off * (1.0 - limit / far)
        decay = self._decay
        # Comparisons are spelt out here: each `min` and `max` would cost as much as a line.
        most = 2.0 * limit
        self._miss = decay * self._miss + (1.0 - decay) * (far if far < most else most)
        count = self._count = decay * self._count + 1.0
        self._x = decay * self._x + x
        self._y = decay * self._y + y
        self._xx = decay * self._xx + x * x
        self._xy = decay * self._xy + x * y
        mean_x, mean_y = self._x / count, self._y / count
        spread = self._xx - count * mean_x * mean_x
        spread = self._ridge + (spread if spread > 0.0 else 0.0)
        slope = (self._xy - count * mean_x * mean_y + self._ridge * self.slope) / spread
        low, high = self._bounds
        self.slope = slope = low if slope < low else high if slope > high else slope
        base = mean_y - slope * mean_x
        self.base = base if base > 0.0 else 0.0
        self.error = _DEVIATION * self._miss / sqrt(spread)


def toward(slope: float, common: float, doubt: float) -> float:
    """A slope of one's own as far as it is beyond doubt (James and Stein's estimate): the common one up to `doubt`
    away from it, and nearly its own far beyond."""
    off = slope - common
    return common + off * (1.0 - (doubt / off) ** 2) if abs(off) > doubt else common


class Mean:
    """A mean that follows: each value counts `weight` of the distance to it."""

    __slots__ = ("_weight", "value")

    def __init__(self, value: float, weight: float = 0.01) -> None:
        self.value = value
        self._weight = weight

    def add(self, value: float) -> None:
        self.value += self._weight * (value - self.value)
