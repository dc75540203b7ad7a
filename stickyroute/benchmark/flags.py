"""The flags that commands of `stickyroute bench` share, and the scenario that they describe.

Owns which wins: a flag over the scenario's file, the file over the standard scenario. Runs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from stickyroute.benchmark.scenario import Scenario, check, load_scenario, quick_scenario, standard_scenario
from stickyroute.benchmark.workloads import WORKLOADS
from stickyroute.errors import ConfigError

_OUT = Path("bench-results")


def add_scenario(command: argparse.ArgumentParser) -> None:
    """A scenario, or flags that stand for one."""
    command.add_argument(
        "scenario", nargs="?", type=Path, metavar="SCENARIO", help="YAML file, see bench/scenarios"
    )
    command.add_argument(
        "--only", action="append", default=[], metavar="LABEL", help="of the scenario's workloads, this one"
    )
    command.add_argument("--workload", action="append", default=[], choices=sorted(WORKLOADS))
    command.add_argument(
        "--policy", action="append", default=[], metavar="NAME", help="a policy, or omniscient"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter, of every workload that has it",
    )
    command.add_argument("--seeds", type=int, metavar="N", help="repeats with different seeds (default 3)")
    command.add_argument(
        "--rate", action="append", default=[], type=float, help="run at this rate; may be repeated"
    )
    command.add_argument(
        "--knee", metavar="POLICY", help="run at multiples of the load that this policy can just bear"
    )
    command.add_argument(
        "--at", action="append", default=[], type=float, metavar="X", help="such a multiple (0.7, 1 and 1.2)"
    )
    add_out(command)
    add_markdown(command)


def add_out(command: argparse.ArgumentParser) -> None:
    """Where files go."""
    command.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help=f"where files go (default {_OUT}/)"
    )


def add_markdown(command: argparse.ArgumentParser) -> None:
    """A page of documentation besides."""
    command.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the results as a page of documentation too"
    )


def scenario_of_flags(flags: argparse.Namespace) -> Scenario:
    """The file's, the flags', or the standard one; flags win over the file."""
    if flags.workload:
        scenario = quick_scenario(
            flags.workload,
            flags.policy or list(standard_scenario().policies),
            flags.seeds or 3,
            parameters_of(flags.set),
        )
    else:
        scenario = load_scenario(flags.scenario) if flags.scenario else standard_scenario()
        if flags.only:
            left = tuple(case for case in scenario.cases if case.label in flags.only)
            if not left:
                labels = ", ".join(case.label for case in scenario.cases)
                raise ConfigError(f"--only: {scenario.name} has {labels}")
            scenario = replace(scenario, cases=left)
        given = parameters_of(flags.set)
        if given:
            cases = tuple(case.with_known(given) for case in scenario.cases)
            if not any(key in case.parameters for case in cases for key in given):
                raise ConfigError(f"--set: no workload of {scenario.name} has {', '.join(given)}")
            scenario = replace(scenario, cases=cases)
        if flags.policy:
            scenario = replace(scenario, policies=tuple(flags.policy))
        if flags.seeds:
            scenario = replace(scenario, seeds=flags.seeds)
    if flags.rate:
        scenario = replace(scenario, rates=tuple(flags.rate))
    if flags.knee:
        scenario = replace(scenario, knee=flags.knee)
    if flags.at:
        scenario = replace(scenario, at=tuple(flags.at))
    check(scenario, "flags")
    return scenario


def parameters_of(assignments: Sequence[str]) -> dict[str, Any]:
    """Of KEY=VALUE; values are YAML. Raises ConfigError for anything else."""
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError("--set: write KEY=VALUE, such as rate=30")
        values[key] = yaml.safe_load(text)
    return values
