"""What a run yields, whichever way it was run, and the figures drawn from it.

Owns the row of a request, the samples of an engine, percentiles, and the rule that a run whose load
generator fell behind has no figures. Knows neither HTTP nor engines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

LENGTH_EDGES: Final = (1024, 4096, 8192, 16_384, 32_768)
LENGTH_NAMES: Final = ("up to 1k", "1k to 4k", "4k to 8k", "8k to 16k", "16k to 32k", "over 32k")

LATE_LIMIT_S: Final = 0.05
"""A load generator whose 99th percentile is later than this measures itself: its run has no figures."""


UNANSWERED: Final = "unanswered"
"""The error of a request that was still waiting when the run was cut off."""


@dataclass(slots=True)
class Row:
    """One request. `ttft_s` is to the first token (not the first byte), `latency_s` to the last, `itl_s`
    the mean pause between its tokens; None where there was none. `backend` is a slot, -1 if unknown. An
    unanswered request without a first token has in `ttft_s` how long it had waited when the run was cut."""

    at_s: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    ttft_s: float | None
    latency_s: float | None
    itl_s: float | None = None
    backend: int = -1
    reason: str = ""
    error: str = ""


@dataclass(slots=True)
class EngineTotals:
    """What one engine's own counters gained during the run. Tokens; `gpu_s` is None where it is not known."""

    queries: int = 0
    hits: int = 0
    requests: int = 0
    generated: int = 0
    preemptions: int = 0
    gpu_s: float | None = None


@dataclass(slots=True)
class Sample:
    """The gauges of all engines at one moment: running and waiting requests, share of KV blocks in use."""

    at_s: float
    running: list[float]
    waiting: list[float]
    kv: list[float]


@dataclass(slots=True)
class Lateness:
    """How far behind its own schedule a load generator was, and its loop behind the clock. Zero in a
    replay."""

    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    loop_p99_s: float = 0.0

    @property
    def kept_up(self) -> bool:
        return self.p99_s <= LATE_LIMIT_S and self.loop_p99_s <= LATE_LIMIT_S


