"""The terminal table: for each workload one line a policy, medians over seeds, and the ratio to round-robin.

Owns the layout in plain text. Knows no colour and no width beyond a hundred and some columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stickyroute.benchmark.report.document import Group, Report, groups_of
from stickyroute.benchmark.results import Summary, median_of, spread_of


def render(report: Report) -> str:
    """The whole table."""
    lines = [report.title, *(f"  {fact}" for fact in report.facts)]
    for group in groups_of(report.summaries):
        lines += ["", *_group(group, report)]
    lines += [
        "",
        "Medians over seeds, [smallest - largest]. x: TTFT p95 of round-robin divided by the policy's.",
        f"good: first token within {report.slo_ttft_s:g} s. max/mean: requests on the busiest engine. saved:",
        f"prefill GPU hours and money for a day of this traffic, at ${report.gpu_hour_usd:g} a GPU hour.",
    ]
    return "\n".join(lines)


def _group(group: Group, report: Report) -> list[str]:
    some = next(iter(group.by_policy.values()))[0]
    repeats = max(len(runs) for runs in group.by_policy.values())
    width = max(12, *(len(name) for name in group.by_policy)) + 2
    heads = (
        f"{'hit rate':>9} {'TTFT mean':>9} {'p50':>8} {'p95':>8} {'[spread]':>17} {'x':>6} {'good':>6} "
        f"{'ITL p50':>8} {'e2e p95':>8} {'max/mean':>9} {'saved a day':>19}"
    )
    lines = [
        f"{group.title}   ({some.requests} requests, {repeats} seed{'s' * (repeats > 1)}, {group.how})",
        f"  {'':<{width}}{heads}",
    ]
    for policy, runs in group.by_policy.items():
        refused = [run.refused for run in runs if run.refused]
        if len(refused) == len(runs):
            lines.append(f"  {policy:<{width}}no figures: {refused[0]}")
            continue
        lines.append(f"  {policy:<{width}}" + _line(group, policy, runs, report))
        if refused:
            lines.append(f"  {'':<{width}}{len(refused)} of {len(runs)} repeats refused: {refused[0]}")
        errors = sum(run.errors for run in runs)
        if errors:
            lines.append(f"  {'':<{width}}{errors} requests failed")
    return lines


def _line(group: Group, policy: str, runs: list[Summary], report: Report) -> str:
    def median(figure: Callable[[Summary], float | None]) -> float:
        return median_of(runs, figure)

    low, high = spread_of(runs, lambda run: run.ttft_p95_s)
    hours, dollars = group.saved(policy, report.gpu_hour_usd)
    ratio = group.ratio(policy, lambda run: run.ttft_p95_s)
    base = policy == group.baseline
    return (
        f"{percent(median(lambda run: run.hit_rate)):>9} {seconds(median(lambda run: run.ttft_mean_s)):>9} "
        f"{seconds(median(lambda run: run.ttft_p50_s)):>8} "
        f"{seconds(median(lambda run: run.ttft_p95_s)):>8} {f'[{seconds(low)} - {seconds(high)}]':>17} "
        f"{times(1 / ratio) if ratio else '-':>6} {percent(median(lambda run: run.good), 0):>6} "
        f"{seconds(median(lambda run: run.itl_p50_s)):>8} "
        f"{seconds(median(lambda run: run.latency_p95_s)):>8} "
        f"{median(lambda run: run.imbalance):>9.2f} "
        f"{'-' if base or math.isnan(hours) else f'{hours:,.0f} h, ${dollars:,.0f}':>19}"
    )


def percent(share: float, digits: int = 1) -> str:
    return "-" if math.isnan(share) else f"{share:.{digits}%}"


def seconds(value: float) -> str:
    """A time with the digits it deserves."""
    if math.isnan(value):
        return "-"
    if value < 0.0995:
        return f"{value * 1e3:.1f}ms" if value < 0.00995 else f"{value * 1e3:.0f}ms"
    return f"{value:.2f}s" if value < 9.95 else f"{value:.0f}s"


def times(ratio: float) -> str:
    """How many times as good."""
    if math.isnan(ratio):
        return "-"
    if ratio < 0.095:
        return f"{ratio:.1g}x"
    return f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.0f}x"
