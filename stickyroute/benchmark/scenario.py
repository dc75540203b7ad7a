"""A scenario: which workloads meet which policies on which fleet, how often. Read from YAML.

Owns the keys of the file and their checks. Runs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.workloads import WORKLOADS, make_workload
from stickyroute.errors import ConfigError
from stickyroute.routing.policies import POLICIES

OMNISCIENT = "omniscient"


@dataclass(frozen=True, slots=True)
class Case:
    """One workload of a scenario: its name, its parameters, what reports call it, and the routers it is not
    run through, by name or by name and policy."""

    label: str
    workload: str
    parameters: dict[str, Any]
    without: tuple[str, ...] = ()

    def with_known(self, parameters: dict[str, Any]) -> Case:
        """With those of `parameters` that the workload has."""
        known = {field.name for field in fields(WORKLOADS[self.workload])}
        taken = {key: value for key, value in parameters.items() if key in known}
        return replace(self, parameters={**self.parameters, **taken})

    def at_rate(self, rate: float) -> Case:
        return replace(self, parameters={**self.parameters, "rate": rate})


@dataclass(frozen=True, slots=True)
class Scenario:
    """`policies` are the product's, or omniscient; over HTTP `routers` are started as well. `rates` sweep
    every workload that has a rate. `slo_ttft_s` is what counts as good; `gpu_hour_usd` prices what is saved;
    over HTTP a run waits `grace_s` for answers after its last arrival. With `knee`, a policy, every workload is
    run `at` multiples of the largest load at which that policy gives `knee_good` of the requests their first
    token in time."""

    name: str
    about: str = ""
    fleet: dict[str, Any] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    policies: tuple[str, ...] = ("round_robin", "ring", "bounded_ring", "sticky")
    routers: tuple[str, ...] = ()
    seeds: int = 3
    replicas: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    slo_ttft_s: float = 1.0
    gpu_hour_usd: float = 2.5
    grace_s: float = 120.0
    knee: str = ""
    at: tuple[float, ...] = (0.7, 1.0, 1.2)
    knee_good: float = 0.9

    @property
    def spec(self) -> FleetSpec:
        return FleetSpec.of(self.fleet)

    @property
    def digest(self) -> str:
        """Changes with anything that would make runs of before incomparable; not with policies or routers."""
        what = (self.spec, self.runs(), self.replicas, self.slo_ttft_s, self.grace_s)
        return hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()

    def runs(self) -> list[Case]:
        """Every case at every rate."""
        if not self.rates:
            return list(self.cases)
        return [case.at_rate(rate) for case in self.cases for rate in self.rates]


def load_scenario(path: Path) -> Scenario:
    """The scenario in a YAML file. Paths of traces are relative to where the command runs.

    Raises ConfigError that names the key and what to do.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a scenario is a mapping; write workloads: and policies:")
    return scenario_of(values, str(path), path.stem)


def scenario_of(values: dict[str, Any], where: str, name: str) -> Scenario:
    """The scenario that `values` describe; `where` stands in front of every complaint."""
    known = {"workloads", *(f.name for f in fields(Scenario))} - {"cases"}
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ConfigError(f"{where}: {', '.join(unknown)}: no such key; known are {', '.join(sorted(known))}")
    left = {key: _frozen(value) for key, value in values.items() if key != "workloads"}
    cases = tuple(_case(entry, where) for entry in values.get("workloads") or ())
    if not cases:
        raise ConfigError(f"{where}: workloads: name one at least")
    scenario = Scenario(**{"name": name, **left, "cases": cases})
    check(scenario, where)
    return scenario


def check(scenario: Scenario, where: str) -> None:
    """Raises ConfigError, with `where` in front, for a policy, profile, workload or parameter that does not
    exist."""
    named = (*scenario.policies, *([scenario.knee] if scenario.knee else []))
    wrong = [policy for policy in named if policy not in POLICIES and policy != OMNISCIENT]
    if wrong:
        raise ConfigError(
            f"{where}: policies, knee: unknown {', '.join(wrong)}; known: {', '.join(POLICIES)}, omniscient"
        )
    try:
        scenario.spec  # noqa: B018 - reading it checks it
        for case in scenario.runs():
            make_workload(case.workload, case.parameters)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def quick_scenario(
    workloads: Sequence[str], policies: Sequence[str], seeds: int, parameters: dict[str, Any]
) -> Scenario:
    """A scenario from flags alone."""
    return scenario_of(
        {
            "workloads": [{"workload": name, **parameters} for name in workloads],
            "policies": list(policies),
            "seeds": seeds,
        },
        "flags",
        "+".join(workloads),
    )


def _case(entry: Any, where: str) -> Case:
    if isinstance(entry, str):
        entry = {"workload": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("workload"), str):
        raise ConfigError(f"{where}: workloads: each is a name or a mapping with the key workload")
    parameters = {key: value for key, value in entry.items() if key not in ("workload", "label", "without")}
    label = str(entry.get("label", entry["workload"]))
    return Case(label, entry["workload"], parameters, tuple(entry.get("without") or ()))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


STANDARD = {
    "about": "three workloads that show what stickiness is worth, and where it is worth nothing",
    "fleet": {"profile": "h100x2-qwen3-32b", "engines": 8},
    "workloads": [
        {"workload": "chat", "seconds": 240},
        {"workload": "shared_prefixes", "seconds": 120, "answer_tokens": 250, "rate": 25},
        {"workload": "no_overlap", "seconds": 240},
    ],
    "policies": ["round_robin", "ring", "bounded_ring", "sticky"],
    "seeds": 3,
}


def standard_scenario() -> Scenario:
    """What `stickyroute bench` runs when it is not told anything."""
    return scenario_of(dict(STANDARD), "built in", "standard")
