"""One HTML page with everything: tables and charts, no script, no font, nothing fetched.

Owns the order of what is shown and its words. Numbers come from `document`, pictures from `charts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from stickyroute.benchmark.report.charts import Line, bars, lines
from stickyroute.benchmark.report.document import Group, Report, groups_of
from stickyroute.benchmark.report.table import percent, seconds, times
from stickyroute.benchmark.results import LENGTH_NAMES, Summary, median_of, spread_of

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#111827;--soft:#4b5563;--line:#e5e7eb}
@media(prefers-color-scheme:dark){:root{--page:#111418;--ink:#e5e7eb;--soft:#a3acb9;--line:#2d333b}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1240px;margin:2rem auto;padding:0 1rem;color:var(--ink);
background:var(--page)}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-top:1px solid var(--line);padding-top:1rem}
h3{font-size:.95rem;margin:1.2rem 0 .3rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin:.6rem 0}
td,th{padding:.2rem .36rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap;
font-variant-numeric:tabular-nums}
td:first-child,th:first-child{text-align:left}td.why{text-align:left;white-space:normal}
.s{color:var(--soft);font-size:12px}
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(440px,1fr));gap:1rem;overflow-x:auto}
svg{width:100%;max-width:640px;height:auto}svg .t{font:10px system-ui,sans-serif;fill:var(--soft)}
svg .h{font:600 12px system-ui,sans-serif;fill:var(--ink)}svg .g{stroke:var(--line);stroke-width:1}
"""


def render(report: Report) -> str:
    """The page."""
    groups = groups_of(report.summaries)
    colors = _colors(groups)
    body = [f"<h1>{escape(report.title)}</h1>", f'<p class="s">{escape(report.made)}<br>']
    body += ["<br>".join(escape(fact) for fact in report.facts), "</p>"]
    body.append(_goodput(groups, colors, report))
    for group in groups:
        body.append(_section(group, report, colors))
    body.append(
        f'<p class="s">Medians over seeds; spread: smallest and largest p95. x: TTFT p95 of round-robin divided by '
        f"the policy's. max/mean: requests on the busiest engine over the mean. Good: first token within "
        f"{report.slo_ttft_s:g} s. Hit rates are the engines' own counters. Saved: GPU hours of prefill that "
        f"round-robin spent and the policy did not, for a day of this traffic, at ${report.gpu_hour_usd:g} a "
        f"GPU hour.</p>"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(report.title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>{"".join(body)}</html>\n'
    )


def _colors(groups: list[Group]) -> dict[str, int]:
    names: dict[str, int] = {}
    for group in groups:
        for policy in group.by_policy:
            names.setdefault(policy, len(names))
    return names


def _section(group: Group, report: Report, colors: dict[str, int]) -> str:
    known = {name: runs for name, runs in group.by_policy.items() if any(run.ttft_curve_s for run in runs)}
    parts = [f"<h2>{escape(group.title)}</h2>", _table(group, report)]
    if known:
        parts.append('<div class="row">')
        parts.append(_distribution(known, colors))
        parts.append(_by_length(known, colors, 1, "TTFT p50 by prompt length"))
        parts.append(_by_length(known, colors, 2, "TTFT p95 by prompt length"))
        parts.append(_hits(known, colors))
        parts.append("</div>")
        parts.append(_over_time(group, report))
    return "".join(parts)


def _table(group: Group, report: Report) -> str:
    heads = (
        "policy", "hit rate", "TTFT mean", "p50", "p95", "[spread]", "x", "p99", "good", "ITL p50", "e2e p95",
        "max/mean", "tokens/s", "prefill GPU s", "saved a day", "errors",
    )  # fmt: skip
    rows = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"]
    for policy, runs in group.by_policy.items():
        refused = [run.refused for run in runs if run.refused]
        if len(refused) == len(runs):
            rows.append(
                f'<tr><td>{escape(policy)}</td><td colspan="{len(heads) - 1}" class="why">no figures: '
                f"{escape(refused[0])}</td></tr>"
            )
            continue
        rows.append(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(group, policy, runs, report))}</tr>"
        )
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _cells(group: Group, policy: str, runs: list[Summary], report: Report) -> list[str]:
    def median(figure: Callable[[Summary], float | None]) -> float:
        return median_of(runs, figure)

    low, high = spread_of(runs, lambda run: run.ttft_p95_s)
    hours, dollars = group.saved(policy, report.gpu_hour_usd)
    ratio = group.ratio(policy, lambda run: run.ttft_p95_s)
    saved = "-" if policy == group.baseline or math.isnan(hours) else f"{hours:,.0f} h, ${dollars:,.0f}"
    return [
        policy,
        percent(median(lambda run: run.hit_rate)),
        seconds(median(lambda run: run.ttft_mean_s)),
        seconds(median(lambda run: run.ttft_p50_s)),
        seconds(median(lambda run: run.ttft_p95_s)),
        f"{seconds(low)} - {seconds(high)}",
        times(1 / ratio) if ratio else "-",
        seconds(median(lambda run: run.ttft_p99_s)),
        percent(median(lambda run: run.good), 0),
        seconds(median(lambda run: run.itl_p50_s)),
        seconds(median(lambda run: run.latency_p95_s)),
        f"{median(lambda run: run.imbalance):.2f}",
        f"{median(lambda run: run.output_tokens_s):,.0f}",
        f"{median(lambda run: run.prefill_gpu_s):,.0f}",
        saved,
        str(sum(run.errors for run in runs)),
    ]


