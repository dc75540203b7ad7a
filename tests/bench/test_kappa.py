"""bench/kappa: every way runs, and the table has a row for each workload."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.kappa.__main__ import WAYS, Measured, Stay, main
from stickyroute.benchmark.scenario import load_scenario
from stickyroute.routing.policies import POLICIES

ROOT = Path(__file__).parents[2]

SMALL = """
fleet: {profile: demo, engines: 2}
workloads:
  - {workload: one_prompt, rate: 5, seconds: 5}
"""


def test_every_way_is_run_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    for policy in (Stay, Measured):
        monkeypatch.setitem(POLICIES, policy.name, policy)  # so that they are gone again afterwards
    monkeypatch.setattr(sys, "argv", ["kappa", str(tmp_path / "small.yaml"), "--own", "--seeds", "1"])
    assert main() == 0
    out = capsys.readouterr().out
    assert sum("ttft" in line for line in out.splitlines()) == len(WAYS)
    assert out.splitlines()[-1].startswith("| one_prompt | own |")


def test_its_scenario_names_workloads_that_exist() -> None:
    scenario = load_scenario(ROOT / "bench" / "scenarios" / "kappa.yaml")
    assert scenario.knee == "sticky"
    assert len(scenario.cases) == 14
