"""Results and reports: exact figures, honest refusals, a page that needs nothing else."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stickyroute.benchmark.report import charts, page, table
from stickyroute.benchmark.report.document import Report, groups_of
from stickyroute.benchmark.results import (
    UNANSWERED,
    EngineTotals,
    Lateness,
    Row,
    Run,
    Summary,
    bucket,
    lateness_of,
    median_of,
    percentile,
    spread_of,
    summarize,
)


def run_of(policy: str, ttft_s: list[float], seed: int = 0, rate: float = 10.0, late_s: float = 0.0) -> Run:
    rows = [
        Row(float(n), 1000 * (n + 1), 500, 11, ttft, ttft + 1.0, 0.1, n % 2) for n, ttft in enumerate(ttft_s)
    ]
    engines = [EngineTotals(600, 450, 3, 50, 0, 4.0), EngineTotals(400, 50, 1, 50, 2, 6.0)]
    return Run(
        "talk",
        policy,
        seed,
        10.0,
        rows,
        engines,
        lateness=Lateness(0.0, late_s, late_s),
        rate=rate,
        arrivals_s=8.0,
    )


def report_of(*runs: Run) -> Report:
    summaries = [summarize(run, 1.0, 0.001) for run in runs]
    return Report("A <title>", "today", ["four engines & more"], 1.0, 2.5, summaries)


def test_the_figures_of_a_run_are_exact() -> None:
    summary = summarize(run_of("ring", [0.1, 0.2, 0.3, 2.0]), slo_ttft_s=1.0, gpu_s_per_token=0.001)
    assert summary.hit_rate == 0.5
    assert (summary.ttft_p50_s, summary.ttft_p90_s, summary.ttft_mean_s) == (0.2, 2.0, pytest.approx(0.65))
    assert (summary.computed_tokens, summary.prefill_gpu_s, summary.gpu_s) == (500, 0.5, 10.0)
    assert (summary.shares, summary.imbalance, summary.preemptions) == ((0.75, 0.25), 1.5, 2)
    assert (summary.good, summary.output_tokens_s) == (0.75, 4.4)
    assert summary.by_length == {"up to 1k": (1, 0.1, 0.1), "1k to 4k": (3, 0.3, 2.0)}
    assert not summary.refused


def test_a_late_generator_reports_no_figures() -> None:
    summary = summarize(run_of("ring", [0.1, 0.2], late_s=0.2))
    assert "p99 200 ms behind" in summary.refused
    for value in (
        summary.hit_rate,
        summary.ttft_p50_s,
        summary.ttft_p95_s,
        summary.good,
        summary.prefill_gpu_s,
    ):
        assert math.isnan(value)
    assert summary.gpu_s is None
    assert summary.ttft_curve_s == ()
    text = table.render(report_of(run_of("round_robin", [0.1]), run_of("ring", [0.1], late_s=0.2)))
    assert re.search(r"ring +no figures: the load generator was late", text)
    assert "no figures" in page.render(report_of(run_of("ring", [0.1], late_s=0.2)))


def test_errors_count_as_not_good_and_have_no_times() -> None:
    run = run_of("ring", [0.1, 0.2])
    run.rows.append(Row(3.0, 10, None, 0, None, None, error="status 503"))
    summary = summarize(run)
    assert (summary.errors, summary.requests, summary.good) == (1, 3, pytest.approx(2 / 3))


def test_the_waiting_of_unanswered_requests_counts() -> None:
    run = run_of("ring", [0.1, 0.2])
    run.rows.append(Row(3.0, 10, None, 0, 30.0, None, error=UNANSWERED))
    run.rows.append(Row(3.0, 10, None, 0, 40.0, None, error="connection lost"))
    summary = summarize(run)
    assert (summary.errors, summary.good) == (2, 0.5)
    assert (summary.ttft_p50_s, summary.ttft_p99_s) == (0.2, 30.0)


def test_percentiles_are_nearest_rank() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, share) for share in (0.01, 0.25, 0.5, 0.51, 0.99)] == [1, 1, 2, 3, 4]
    assert math.isnan(percentile([], 0.5))
    late = lateness_of([0.003, 0.001, 0.002], [0.01])
    assert (late.p50_s, late.max_s, late.loop_p99_s, late.kept_up) == (0.002, 0.003, 0.01, True)
    assert not lateness_of([0.001], [0.2]).kept_up


def test_lengths_fall_into_their_classes() -> None:
    assert [bucket(n) for n in (1, 1024, 1025, 8192, 32_768, 32_769)] == [
        "up to 1k", "up to 1k", "1k to 4k", "4k to 8k", "16k to 32k", "over 32k",
    ]  # fmt: skip


def test_medians_and_spreads_are_over_seeds() -> None:
    runs = [summarize(run_of("ring", [t], seed)) for seed, t in enumerate([0.3, 0.1, 0.8])]
    assert median_of(runs, lambda run: run.ttft_p50_s) == 0.3
    assert spread_of(runs, lambda run: run.ttft_p50_s) == (0.1, 0.8)
    assert median_of(runs[:2], lambda run: run.ttft_p50_s) == pytest.approx(0.2)
    assert math.isnan(median_of([], lambda run: run.ttft_p50_s))


def test_the_table_compares_with_round_robin() -> None:
    text = table.render(report_of(run_of("round_robin", [1.0, 4.0]), run_of("ring", [0.5, 1.0])))
    lines = [line.split() for line in text.splitlines()]
    ring = next(line for line in lines if line[:1] == ["ring"])
    assert "4.00x" in ring
    assert "50.0%" in ring


def test_savings_are_for_a_day_of_this_traffic() -> None:
    usual, sticky = run_of("round_robin", [1.0]), run_of("ring", [1.0])
    sticky.engines[0].hits += 100
    group = groups_of(report_of(usual, sticky).summaries)[0]
    hours, dollars = group.saved("ring", 2.5)
    assert hours == pytest.approx(0.1 / 8.0 * 24)  # 0.1 GPU seconds saved in 8 seconds of arrivals
    assert dollars == pytest.approx(hours * 2.5)


class Checker(HTMLParser):
    """Every tag closed, nothing fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing() -> None:
    report = report_of(
        *(
            run_of(p, [0.1, 0.4, 3.0], s, r)
            for p in ("round_robin", "ring")
            for s in (0, 1)
            for r in (10.0, 20.0)
        )
    )
    report.series = [
        {"workload": "talk", "policy": "ring", "replicas": 1, "rate": 10.0, "at_s": [1.0, 2.0],
         "load": [[1, 2], [3, 4]], "kv": [[0.1, 0.2], [0.3, 0.4]]}
    ]  # fmt: skip
    html = page.render(report)
    checker = Checker()
    checker.feed(html)
    assert not checker.open
    assert {"svg", "table", "polyline", "rect"} <= checker.seen
    assert "A &lt;title&gt;" in html
    assert "four engines &amp; more" in html
    assert "nan" not in html.replace("nanosecond", "")
    for words in (
        "TTFT distribution",
        "TTFT p95 by prompt length",
        "goodput",
        "KV in use by engine",
        "hit rate",
    ):
        assert words in html


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    report = report_of(run_of("round_robin", [0.1, 0.2]), run_of("ring", [0.1], late_s=0.3))
    path = tmp_path / "report.json"
    path.write_text(report.as_json())
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, which is not JSON
    again = Report.read(path)
    assert table.render(again) == table.render(report)
    assert page.render(again) == page.render(report)
    (tmp_path / "other.json").write_text('{"title": "x"}')
    with pytest.raises(ValueError, match="not a report"):
        Report.read(tmp_path / "other.json")