@dataclass(slots=True)
class Run:
    """One workload once through one policy or router. `arrivals_s` is how long requests came, 0 for up to
    the last."""

    workload: str
    policy: str
    seed: int
    duration_s: float
    rows: list[Row]
    engines: list[EngineTotals]
    samples: list[Sample] = field(default_factory=list)
    lateness: Lateness = field(default_factory=Lateness)
    replicas: int = 1
    how: str = "replay"
    rate: float = 0.0
    arrivals_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. Seconds, tokens and ratios from 0 to 1; `refused` says why there are none."""

    workload: str
    policy: str
    seed: int
    replicas: int
    how: str
    rate: float
    requests: int
    errors: int
    hit_rate: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p95_s: float
    latency_p50_s: float
    latency_p95_s: float
    output_tokens_s: float
    computed_tokens: int
    gpu_s: float | None
    prefill_gpu_s: float
    arrivals_s: float
    shares: tuple[float, ...]
    imbalance: float
    preemptions: int
    good: float
    by_length: dict[str, tuple[int, float, float]]
    ttft_curve_s: tuple[float, ...]
    late_p99_s: float
    refused: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is not known is null, since JSON has no nan."""
        return {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Summary:
        """What `as_json` made, read back."""
        known: dict[str, Any] = {
            key: math.nan if value is None and key != "gpu_s" else value for key, value in values.items()
        }
        known["shares"] = tuple(known["shares"])
        known["ttft_curve_s"] = tuple(known["ttft_curve_s"])
        known["by_length"] = {name: tuple(found) for name, found in known["by_length"].items()}
        return cls(**known)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values; nan of none."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def lateness_of(late_s: Iterable[float], loop_s: Iterable[float]) -> Lateness:
    late, loop = sorted(late_s), sorted(loop_s)
    if not late:
        return Lateness()
    return Lateness(
        percentile(late, 0.5), percentile(late, 0.99), late[-1], percentile(loop, 0.99) if loop else 0.0
    )


def bucket(prompt_tokens: int) -> str:
    """The name of the length class a prompt belongs to."""
    for edge, name in zip(LENGTH_EDGES, LENGTH_NAMES, strict=False):
        if prompt_tokens <= edge:
            return name
    return LENGTH_NAMES[-1]


def summarize(run: Run, slo_ttft_s: float = 1.0, gpu_s_per_token: float = 0.0) -> Summary:
    """The figures of a run; `good` is the share of requests with their first token within `slo_ttft_s`, and
    `gpu_s_per_token` what computing one prompt token costs in GPU seconds.

    The hit rate is hits over queries by the engines' counters. A run whose generator fell behind is
    refused: its figures are nan. Unanswered requests are errors, but their waiting counts as TTFT: without
    it a router that lets requests starve would look fast.
    """
    rows = [row for row in run.rows if not row.error]
    waited = [row for row in run.rows if not row.error or row.error == UNANSWERED]
    refused = ""
    if run.rows and not waited:  # whatever else was wrong
        kind, count = Counter(row.error for row in run.rows).most_common(1)[0]
        refused = f"every request failed, {count} of {len(run.rows)} with: {kind}"
    elif not run.lateness.kept_up:
        refused = (
            f"the load generator was late: p99 {run.lateness.p99_s * 1e3:.0f} ms behind its schedule, its "
            f"loop {run.lateness.loop_p99_s * 1e3:.0f} ms (limit {LATE_LIMIT_S * 1e3:.0f} ms)"
        )
        rows = waited = []
    ttft = sorted(row.ttft_s for row in waited if row.ttft_s is not None)
    itl = sorted(row.itl_s for row in rows if row.itl_s is not None)
    latency = sorted(row.latency_s for row in rows if row.latency_s is not None)
    queries = sum(engine.queries for engine in run.engines)
    hits = sum(engine.hits for engine in run.engines)
    requests = [engine.requests for engine in run.engines]
    total = sum(requests)
    gpu = [engine.gpu_s for engine in run.engines if engine.gpu_s is not None]
    return Summary(
        workload=run.workload,
        policy=run.policy,
        seed=run.seed,
        replicas=run.replicas,
        how=run.how,
        rate=run.rate,
        requests=len(run.rows),
        errors=sum(1 for row in run.rows if row.error),
        hit_rate=hits / queries if queries and not refused else math.nan,
        ttft_mean_s=sum(ttft) / len(ttft) if ttft else math.nan,
        ttft_p50_s=percentile(ttft, 0.5),
        ttft_p90_s=percentile(ttft, 0.9),
        ttft_p95_s=percentile(ttft, 0.95),
        ttft_p99_s=percentile(ttft, 0.99),
        itl_p50_s=percentile(itl, 0.5),
        itl_p95_s=percentile(itl, 0.95),
        latency_p50_s=percentile(latency, 0.5),
        latency_p95_s=percentile(latency, 0.95),
        output_tokens_s=sum(row.output_tokens for row in rows) / run.duration_s if rows else math.nan,
        computed_tokens=queries - hits,
        gpu_s=sum(gpu) if len(gpu) == len(run.engines) and gpu and not refused else None,
        prefill_gpu_s=(queries - hits) * gpu_s_per_token if not refused else math.nan,
        arrivals_s=run.arrivals_s or max((row.at_s for row in run.rows), default=0.0),
        shares=tuple(count / total if total else 0.0 for count in requests),
        imbalance=max(requests) * len(requests) / total if total else math.nan,
        preemptions=sum(engine.preemptions for engine in run.engines),
        good=_good(run, slo_ttft_s) if rows else math.nan,
        by_length=_by_length(waited),
        ttft_curve_s=tuple(percentile(ttft, step / 100) for step in range(1, 101)) if ttft else (),
        late_p99_s=run.lateness.p99_s,
        refused=refused,
    )


def median_of(summaries: Sequence[Summary], figure: Callable[[Summary], float | None]) -> float:
    """The median of a figure over repeats, those without it left out; nan of none."""
    values = _known(summaries, figure)
    if not values:
        return math.nan
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def spread_of(summaries: Sequence[Summary], figure: Callable[[Summary], float | None]) -> tuple[float, float]:
    """The smallest and largest value of a figure over repeats."""
    values = _known(summaries, figure)
    return (values[0], values[-1]) if values else (math.nan, math.nan)


def _known(summaries: Sequence[Summary], figure: Callable[[Summary], float | None]) -> list[float]:
    values = (figure(summary) for summary in summaries)
    return sorted(value for value in values if value is not None and not math.isnan(value))


def _good(run: Run, slo_ttft_s: float) -> float:
    """Errors and requests without a first token count as not good."""
    good = sum(1 for row in run.rows if not row.error and row.ttft_s is not None and row.ttft_s <= slo_ttft_s)
    return good / len(run.rows) if run.rows else math.nan


def _by_length(rows: Sequence[Row]) -> dict[str, tuple[int, float, float]]:
    """By length class: requests, TTFT p50 and p95."""
    classes: dict[str, list[float]] = {}
    for row in rows:
        if row.ttft_s is not None:
            classes.setdefault(bucket(row.prompt_tokens), []).append(row.ttft_s)
    found = {}
    for name in LENGTH_NAMES:
        values = sorted(classes.get(name, ()))
        if values:
            found[name] = (len(values), percentile(values, 0.5), percentile(values, 0.95))
    return found
