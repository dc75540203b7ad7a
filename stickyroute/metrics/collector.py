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

from stickyroute.clock import monotonic
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
        yield from self._engine_families()
        yield from self._learned_families()
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
        prompt = CounterMetricFamily(
            "stickyroute_prompt_tokens",
            "Prompt tokens of replies that told how many of them were cached.",
            labels=labels,
        )
        cached = CounterMetricFamily(
            "stickyroute_cached_tokens", "Those of them that the engine had cached.", labels=labels
        )
        expected = CounterMetricFamily(
            "stickyroute_expected_cached_tokens",
            "Those of them that were believed to be cached there when the request was sent.",
            labels=labels,
        )
        for pair, traffic in self._counters.traffic.items():
            prompt.add_metric(pair, traffic.prompt_tokens)
            cached.add_metric(pair, traffic.cached_tokens)
            expected.add_metric(pair, traffic.expected_tokens)
            ttft.add_metric(pair, traffic.ttft.cumulative(), traffic.ttft.sum)
            duration.add_metric(pair, traffic.duration.cumulative(), traffic.duration.sum)
            bytes_in.add_metric(pair, traffic.bytes_in)
            bytes_out.add_metric(pair, traffic.bytes_out)
        yield from (ttft, duration, bytes_in, bytes_out, prompt, cached, expected)

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

    def _engine_families(self) -> Iterator[Metric]:
        """What the engines say of themselves; what one does not say has no series."""
        labels = ("backend",)
        kv = GaugeMetricFamily(
            "stickyroute_backend_kv_utilization",
            "The part of its KV cache that running requests hold, 0 to 1, as the engine says.",
            labels=labels,
        )
        running = GaugeMetricFamily(
            "stickyroute_backend_engine_running", "Requests that run, as the engine says.", labels=labels
        )
        waiting = GaugeMetricFamily(
            "stickyroute_backend_engine_waiting", "Requests that wait, as the engine says.", labels=labels
        )
        age = GaugeMetricFamily(
            "stickyroute_backend_sample_age_seconds",
            "How old it is, what the engine said of itself last.",
            labels=labels,
        )
        now_s = monotonic()
        for backend in self._counters.fleet.backends:
            known = self._counters.fleet.sample(backend.slot)
            if known is None:
                continue
            sample, taken_s = known
            age.add_metric((backend.name,), now_s - taken_s)
            for family, value in (
                (kv, sample.kv_utilization),
                (running, sample.running),
                (waiting, sample.waiting),
            ):
                if value is not None:
                    family.add_metric((backend.name,), value)
        yield from (kv, running, waiting, age)

    def _learned_families(self) -> Iterator[Metric]:
        """What the token-counting policies go by."""
        fleet = self._counters.fleet
        loads = fleet.loads
        labels = ("backend",)
        backlog = GaugeMetricFamily(
            "stickyroute_backend_backlog_tokens",
            "Uncached prompt tokens sent to the backend that wait for their first token.",
            labels=labels,
        )
        rate = GaugeMetricFamily(
            "stickyroute_backend_prefill_tokens_per_second",
            "Uncached prompt tokens a second that the backend computes, as learned.",
            labels=labels,
        )
        trust = GaugeMetricFamily(
            "stickyroute_backend_trust",
            "The part of what is believed to be cached on the backend that is, as learned from replies.",
            labels=labels,
        )
        for backend in fleet.backends:
            backlog.add_metric((backend.name,), loads.backlog_tokens[backend.slot])
            rate.add_metric((backend.name,), 1.0 / loads.token_s[backend.slot])
            trust.add_metric((backend.name,), loads.trust[backend.slot])
        yield from (backlog, rate, trust)
        yield GaugeMetricFamily(
            "stickyroute_kappa",
            "How much longer a request waits than its own work takes: mean TTFT by mean service time, less 1.",
            value=loads.kappa.value,
        )
        decisions = CounterMetricFamily(
            "stickyroute_decisions", "Choices of a backend, further attempts included.", labels=("reason",)
        )
        rows = self._counters.decisions_by_reason.items()
        yield _fill(decisions, (((reason,), count) for reason, count in rows))

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
