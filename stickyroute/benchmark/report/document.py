"""The value a report is made of, and its JSON.

Owns the grouping of runs: repeats with different seeds stand together, policies are compared within one
workload, rate and number of replicas. Renders nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stickyroute.benchmark.results import Summary, median_of

BASELINE = "round_robin"


@dataclass(slots=True)
class Report:
    """Everything of one invocation. `facts` are lines like versions and the fleet, for the reader; `scenario`
    is the digest of what was run, empty if there was no scenario."""

    title: str
    made: str
    facts: list[str]
    slo_ttft_s: float
    gpu_hour_usd: float
    summaries: list[Summary]
    series: list[dict[str, Any]] = field(default_factory=list)
    scenario: str = ""

    def as_json(self) -> str:
        return json.dumps(
            {
                "title": self.title,
                "made": self.made,
                "facts": self.facts,
                "slo_ttft_s": self.slo_ttft_s,
                "gpu_hour_usd": self.gpu_hour_usd,
                "scenario": self.scenario,
                "summaries": [summary.as_json() for summary in self.summaries],
                "series": self.series,
            }
        )

    def series_of(self, summary: Summary) -> dict[str, Any] | None:
        """The gauges over time of a run; they are kept for the first seed only."""
        if summary.seed:
            return None
        what = (summary.workload, summary.policy, summary.replicas, summary.rate)
        return next(
            (one for one in self.series
             if (one["workload"], one["policy"], one["replicas"], one["rate"]) == what),
            None,
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Report:
        """From a file that `as_json` filled. Raises ValueError if it is something else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            summaries = [Summary.of_json(summary) for summary in values.pop("summaries")]
            return cls(**values, summaries=summaries)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a report of `stickyroute bench`: {error}") from None


@dataclass(frozen=True, slots=True)
class Group:
    """What may be compared: one workload at one rate with one number of replicas, by policy."""

    workload: str
    rate: float
    replicas: int
    how: str
    by_policy: dict[str, list[Summary]]

    @property
    def title(self) -> str:
        rate = f" at {self.rate:g}/s" if self.rate else ""
        replicas = f", {self.replicas} router replicas" if self.replicas > 1 else ""
        return f"{self.workload}{rate}{replicas}"

    def ratio(self, policy: str, figure: Callable[[Summary], float | None]) -> float:
        """A policy's median over the baseline's; nan without a baseline."""
        base = median_of(self.by_policy.get(self.baseline, []), figure)
        value = median_of(self.by_policy[policy], figure)
        return value / base if base else math.nan

    @property
    def baseline(self) -> str:
        """Round-robin under whatever name it was run, of several one that has figures; else the first."""
        names = [name for name in self.by_policy if BASELINE in name]
        valid = [name for name in names if not all(run.refused for run in self.by_policy[name])]
        return next(iter([*valid, *names, *self.by_policy]))

    def saved(self, policy: str, gpu_hour_usd: float) -> tuple[float, float]:
        """Against the baseline, for a day of this traffic: GPU hours of prefill, and dollars."""
        base = median_of(self.by_policy[self.baseline], lambda s: s.prefill_gpu_s)
        spent = median_of(self.by_policy[policy], lambda s: s.prefill_gpu_s)
        span_s = median_of(self.by_policy[policy], lambda s: s.arrivals_s)
        hours = (base - spent) / span_s * 24 if span_s else math.nan
        return hours, hours * gpu_hour_usd


def groups_of(summaries: Sequence[Summary]) -> list[Group]:
    """In order of first appearance."""
    groups: dict[tuple[str, float, int, str], Group] = {}
    for summary in summaries:
        key = (summary.workload, round(summary.rate, 3), summary.replicas, summary.how)
        group = groups.setdefault(key, Group(*key, by_policy={}))
        group.by_policy.setdefault(summary.policy, []).append(summary)
    return list(groups.values())
