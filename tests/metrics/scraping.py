"""A fleet for metrics to read, metrics with samples in every family, and what a scrape of them says."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from stickyroute.clock import monotonic
from stickyroute.fleet.sample import Sample
from stickyroute.metrics import (
    ConfigFigures,
    DiscoveryFigures,
    Metrics,
    PrefixBreaks,
    Prices,
    ShadowFigures,
)


class FakeFleet:
    """The part of a fleet that metrics read: names, slots, two arrays, pools by model."""

    def __init__(self, backends: Sequence[str] = ("a", "b"), models: Sequence[str] = ("llama",)) -> None:
        self.models = models
        self.samples: dict[int, tuple[Sample, float]] = {}
        self.states: dict[int, dict[str, Any]] = {}
        self.fingerprint = "0123456789abcdef"
        self.changes = 2
        self.moved_share = 0.375
        self.list(*backends)

    def list(self, *names: str) -> None:
        self.backends = [
            SimpleNamespace(name=name, slot=slot, spec=SimpleNamespace(weight=2))
            for slot, name in enumerate(names)
        ]
        self.in_flight = [0] * len(names)
        self.available = bytearray(b"\x01" * len(names))
        self.loads = SimpleNamespace(
            backlog_tokens=[1200.0] * len(names),
            token_s=[1 / 8000] * len(names),
            trust=[0.75] * len(names),
            room=[0.5] * len(names),
            kappa=SimpleNamespace(value=0.5),
        )

    def sample(self, slot: int) -> tuple[Sample, float] | None:
        return self.samples.get(slot)

    def state(self, slot: int) -> Any:
        words = self.states.get(slot, {})
        return SimpleNamespace(
            **{"operator": "active", "health": "healthy", "ejected": False, "paused_s": 0.0} | words
        )

    def ejections(self, slot: int) -> int:
        return 2 * slot

    def warnings(self, slot: int) -> tuple[Any, ...]:
        return (SimpleNamespace(code="kv_full"),) if slot else ()

    def pool(self, model: str | None) -> Any:
        return SimpleNamespace(label=model) if model in self.models else None


def metrics_of(fleet: FakeFleet) -> Metrics:
    return Metrics(fleet, "1.2.3")  # type: ignore[arg-type]  # a fake with what is needed


def record(metrics: Metrics, **changes: Any) -> None:
    values: dict[str, Any] = {
        "pool": "llama",
        "backend": "a",
        "route": "/v1/chat/completions",
        "status": 200,
        "reason": "home",
        "ttft_s": 0.02,
        "duration_s": 1.5,
        "bytes_in": 100,
        "bytes_out": 2000,
    }
    metrics.record(**(values | changes))


def text_of(metrics: Metrics, openmetrics: bool = False) -> bytes:
    return b"".join(metrics.text(openmetrics))


def scrape(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of one name: labels -> value."""
    text = text_of(metrics).decode()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def ask_everybody(metrics: Metrics) -> None:
    """A source for every figure that others keep."""
    sources = metrics.sources
    sources.config = lambda: ConfigFigures(4, 3, 1, 1.8e9, True)
    sources.discovery = lambda: [DiscoveryFigures("dns:vllm.local", 3, 2, False)]
    sources.breaks = lambda: [PrefixBreaks("system", "clock", 4, 2000.0)]
    sources.shadow = lambda: ShadowFigures("sticky", 10, 7, 1000.0, 800.0, 600.0, 1.2, 1.1)
    sources.log_lines_dropped = lambda: 5
    sources.spans_dropped = lambda: 0
    sources.held_requests = lambda: 2


def busy() -> Metrics:
    """Metrics with samples in every family, and labels that need escaping."""
    fleet = FakeFleet(backends=("a", 'odd"\\\nname'), models=("llama", 'mo"del\n\\'))
    metrics = metrics_of(fleet)
    for backend in fleet.backends:
        for pool in (*fleet.models, "unknown", ""):
            record(metrics, pool=pool, backend=backend.name)
        metrics.upstream_failures(backend.name, "upstream_died")
    metrics.retries("stale")
    metrics.decisions("warm")
    fleet.samples[0] = (
        Sample(kv_utilization=0.5, running=3, waiting=0, preemptions=1, queries_tokens=9, hits_tokens=4),
        monotonic(),
    )
    metrics.decision_time(1e-5)
    metrics.price(Prices({"*": 1e-6}, 0.1, 1.25))
    metrics.lag.observe(0.002)
    ask_everybody(metrics)
    return metrics