def _curve(runs: list[Summary]) -> list[tuple[float, float]]:
    """Median over seeds of each percentile: (seconds, share of requests that were faster)."""
    curves = [run.ttft_curve_s for run in runs if run.ttft_curve_s]
    return [
        (sorted(values)[len(values) // 2], (step + 1) / 100)
        for step, values in enumerate(zip(*curves, strict=True))
    ]


def _distribution(known: dict[str, list[Summary]], colors: dict[str, int]) -> str:
    series = [Line(name, _curve(runs), colors[name]) for name, runs in known.items()]
    return lines(
        "TTFT distribution", "seconds to first token", "share of requests", series, log_x=True, top=1.0
    )


def _by_length(known: dict[str, list[Summary]], colors: dict[str, int], column: int, title: str) -> str:
    names = [
        name for name in LENGTH_NAMES if any(name in run.by_length for runs in known.values() for run in runs)
    ]
    series = []
    for policy, runs in known.items():
        row = [_length_median(runs, name, column) for name in names]
        series.append((policy, row, colors[policy]))
    return bars(title, "seconds", names, series, log_y=True)


def _length_median(runs: list[Summary], name: str, column: int) -> float:
    return median_of(runs, lambda run: run.by_length[name][column] if name in run.by_length else None)


def _hits(known: dict[str, list[Summary]], colors: dict[str, int]) -> str:
    series = [
        (name, [median_of(runs, lambda run: run.hit_rate)], colors[name]) for name, runs in known.items()
    ]
    return bars(
        "prefix cache hit rate", "share of prompt tokens", ["all requests"], series, show=lambda v: f"{v:.0%}"
    )


def _over_time(group: Group, report: Report) -> str:
    """For each policy, its engines' requests and KV use over time in the run of the first seed, side by
    side."""
    parts = []
    for found in report.series:
        if (found["workload"], found["replicas"]) != (group.workload, group.replicas):
            continue
        if abs(found["rate"] - group.rate) > 1e-6 or found["policy"] not in group.by_policy:
            continue
        for column, what, y_label, top in (
            ("load", "requests by engine", "running + waiting", None),
            ("kv", "KV in use by engine", "share of blocks", 1.0),
        ):
            series = [
                Line(f"{slot + 1}", list(zip(found["at_s"], values, strict=True)), slot)
                for slot, values in enumerate(found[column])
            ]
            title = f"{found['policy']}: {what}"
            parts.append(lines(title, "seconds", y_label, series, top=top, height=220))
    return f'<h3>Engines over time, first seed</h3><div class="row">{"".join(parts)}</div>' if parts else ""


def _goodput(groups: list[Group], colors: dict[str, int], report: Report) -> str:
    """For workloads run at several rates: good requests a second against rate. The knee is where it bends."""
    parts = []
    for workload in dict.fromkeys(group.workload for group in groups):
        for replicas in dict.fromkeys(group.replicas for group in groups):
            swept = [group for group in groups if (group.workload, group.replicas) == (workload, replicas)]
            if len(swept) < 2:
                continue
            swept.sort(key=lambda group: group.rate)
            rising = {
                policy: index for policy, index in colors.items() if any(policy in g.by_policy for g in swept)
            }
            good = [
                Line(
                    policy,
                    [
                        (g.rate, g.rate * median_of(g.by_policy.get(policy, []), lambda run: run.good))
                        for g in swept
                    ],
                    index,
                )
                for policy, index in rising.items()
            ]
            late = [
                Line(
                    policy,
                    [
                        (g.rate, median_of(g.by_policy.get(policy, []), lambda run: run.ttft_p90_s))
                        for g in swept
                    ],
                    index,
                )
                for policy, index in rising.items()
            ]
            parts.append(f'<h2>{escape(workload)}: goodput against rate</h2><div class="row">')
            slo = f"good requests a second (TTFT within {report.slo_ttft_s:g} s)"
            parts.append(lines("goodput", "requests a second", slo, good))
            parts.append(lines("TTFT p90", "requests a second", "seconds", late, log_y=True))
            parts.append("</div>")
    return "".join(parts)
