"""Comparisons: the order of runs, and that one that fails costs its own figures and nothing else."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stickyroute import defaults
from stickyroute.benchmark import compare
from stickyroute.benchmark.cli import main
from stickyroute.benchmark.compare import Comparison, Lineup, find_routers
from stickyroute.benchmark.jobs import Done
from stickyroute.benchmark.report import markdown
from stickyroute.benchmark.report.document import Report
from stickyroute.benchmark.results import EngineTotals, Lateness, Row, Run
from stickyroute.benchmark.scenario import Case, Scenario, scenario_of
from stickyroute.errors import ConfigError

LATE = Lateness(0.0, 0.2, 0.2)
OURS = f"stickyroute {defaults.POLICY}"


class BrokenError(Exception):
    """A router did not start."""


def scenario(seeds: int = 2) -> Scenario:
    values = {
        "fleet": {"profile": "demo", "engines": 2},
        "workloads": [
            {"label": "talk", "workload": "chat", "rate": 4},
            {"label": "none", "workload": "no_overlap", "rate": 4},
        ],
        "seeds": seeds,
    }
    return scenario_of(values, "test", "test")


LINEUP = Lineup([("direct round_robin", None), ("good hash", None), ("bad hash", None)], [], BrokenError)


class Bench:
    """A stand-in for runs over sockets: `outcome(case, router, seed, attempt)` is a TTFT, or what happens."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        outcome: Callable[[str, str, int, int], float | Exception | Lateness],
    ) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.kept: list[int] = []
        self._outcome = outcome
        monkeypatch.setattr(compare, "_one", self._one)

    async def _one(self, _scenario: Scenario, planned: tuple[Case, str, Any, int], _on_row: object) -> Run:
        case, name, _driver, seed = planned
        this = (case.label, name, seed)
        self.asked.append(this)
        found = self._outcome(*this, self.asked.count(this))
        if isinstance(found, Exception):
            raise found
        late = found if isinstance(found, Lateness) else Lateness()
        ttft_s = found if isinstance(found, float) else 1.0
        rows = [Row(0.5, 100, 50, 10, ttft_s, ttft_s + 1, 0.01)]
        return Run(
            case.label, name, seed, 10.0, rows, [EngineTotals(100, 50, 1)], [], late, how="http", rate=4.0
        )

    def run(self, **options: Any) -> list[Done]:
        def keep(found: list[Done], _share: float, _note: str) -> None:
            self.kept.append(len(found))

        options = {"lineup": LINEUP, **options}
        of = options.pop("scenario", scenario())
        return asyncio.run(Comparison(of, tell=lambda _share, _note: None, keep=keep, **options).run())


def test_repeats_are_outermost_and_routers_innermost(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda *_: 0.1)
    found = bench.run()
    assert [(s.workload, s.policy, s.seed) for s in (one.summary for one in found)] == bench.asked
    assert bench.asked == [
        (case, router, seed)
        for seed in (0, 1)
        for case in ("talk", "none")
        for router in ("direct round_robin", "good hash", "bad hash")
    ]
    assert bench.kept == list(range(1, 13))


def test_a_workload_can_leave_routers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "workloads": [{"label": "talk", "workload": "chat", "without": ["good", "direct round"]}],
        "seeds": 1,
    }
    bench = Bench(monkeypatch, lambda *_: 0.1)
    bench.run(scenario=scenario_of(values, "test", "test"))
    assert [router for _, router, _ in bench.asked] == ["direct round_robin", "bad hash"]


def test_a_router_that_fails_or_a_late_run_is_tried_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(case: str, router: str, seed: int, attempt: int) -> float | Exception | Lateness:
        if router == "bad hash":
            return BrokenError("exited with 1:\nno such flag")
        return LATE if (case, router, seed, attempt) == ("talk", "good hash", 0, 1) else 0.1

    bench = Bench(monkeypatch, outcome)
    found = [one.summary for one in bench.run()]
    assert len(found) == 12
    assert bench.asked.count(("talk", "good hash", 0)) == 2
    assert bench.asked.index(("talk", "good hash", 0)) == 1
    assert bench.asked.count(("none", "good hash", 0)) == 1
    assert bench.asked.count(("talk", "bad hash", 0)) == 3
    bad = [one for one in found if one.policy == "bad hash"]
    assert {one.refused for one in bad} == {"it did not run: exited with 1: no such flag"}
    assert all(math.isnan(one.ttft_mean_s) for one in bad)
    assert not [one for one in found if one.refused and one.policy != "bad hash"]


