"""Every number stickyroute exposes to Prometheus: one registry, one collector.

Owns the metric names, their labels, their buckets and how they are counted. A finished request costs one
dictionary lookup and a few integer additions on slotted objects; Prometheus objects exist only while a scrape
is being answered. Must not know about sockets, HTTP messages or policies, and never takes a label from a
client: a pool that the fleet does not name folds into `other`, a route is its template, reasons and kinds are
words of our own code.

Times are seconds, sizes are bytes. docs/metrics.md lists every family; a test compares the two.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from stickyroute.fleet import Fleet

__all__ = ["NONE", "OTHER", "Metrics"]

OTHER = "other"
"""Label of every pool or route that is not one of ours."""

NONE = "none"
"""`pool`, `backend` or `reason` of a request that was answered before one was chosen."""

MAX_POOLS = 256
"""Pool labels in one process at most; engines that list more models than that share `other`."""

TTFT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
DECISION_BUCKETS_S = (1e-6, 2e-6, 4e-6, 8e-6, 16e-6, 32e-6, 64e-6, 128e-6, 256e-6, 512e-6, 1e-3, 1e-2)

_STATUS_CLASSES = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}


class _Histogram:
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

    __slots__ = ("bytes_in", "bytes_out", "duration", "ttft")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.ttft = _Histogram(TTFT_BUCKETS_S)
        self.duration = _Histogram(DURATION_BUCKETS_S)


class _Series:
    """Requests with one combination of labels, and the traffic they add to."""

    __slots__ = ("requests", "traffic")

    def __init__(self, traffic: _Traffic) -> None:
        self.requests = 0
        self.traffic = traffic


_Key = tuple[str, str, str, int, str]
"""pool, backend, route, hundreds of the status, reason."""


class Metrics:
    """All counters of one app. `registry` is what the admin port renders.

    `client_disconnects` is a plain counter: the proxy adds 1 when a client left before its reply was
    complete.
    """

    def __init__(self, fleet: Fleet, version: str) -> None:
        self.client_disconnects = 0
        self._fleet = fleet
        self._series: dict[_Key, _Series] = {}
        self._known: dict[_Key, _Series] = {}
        self._traffic: dict[tuple[str, str], _Traffic] = {}
        self._pools = {OTHER}
        self._retries: dict[str, int] = {}
        self._upstream_failures: dict[tuple[str, str], int] = {}
        self._decision = _Histogram(DECISION_BUCKETS_S)
        self._build = (version, platform.python_version())
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_FleetCollector(self))
        ProcessCollector(registry=self.registry)

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

    def retries(self, kind: str) -> None:
        """Count one further attempt; `kind` is why (a word of the proxy's)."""
        self._retries[kind] = self._retries.get(kind, 0) + 1

    def upstream_failures(self, backend: str, kind: str) -> None:
        """Count one attempt that failed on its backend; `kind` is how (a word of the proxy's)."""
        key = (backend, kind)
        self._upstream_failures[key] = self._upstream_failures.get(key, 0) + 1

    def decision_time(self, seconds: float) -> None:
        """Observe how long one routing decision took."""
        self._decision.observe(seconds)

    def _open(self, pool: str, backend: str, route: str, hundreds: int, reason: str) -> _Series:
        """The series of labels not seen before. A pool the fleet does not name is not remembered."""
        label = self._pool_label(pool)
        named = backend or NONE
        key = (label, named, route or OTHER, hundreds if hundreds in _STATUS_CLASSES else 0, reason or NONE)
        series = self._series.get(key)
        if series is None:
            traffic = self._traffic.get((label, named))
            if traffic is None:
                traffic = self._traffic[label, named] = _Traffic()
            series = self._series[key] = _Series(traffic)
        if pool in (label, ""):
            self._known[pool, backend, route, hundreds, reason] = series
        return series

    def _pool_label(self, name: str) -> str:
        if not name:
            return NONE
        if name in self._pools:
            return name
        pool = self._fleet.pool(name)
        if pool is None or pool.label != name or len(self._pools) >= MAX_POOLS:
            return OTHER
        self._pools.add(name)
        return name

    def _drop_removed_backends(self) -> None:
        """Forget what is labelled with a backend the fleet no longer lists."""
        listed = {backend.name for backend in self._fleet.backends} | {NONE, ""}
        for table in (self._series, self._known):
            for key in [key for key in table if key[1] not in listed]:
                del table[key]
        for pair in [pair for pair in self._traffic if pair[1] not in listed]:
            del self._traffic[pair]
        for failure in [failure for failure in self._upstream_failures if failure[0] not in listed]:
            del self._upstream_failures[failure]

    def families(self) -> Iterator[Metric]:
        """Everything, as Prometheus families; called once per scrape."""
        self._drop_removed_backends()
        yield from self._request_families()
        yield from self._traffic_families()
        yield from self._backend_families()
        yield from self._process_families()

    def _request_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "stickyroute_requests",
            "Finished requests.",
            labels=("pool", "backend", "status", "reason"),
        )
        routes = CounterMetricFamily(
            "stickyroute_route_requests", "Finished requests by route template.", labels=("route", "status")
        )
        by_choice: dict[tuple[str, ...], int] = {}
        by_route: dict[tuple[str, ...], int] = {}
        for (pool, backend, route, hundreds, reason), series in self._series.items():
            status = _STATUS_CLASSES.get(hundreds, OTHER)
            choice = (pool, backend, status, reason)
            by_choice[choice] = by_choice.get(choice, 0) + series.requests
            by_route[route, status] = by_route.get((route, status), 0) + series.requests
        yield _fill(requests, by_choice.items())
        yield _fill(routes, by_route.items())

    def _traffic_families(self) -> Iterator[Metric]:
        labels = ("pool", "backend")
        ttft = HistogramMetricFamily(
            "stickyroute_ttft_seconds",
            "Streamed replies: time from the request's head to the reply's first byte of body.",
            labels=labels,
        )
        duration = HistogramMetricFamily(
            "stickyroute_request_duration_seconds", "Time from the request's head to its end.", labels=labels
        )
        bytes_in = CounterMetricFamily(
            "stickyroute_received_bytes", "Bytes of requests received from clients.", labels=labels
        )
        bytes_out = CounterMetricFamily(
            "stickyroute_sent_bytes", "Bytes of replies sent to clients.", labels=labels
        )
        for pair, traffic in self._traffic.items():
            ttft.add_metric(pair, traffic.ttft.cumulative(), traffic.ttft.sum)
            duration.add_metric(pair, traffic.duration.cumulative(), traffic.duration.sum)
            bytes_in.add_metric(pair, traffic.bytes_in)
            bytes_out.add_metric(pair, traffic.bytes_out)
        yield from (ttft, duration, bytes_in, bytes_out)

    def _backend_families(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily(
            "stickyroute_backend_in_flight", "Requests in flight on the backend now.", labels=("backend",)
        )
        available = GaugeMetricFamily(
            "stickyroute_backend_available",
            "1 while new requests may go to the backend, else 0.",
            labels=("backend",),
        )
        failures = CounterMetricFamily(
            "stickyroute_upstream_failures",
            "Attempts that failed on their backend.",
            labels=("backend", "kind"),
        )
        fleet = self._fleet
        for backend in fleet.backends:
            in_flight.add_metric((backend.name,), fleet.in_flight[backend.slot])
            available.add_metric((backend.name,), 1 if fleet.available[backend.slot] else 0)
        yield in_flight
        yield available
        yield _fill(failures, self._upstream_failures.items())

    def _process_families(self) -> Iterator[Metric]:
        retries = CounterMetricFamily(
            "stickyroute_retries", "Attempts beyond a request's first.", labels=("kind",)
        )
        yield _fill(retries, (((kind,), count) for kind, count in self._retries.items()))
        yield CounterMetricFamily(
            "stickyroute_client_disconnects",
            "Clients that left before their reply was complete.",
            value=self.client_disconnects,
        )
        decision = HistogramMetricFamily(
            "stickyroute_decision_seconds", "Time one routing decision took.", labels=()
        )
        decision.add_metric((), self._decision.cumulative(), self._decision.sum)
        yield decision
        build = GaugeMetricFamily(
            "stickyroute_build_info", "Always 1; the labels say what runs.", labels=("version", "python")
        )
        build.add_metric(self._build, 1)
        yield build


class _FleetCollector(Collector):
    """What prometheus_client asks on each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def _fill(family: CounterMetricFamily, rows: Iterable[tuple[tuple[str, ...], int]]) -> CounterMetricFamily:
    for labels, count in rows:
        family.add_metric(labels, count)
    return family
