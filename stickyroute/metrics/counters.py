"""The counters behind every metric, and the little a finished request costs: one look-up, a few additions.

Owns labels, buckets and counts, and keeps the number of series bounded. Must not know about sockets, HTTP
messages or policies, nor how a scrape is written.
"""

from __future__ import annotations

from bisect import bisect_left

from stickyroute.fleet import Fleet

__all__ = ["NONE", "OTHER", "STATUS_CLASSES", "Counters", "Histogram"]

OTHER = "other"
"""Label of every pool or route that is not one of ours."""

NONE = "none"
"""`pool`, `backend` or `reason` of a request that was answered before one was chosen."""

MAX_POOLS = 256
"""Pool labels in one process at most; engines that list more models than that share `other`."""

TTFT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
DECISION_BUCKETS_S = (1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6, 64e-6, 128e-6, 256e-6, 512e-6, 1e-3, 1e-2)

STATUS_CLASSES = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}


class Histogram:
    """Counts per bucket (the last one is +Inf) and the sum of what was observed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them: each counts everything up to its bound."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip(self.bounds, self.counts, strict=False):
            total += count
            rows.append((repr(float(bound)), total))
        rows.append(("+Inf", total + self.counts[-1]))
        return rows


class _Traffic:
    """What one backend did for one pool."""

    __slots__ = (
        "bytes_in", "bytes_out", "cached_tokens", "duration", "expected_tokens", "prompt_tokens", "ttft"
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.expected_tokens = 0.0
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.duration = Histogram(DURATION_BUCKETS_S)


class _Series:
    """Requests with one combination of labels, and the traffic they add to."""

    __slots__ = ("requests", "traffic")

    def __init__(self, traffic: _Traffic) -> None:
        self.requests = 0
        self.traffic = traffic


_Key = tuple[str, str, str, int, str]
"""pool, backend, route, hundreds of the status, reason."""


class Counters:
    """What happened since the start, in plain integers.

    `client_disconnects` is a plain number: whoever sees a client leave before its reply is complete adds 1.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.client_disconnects = 0
        self.series: dict[_Key, _Series] = {}
        self.traffic: dict[tuple[str, str], _Traffic] = {}
        self.retries_by_kind: dict[str, int] = {}
        self.failures: dict[tuple[str, str], int] = {}
        self.decisions_by_reason: dict[str, int] = {}
        self.decision = Histogram(DECISION_BUCKETS_S)
        self._known: dict[_Key, _Series] = {}
        self._pools: set[str] = set()

    def record(
        self,
        pool: str,
        backend: str,
        route: str,
        status: int,
        reason: str,
        ttft_s: float | None,
        duration_s: float,
        bytes_in: int,
        bytes_out: int,
    ) -> None:
        """Count one finished request. `ttft_s` is None for a reply that did not stream or had no first byte.

        `pool` is the fleet's label, `backend` the name of the one that answered last ("" for none), `route`
        the template of the route ("" when none matched), `status` what the client saw, sizes are bytes.
        """
        series = self._known.get((pool, backend, route, status // 100, reason))
        if series is None:
            series = self._open(pool, backend, route, status // 100, reason)
        series.requests += 1
        traffic = series.traffic
        traffic.bytes_in += bytes_in
        traffic.bytes_out += bytes_out
        traffic.duration.observe(duration_s)
        if ttft_s is not None:
            traffic.ttft.observe(ttft_s)

    def prompt(
        self, pool: str, backend: str, prompt_tokens: int, cached_tokens: int, expected_tokens: float
    ) -> None:
        """Count one prompt whose reply told how much of it was cached; `expected_tokens` is how much was
        believed to be, when it was sent there."""
        traffic = self._traffic_of(self._pool_label(pool), backend or NONE)
        traffic.prompt_tokens += prompt_tokens
        traffic.cached_tokens += cached_tokens
        traffic.expected_tokens += expected_tokens

    def decisions(self, reason: str) -> None:
        """Count one choice of a backend, those of further attempts included."""
        self.decisions_by_reason[reason] = self.decisions_by_reason.get(reason, 0) + 1

    def retries(self, kind: str) -> None:
        """Count one further attempt; `kind` is why (a word of the proxy's)."""
        self.retries_by_kind[kind] = self.retries_by_kind.get(kind, 0) + 1

    def upstream_failures(self, backend: str, kind: str) -> None:
        """Count one attempt that failed on its backend; `kind` is how (a word of the proxy's)."""
        key = (backend, kind)
        self.failures[key] = self.failures.get(key, 0) + 1

    def decision_time(self, seconds: float) -> None:
        """Observe how long one routing decision took."""
        self.decision.observe(seconds)

    def _open(self, pool: str, backend: str, route: str, hundreds: int, reason: str) -> _Series:
        """The series of labels not seen before. A pool the fleet does not name is not remembered."""
        label = self._pool_label(pool)
        named = backend or NONE
        key = (label, named, route or OTHER, hundreds if hundreds in STATUS_CLASSES else 0, reason or NONE)
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = _Series(self._traffic_of(label, named))
        if pool in (label, ""):
            self._known[pool, backend, route, hundreds, reason] = series
        return series

    def _traffic_of(self, label: str, named: str) -> _Traffic:
        traffic = self.traffic.get((label, named))
        if traffic is None:
            traffic = self.traffic[label, named] = _Traffic()
        return traffic

    def _pool_label(self, name: str) -> str:
        if not name:
            return NONE
        if name in self._pools:
            return name
        if len(self._pools) >= MAX_POOLS or not self._is_pool(name):
            return OTHER
        self._pools.add(name)
        return name

    def drop_removed(self) -> None:
        """Forget what is labelled with a backend or a model that the fleet no longer has."""
        backends = {backend.name for backend in self.fleet.backends} | {NONE, ""}
        self._pools = {name for name in self._pools if self._is_pool(name)}
        pools = self._pools | {OTHER, NONE, ""}
        for table in (self.series, self._known):
            for key in [key for key in table if key[0] not in pools or key[1] not in backends]:
                del table[key]
        for pair in [pair for pair in self.traffic if pair[0] not in pools or pair[1] not in backends]:
            del self.traffic[pair]
        for failure in [failure for failure in self.failures if failure[0] not in backends]:
            del self.failures[failure]

    def _is_pool(self, name: str) -> bool:
        pool = self.fleet.pool(name)
        return pool is not None and pool.label == name
