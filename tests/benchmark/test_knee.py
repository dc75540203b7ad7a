"""The knee: the search ends where it should, and cases are run at multiples of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stickyroute.benchmark.cli import main
from stickyroute.benchmark.knee import Knee, at_knees, find_knee, load_name
from stickyroute.benchmark.scenario import Case, Scenario
from stickyroute.errors import ConfigError

CASE = Case("talk", "chat", {"rate": 20})
SCENARIO = Scenario("test", cases=(CASE,), knee="ring", rates=(1.0,))


def breaks_at(limit: float, asked: list[float], key: str = "rate") -> Callable[[Case], float]:
    def good(case: Case) -> float:
        asked.append(case.parameters[key])
        return 0.95 if case.parameters[key] <= limit else 0.5

    return good


@pytest.mark.parametrize("limit", [0.7, 3.0, 19.0, 20.0, 21.0, 50.0, 900.0])
def test_the_search_ends_within_a_twentieth_of_the_knee(limit: float) -> None:
    asked: list[float] = []
    knee = find_knee(SCENARIO, CASE, breaks_at(limit, asked))
    assert limit / 1.07 <= knee.load <= limit
    assert knee.bounded
    assert knee.rate == pytest.approx(knee.load, rel=0.01)
    assert len(asked) < 16


def test_a_fleet_that_never_breaks_and_one_that_always_does() -> None:
    knee = find_knee(SCENARIO, CASE, breaks_at(1e9, []))
    assert (knee.load, knee.bounded, str(knee)) == (1280.0, False, "talk over 1.28e+03 requests/s")
    with pytest.raises(ConfigError, match="set slo_ttft_s"):
        find_knee(SCENARIO, CASE, breaks_at(0.0, []))


def test_traces_are_scaled_by_their_speed_or_sessions() -> None:
    assert load_name(Case("x", "mooncake", {})) == "speed"
    assert load_name(Case("x", "coding_sessions", {})) == "sessions_s"
    case = Case("sessions", "coding_sessions", {"path": "p", "sessions_s": 0.1})
    knee = find_knee(SCENARIO, case, breaks_at(0.3, [], "sessions_s"))
    assert str(knee).startswith("sessions sessions_s 0.2")


def test_cases_are_run_at_multiples_of_their_knees() -> None:
    trace = Case("sessions", "coding_sessions", {"path": "p"})
    knees = [Knee(CASE, "rate", 30.0, 30.0, True), Knee(trace, "sessions_s", 0.2, 0.0, True)]
    scenario = at_knees(replace(SCENARIO, at=(0.5, 1.0)), knees)
    found: list[tuple[str, Any]] = [
        (case.label, case.parameters.get("rate") or case.parameters["sessions_s"]) for case in scenario.runs()
    ]
    assert found == [
        ("talk", 15.0),
        ("talk", 30.0),
        ("sessions, 0.5 x knee", 0.1),
        ("sessions, 1 x knee", 0.2),
    ]


def test_replay_at_the_knee_as_a_person_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(
        "fleet: {profile: demo, engines: 2}\nseeds: 1\nknee: round_robin\nat: [0.5, 1.5]\n"
        "policies: [round_robin]\nslo_ttft_s: 0.5\n"
        "workloads:\n  - {label: talk, workload: no_overlap, rate: 10, seconds: 30}\n"
    )
    assert (
        main(["replay", str(scenario), "--processes", "1", "--set", "seconds=10", "--out", str(tmp_path)])
        == 0
    )
    said = capsys.readouterr()
    assert "knees of round_robin" in said.out
    assert said.out.count("talk at ") == 2
    shares = [line.split() for line in said.out.splitlines() if line.startswith("  round_robin")]
    good = [next(cell for cell in cells if cell.endswith("%") and "." not in cell) for cells in shares]
    assert int(good[0][:-1]) >= 90 > int(good[1][:-1])


def test_set_changes_every_workload_that_has_the_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parents[2] / "bench" / "scenarios" / "replicas.yaml")
    assert main(["replay", path, "--set", "colour=red"]) == 2
    assert "no workload of replicas has colour" in capsys.readouterr().err
    assert main(["replay", path, "--only", "chess"]) == 2
    assert "replicas has chat, agentic, rag" in capsys.readouterr().err
    assert main(["replay", path, "--policy", "luck"]) == 2
    assert "unknown luck" in capsys.readouterr().err
