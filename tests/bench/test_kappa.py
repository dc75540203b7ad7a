"""bench/kappa: every way runs, and the table has a row for each workload."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.kappa.__main__ import WAYS, Measured, Stay, Unanswered, Unphased, main
from bench.kappa.thrash import hits, recovery_s
from stickyroute.benchmark.replay import YARDSTICKS
from stickyroute.benchmark.results import Row
from stickyroute.benchmark.scenario import load_scenario
from stickyroute.routing.policies import POLICIES

ROOT = Path(__file__).parents[2]

SMALL = """
fleet: {profile: demo, engines: 2}
workloads:
  - {workload: one_prompt, rate: 5, seconds: 5}
"""


@pytest.mark.interpreted  # its ways are kinds of a policy
def test_every_way_is_run_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    for policy in (Stay, Measured):
        monkeypatch.setitem(POLICIES, policy.name, policy)  # so that they are gone again afterwards
    for yardstick in (Unanswered, Unphased):
        monkeypatch.setitem(YARDSTICKS, yardstick.name, yardstick)
    monkeypatch.setattr(sys, "argv", ["kappa", str(tmp_path / "small.yaml"), "--own", "--seeds", "1"])
    assert main() == 0
    out = capsys.readouterr().out
    assert sum("ttft" in line for line in out.splitlines()) == len(WAYS)
    assert out.splitlines()[-1].startswith("| one_prompt | own |")


def test_its_scenario_names_workloads_that_exist() -> None:
    scenario = load_scenario(ROOT / "bench" / "scenarios" / "kappa.yaml")
    assert scenario.knee == "sticky"
    assert len(scenario.cases) == 14


def row(at_s: float, cached: int) -> Row:
    return Row(at_s, 100, cached, 10, 0.5, 1.0)


def test_hits_are_of_what_arrived_in_between() -> None:
    rows = [row(0.0, 0), row(10.0, 50), row(20.0, 100)]
    assert hits(rows, 10.0, 20.0) == (0.5, 0.5)
    assert hits(rows, 30.0, 40.0) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("cached", "back"), [((90, 90, 90), 0.0), ((10, 90, 90), 20.0), ((90, 90, 10), None)]
)
def test_it_is_back_when_it_stays_back(cached: tuple[int, ...], back: float | None) -> None:
    rows = [row(100.0 + 20.0 * number, tokens) for number, tokens in enumerate(cached)]
    assert recovery_s(rows, 0.9, 100.0, 160.0) == back
