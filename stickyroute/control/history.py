"""How the last quarter of an hour went: what the counters gained from step to step.

Owns the steps and the arithmetic. Reads the counters, never writes them; the time is an argument. A backend whose
counters are gone, or began anew, counts nothing for that step rather than something negative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stickyroute.metrics.counters import Counters

__all__ = ["STEP_S", "History", "Recent", "quantile"]

STEP_S = 5.0
POINTS = 180
"""Points kept: a quarter of an hour."""
RECENT_STEPS = 12
"""Steps that make up "recent": a minute."""


class _Sums(NamedTuple):
    """One backend's counters at one moment, over its pools."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    ttft: tuple[int, ...]


class Recent(NamedTuple):
    """What one backend did in the last minute; None where nothing tells. `hit_rate` and `traffic_share` are 0 to
    1, `ttft_s` the median of streamed replies."""

    requests: int
    traffic_share: float | None
    hit_rate: float | None
    ttft_s: float | None


_NOTHING = Recent(0, None, None, None)


class History:
    """`record` each STEP_S seconds. `points` are for charts, oldest first; `recent` tells of one backend."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._steps: deque[tuple[float, dict[str, _Sums]]] = deque(maxlen=RECENT_STEPS + 1)
        self._recent: dict[str, Recent] = {}
        self.points: deque[dict[str, Any]] = deque(maxlen=POINTS)
        self.minute: dict[str, Any] = _point(0.0, 0.0, (), ())

    def record(self, now_s: float, in_flight: int) -> None:
        """Take the counters as they are now. `in_flight` requests goes into the point as it is."""
        sums, bounds = self._read()
        self._steps.append((now_s, sums))
        if len(self._steps) < 2:
            return
        before_s, before = self._steps[-2]
        point = _point(now_s, now_s - before_s, list(_gains(before, sums).values()), bounds)
        self.points.append({**point, "in_flight": in_flight})
        first_s, first = self._steps[0]
        gains = _gains(first, sums)
        self.minute = _point(now_s, now_s - first_s, list(gains.values()), bounds)
        total = sum(gain.requests for gain in gains.values())
        self._recent = {
            name: Recent(
                gain.requests,
                gain.requests / total if total else None,
                gain.cached_tokens / gain.prompt_tokens if gain.prompt_tokens else None,
                quantile(bounds, gain.ttft, 0.5),
            )
            for name, gain in gains.items()
        }

    def recent(self, backend: str) -> Recent:
        """The last minute of the backend called so."""
        return self._recent.get(backend, _NOTHING)

    def _read(self) -> tuple[dict[str, _Sums], tuple[float, ...]]:
        sums: dict[str, _Sums] = {}
        bounds: tuple[float, ...] = ()
        for (_, backend), traffic in self._counters.traffic.items():
            bounds = traffic.ttft.bounds
            mine = _Sums(
                sum(traffic.duration.counts),
                traffic.prompt_tokens,
                traffic.cached_tokens,
                tuple(traffic.ttft.counts),
            )
            others = sums.get(backend)
            sums[backend] = mine if others is None else _plus(others, mine)
        return sums, bounds


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """The value below which `part` of what a histogram counted lies, evenly spread within each bucket; None where it
    counted nothing. What is past the last bound counts as the last bound."""
    total = sum(counts)
    if not total:
        return None
    wanted = part * total
    below = 0.0
    lower = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return lower + (bound - lower) * (wanted - below) / count
        below += count
        lower = bound
    return lower


def _plus(one: _Sums, other: _Sums) -> _Sums:
    return _Sums(
        one.requests + other.requests,
        one.prompt_tokens + other.prompt_tokens,
        one.cached_tokens + other.cached_tokens,
        tuple(a + b for a, b in zip(one.ttft, other.ttft, strict=True)),
    )


def _gains(before: Mapping[str, _Sums], after: Mapping[str, _Sums]) -> dict[str, _Sums]:
    """What each backend's counters rose by."""
    gains: dict[str, _Sums] = {}
    for name, now in after.items():
        then = before.get(name)
        if then is None:
            gains[name] = now
        elif now.requests >= then.requests:
            gains[name] = _Sums(
                now.requests - then.requests,
                now.prompt_tokens - then.prompt_tokens,
                now.cached_tokens - then.cached_tokens,
                tuple(b - a for a, b in zip(then.ttft, now.ttft, strict=True)),
            )
    return gains


def _point(now_s: float, seconds: float, gains: Sequence[_Sums], bounds: Sequence[float]) -> dict[str, Any]:
    """One point of the charts; None where nothing tells."""
    prompt = sum(gain.prompt_tokens for gain in gains)
    ttft = [sum(column) for column in zip(*(gain.ttft for gain in gains), strict=True)]
    return {
        "at_s": round(now_s, 3),
        "requests_s": sum(gain.requests for gain in gains) / seconds if seconds else 0.0,
        "prompt_tokens_s": prompt / seconds if seconds else 0.0,
        "hit_rate": sum(gain.cached_tokens for gain in gains) / prompt if prompt else None,
        "ttft_p50_s": quantile(bounds, ttft, 0.5),
        "ttft_p95_s": quantile(bounds, ttft, 0.95),
    }