def test_a_long_legend_takes_rows_of_its_own_below_the_title() -> None:
    names = [f"a policy with a long name {number}" for number in range(9)]
    drawn = charts.lines("title", "x", "y", [charts.Line(name, [(0, 1), (1, 2)], 0) for name in names])
    rows = {int(y) for y, name in re.findall(r'y="(\d+)" class="t">(a policy[^<]*)<', drawn)}
    assert sum(name in drawn for name in names) == 9
    assert len(rows) >= 3
    title = int(re.search(r'y="(\d+)" class="h"', drawn)[1])  # type: ignore[index]
    highest = min(float(y) for y in re.findall(r'y1="([\d.]+)"', drawn))
    assert title < min(rows) - 9
    assert max(rows) < highest


def test_charts_leave_out_what_is_not_known() -> None:
    assert charts.lines("t", "x", "y", []) == ""
    drawn = charts.lines(
        "t", "x", "y", [charts.Line("a", [(0.0, math.nan), (1.0, 2.0), (3.0, 4.0)])], log_x=True
    )
    assert drawn.count("<polyline") == 1
    assert "nan" not in drawn
    assert charts.bars("t", "y", ["c"], [("a", [math.nan], 0)]) == ""


def test_ticks_are_round_numbers() -> None:
    drawn = charts.lines("t", "x", "y", [charts.Line("a", [(0.0, 0.0), (97.0, 0.93)])])
    for tick in (">20<", ">100<", ">0.2<", ">1<"):
        assert tick in drawn


def test_summaries_are_values(tmp_path: Path) -> None:
    summary = summarize(run_of("ring", [0.1, 0.2]))
    assert Summary.of_json(json.loads(json.dumps(summary.as_json()))) == summary
