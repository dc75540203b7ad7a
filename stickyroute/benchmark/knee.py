"""The knee of a workload: the largest load at which enough requests still get their first token in time.

Owns the search, in virtual time, and the cases at multiples of what it finds. Policies are worth comparing below
the knee, at it and past it: far below all are alike, far above all are lost. Runs over HTTP use the same
search, since the fleet is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from stickyroute.benchmark.jobs import Job, run_job, spread
from stickyroute.benchmark.scenario import Case, Scenario
from stickyroute.benchmark.workloads import WORKLOADS, make_workload
from stickyroute.errors import ConfigError

LOADS: Final = ("rate", "speed", "sessions_s")
"""The parameters that scale a workload's load: requests a second, a trace's speed, sessions started a second."""

_FACTOR_MAX: Final = 64.0  # how far from the workload's own load the search goes
_PRECISION: Final = 1.05  # the knee is known to within this factor


@dataclass(frozen=True, slots=True)
class Knee:
    """`load` is the value of the case's parameter `name`; `rate` the requests a second there, 0 if not known
    beforehand; `bounded` is False where the search ended before anything broke."""

    case: Case
    name: str
    load: float
    rate: float
    bounded: bool

    def __str__(self) -> str:
        what = f"{self.rate:.3g} requests/s" if self.rate else f"{self.name} {self.load:.3g}"
        return f"{self.case.label} {'' if self.bounded else 'over '}{what}"


def load_name(case: Case) -> str:
    """The parameter that scales the load of a case. Raises ConfigError if it has none."""
    known = {field.name for field in fields(WORKLOADS[case.workload])}
    found = next((name for name in LOADS if name in known), "")
    if not found:
        raise ConfigError(f"workload {case.workload} has no knee: none of {', '.join(LOADS)} scales it")
    return found


def find_knee(scenario: Scenario, case: Case, good_of: Callable[[Case], float] | None = None) -> Knee:
    """The largest load at which `scenario.knee_good` of the requests are good under the policy
    `scenario.knee`, with the first seed.

    `good_of` says how good a case is, instead of a replay. Raises ConfigError where even a 64th of the
    workload's own load is too much.
    """
    name = load_name(case)
    good_of = good_of or (lambda one: _good(scenario, one))
    own = float(getattr(make_workload(case.workload, case.parameters), name))

    def holds(load: float) -> bool:
        return good_of(at_load(case, name, load)) >= scenario.knee_good

    low, high = (own, math.inf) if holds(own) else (0.0, own)
    while math.isinf(high):
        if low >= own * _FACTOR_MAX:
            return Knee(case, name, low, _rate(case, name, low), bounded=False)
        low, high = (low * 2, high) if holds(low * 2) else (low, low * 2)
    while not low:
        if high <= own / _FACTOR_MAX:
            raise ConfigError(
                f"{case.label}: {scenario.knee} keeps {scenario.slo_ttft_s:g} s to the first token at no load "
                "worth the name; set slo_ttft_s"
            )
        low, high = (high / 2, high) if holds(high / 2) else (low, high / 2)
    while high / low > _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Knee(case, name, low, _rate(case, name, low), bounded=True)


def find_knees(
    scenario: Scenario, processes: int, tell: Callable[[int, int, Knee], None] | None = None
) -> list[Knee]:
    """The knee of every case, over several processes. `tell(found, all, last)` after each."""
    cases = scenario.cases
    told = (lambda count, knee: tell(count, len(cases), knee)) if tell is not None else None
    return spread(scenario, find_knee, cases, processes, told)


def at_knees(scenario: Scenario, knees: Sequence[Knee]) -> Scenario:
    """The scenario with every case at `scenario.at` times its knee instead of its own load."""
    cases = []
    for knee in knees:
        for factor in scenario.at:
            case = at_load(knee.case, knee.name, knee.load * factor)
            # Where the rate is not known beforehand, nothing else would tell the cases apart.
            label = case.label if knee.rate else f"{case.label}, {factor:g} x knee"
            cases.append(replace(case, label=label))
    return replace(scenario, cases=tuple(cases), rates=())


def at_load(case: Case, name: str, load: float) -> Case:
    """The case with its load set, to three digits: a scenario that is written down gives the same runs."""
    return replace(case, parameters={**case.parameters, name: float(f"{load:.3g}")})


def _rate(case: Case, name: str, load: float) -> float:
    one = at_load(case, name, load)
    return make_workload(one.workload, one.parameters).rate


def _good(scenario: Scenario, case: Case) -> float:
    return run_job(scenario, Job(case, scenario.knee, 0, scenario.replicas[0])).summary.good