def test_what_is_known_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Bench(monkeypatch, lambda case, *_: LATE if case == "none" else 0.1)
    known = first.run(scenario=scenario(seeds=1))
    second = Bench(monkeypatch, lambda *_: 0.2)
    found = [one.summary for one in second.run(known=known)]
    assert len(found) == 12
    assert [one.ttft_mean_s for one in found][:3] == [0.1, 0.1, 0.1]
    assert ("talk", "good hash", 0) not in second.asked
    assert ("none", "good hash", 0) in second.asked
    assert ("talk", "good hash", 1) in second.asked


def test_when_the_time_is_up_the_rest_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda *_: 0.1)
    found = [one.summary for one in bench.run(within_s=-1.0)]
    assert bench.asked == []
    assert len(found) == 12
    assert {one.refused for one in found} == {"left out, since the time was up (--within)"}


def test_the_page_of_documentation_tells_wins_losses_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lineup = Lineup([(OURS, None), ("nginx hash", None), ("smg", None)], ["haproxy"], BrokenError)

    def outcome(case: str, router: str, seed: int, _attempt: int) -> float | Exception:
        if router == "smg":
            return BrokenError("no port")
        return {"talk": 0.1, "none": 0.3}[case] if router.startswith("stickyroute") else 0.2 + 0.02 * seed

    found = Bench(monkeypatch, outcome).run(lineup=lineup)
    report = Report(
        "stickyroute bench: peers", "today", lineup.labels[-1:], 1.0, 2.5, [d.summary for d in found]
    )
    text = markdown.render(report)
    assert "not installed here: haproxy" in text
    assert f"| {OURS} | **0.10s** | 0.30s |" in text
    assert "- talk at 4/s, against nginx hash: ahead, 0.48 x at the mean (0.10s against 0.21s), ahead" in text
    assert "- none at 4/s, against nginx hash: **behind, 1.43 x** at the mean" in text
    assert text.count(" at p95 between tokens (") == 2
    assert text.count("| ITL p50 | ITL p95 | end to end p95 |") == 2
    assert "0.21s [0.20s - 0.22s]" in text
    assert "- talk at 4/s, smg, repeat 2: it did not run: no port" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("| stickyroute")}) == 2
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_routers_are_found_or_named() -> None:
    lineup = find_routers(scenario(), ["direct", "stickyroute:ring"], [])
    assert [name for name, _ in lineup.routers] == ["direct round_robin", "stickyroute ring"]
    with pytest.raises(ConfigError, match="unknown 'traefik'"):
        find_routers(scenario(), ["traefik"], [])
    with pytest.raises(ConfigError, match="smg is not installed here"):
        find_routers(scenario(), ["smg"], ["/nowhere"])


def test_compare_runs_writes_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "about: tiny\nfleet: {profile: demo, engines: 2}\nseeds: 1\ngrace_s: 20\n"
        "workloads:\n  - {workload: no_overlap, rate: 8, seconds: 1, prompt_tokens: 50, answer_tokens: 2}\n"
    )
    command = ["compare", str(path), "--router", "direct", "--out", str(tmp_path)]
    assert main([*command, "--markdown", str(tmp_path / "page.md")]) in (0, 3)
    capsys.readouterr()
    written = json.loads((tmp_path / "compare-tiny.json").read_text())
    assert [one["policy"] for one in written["summaries"]] == ["direct round_robin"]
    assert "# Results: tiny" in (tmp_path / "page.md").read_text()
    written["summaries"][0]["refused"] = ""
    (tmp_path / "compare-tiny.json").write_text(json.dumps(written))
    assert main([*command, "--resume"]) == 0
    assert "TTFT mean" not in capsys.readouterr().err  # nothing was left to run
    path.write_text(path.read_text().replace("rate: 8", "rate: 9"))
    assert main([*command, "--resume"]) == 2
    assert "another scenario" in capsys.readouterr().err
