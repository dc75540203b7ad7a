"""A scrape: the counters and the fleet's state as Prometheus families.

Owns the names of the metrics and their help texts; docs/metrics.md lists them all, and a test compares the
two. Reads the counters and never changes what they count.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from stickyroute.metrics.counters import OTHER, STATUS_CLASSES, Counters

__all__ = ["FleetCollector"]


class FleetCollector(Collector):
    """Every family of stickyroute's own, made anew for each scrape."""

    def __init__(self, counters: Counters, version: str) -> None:
        self._counters = counters
        self._build = (version, platform.python_version())

    def collect(self) -> Iterator[Metric]:
        """The families one by one; each group is complete before its first one is handed out."""
        self._counters.drop_removed()
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
        for (pool, backend, route, hundreds, reason), series in self._counters.series.items():
            status = STATUS_CLASSES.get(hundreds, OTHER)
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
        for pair, traffic in self._counters.traffic.items():
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
        fleet = self._counters.fleet
        for backend in fleet.backends:
            in_flight.add_metric((backend.name,), fleet.in_flight[backend.slot])
            available.add_metric((backend.name,), 1 if fleet.available[backend.slot] else 0)
        yield in_flight
        yield available
        yield _fill(failures, self._counters.failures.items())

    def _process_families(self) -> Iterator[Metric]:
        retries = CounterMetricFamily(
            "stickyroute_retries", "Attempts beyond a request's first.", labels=("kind",)
        )
        yield _fill(retries, (((kind,), count) for kind, count in self._counters.retries_by_kind.items()))
        yield CounterMetricFamily(
            "stickyroute_client_disconnects",
            "Clients that left before their reply was complete.",
            value=self._counters.client_disconnects,
        )
        decision = HistogramMetricFamily(
            "stickyroute_decision_seconds", "Time one routing decision took.", labels=()
        )
        decision.add_metric((), self._counters.decision.cumulative(), self._counters.decision.sum)
        yield decision
        build = GaugeMetricFamily(
            "stickyroute_build_info", "Always 1; the labels say what runs.", labels=("version", "python")
        )
        build.add_metric(self._build, 1)
        yield build


def _fill(family: CounterMetricFamily, rows: Iterable[tuple[tuple[str, ...], int]]) -> CounterMetricFamily:
    for labels, count in rows:
        family.add_metric(labels, count)
    return family
