"""`stickyroute bench` and `stickyroute demo` as a person runs them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from stickyroute.benchmark.cli import main
from stickyroute.benchmark.demo import ENGINES, _table, run_demo
from stickyroute.benchmark.progress import Progress
from stickyroute.benchmark.results import EngineTotals, Lateness, Row, Run
from stickyroute.benchmark.scenario import load_scenario, scenario_of, standard_scenario
from stickyroute.errors import ConfigError

SCENARIOS = sorted((Path(__file__).parents[2] / "bench" / "scenarios").glob("*.yaml"))


def test_replay_writes_table_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(
        "about: tiny\nfleet: {profile: demo, engines: 2}\nseeds: 1\nrates: [3, 6]\n"
        "policies: [round_robin, ring]\n"
        "workloads:\n  - {label: talk, workload: chat, seconds: 8, think_s: 2}\n"
    )
    out = tmp_path / "out"
    assert main(["replay", str(scenario), "--processes", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "talk at 3/s" in printed
    assert "talk at 6/s" in printed
    found = json.loads((out / "replay-tiny.json").read_text())
    assert [s["policy"] for s in found["summaries"]] == ["round_robin", "ring"] * 2
    assert "goodput" in (out / "replay-tiny.html").read_text()
    assert main(["report", str(out / "replay-tiny.json"), "--out", str(tmp_path / "again")]) == 0
    assert capsys.readouterr().out.splitlines()[:8] == printed.splitlines()[:8]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_of_the_repository_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(path)
    assert scenario.cases
    assert scenario.about
    assert scenario.runs()


def test_the_standard_scenario_is_four_policies_on_three_workloads() -> None:
    scenario = standard_scenario()
    assert scenario.policies == ("round_robin", "ring", "bounded_ring", "sticky")
    assert len(scenario.cases) == 3
    assert scenario.seeds == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"workloads": []}, "name one at least"),
        ({"workloads": ["chat"], "polices": []}, "polices: no such key"),
        ({"workloads": ["chat"], "policies": ["luck"]}, "unknown luck"),
        ({"workloads": [{"workload": "chat", "speed": 1}]}, "has no speed"),
        ({"workloads": ["chat"], "fleet": {"profile": "toaster"}}, "unknown profile"),
        ({"workloads": ["chat"], "fleet": {"wheels": 4}}, "wheels"),
        ({"workloads": [3]}, "a name or a mapping"),
    ],
)
def test_mistakes_in_a_scenario_are_told(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scenario_of(values, "here", "x")


def test_a_mistake_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for mistake in (["--workload", "chat", "--policy", "luck"], ["nowhere.yaml"]):
        assert main(["replay", *mistake]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_demo_plays_both_policies_and_ends() -> None:
    out = io.StringIO()
    assert run_demo(once=True, seconds=0.7, out=out) == 0
    text = out.getvalue()
    assert "round_robin" in text
    assert "sticky" in text
    assert "requests to gpu-4" in text


def test_the_demo_of_a_busy_machine_draws_no_conclusion_from_its_times() -> None:
    rows = [Row(at_s, 100, 50, 8, 0.2, 0.4, 0.01) for at_s in (0.0, 1.0)]
    engines = [EngineTotals(queries=200, hits=100, requests=1) for _ in range(ENGINES)]

    def run(late_s: float) -> Run:
        return Run("chat", "x", 1, 2.0, rows, engines, lateness=Lateness(p99_s=late_s))

    quiet, busy = _table(run(0.04), run(0.0)), _table(run(0.0), run(0.0512))
    assert "1.0 x sooner" in quiet
    assert "busy" not in quiet
    assert "sooner" not in busy
    assert "up to 51 ms late" in busy
    for text in (quiet, busy):
        assert "50.0%        50.0%" in text
        assert "200 ms" in text


def test_the_demo_of_a_fleet_that_answered_nothing_shows_no_times() -> None:
    engines = [EngineTotals() for _ in range(ENGINES)]
    row = Row(0.0, 100, None, 0, None, None, error="refused")
    run = Run("chat", "x", 1, 2.0, [row], engines)
    text = _table(run, run)
    assert "nan" not in text
    assert re.search(r"failed requests +1 +1", text)


def test_progress_on_a_pipe_is_quarters_and_on_a_terminal_a_bar() -> None:
    pipe = io.StringIO()
    progress = Progress("work", pipe)
    for step in range(101):
        progress.update(step / 100, "note")
    progress.done("over")
    assert pipe.getvalue().count("\n") == 5
    assert "\x1b" not in pipe.getvalue()

    parts = io.StringIO()
    progress = Progress("work", parts)
    for step in range(1, 9):
        progress.step(step / 8, f"part {step}")
        progress.update(step / 8, "in between")
    assert [line.split()[-1] for line in parts.getvalue().splitlines()] == list("12345678")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    Progress("work", terminal).update(0.5)
    assert "█" * 14 in terminal.getvalue()
