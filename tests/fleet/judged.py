"""Fleets whose backends fail and come back, by a few words."""

from __future__ import annotations

from stickyroute.fleet import Fleet, FleetRules, HealthRules, Outcome
from tests.fleet.specs import SMALL, VNODES, spec

RULES = HealthRules(eject_first_s=1.0, eject_last_s=8.0, trial_s=10.0)
FAILURES = (Outcome.RESET, Outcome.SERVER_ERROR)


def of(count: int, rules: HealthRules = RULES) -> Fleet:
    return Fleet([spec(f"b{i}") for i in range(count)], VNODES, SMALL, FleetRules(health=rules))


def fail(some: Fleet, slot: int, times: int, now_s: float, outcome: Outcome = Outcome.SERVER_ERROR) -> None:
    for _ in range(times):
        some.record_outcome(slot, outcome, now_s, 0.0)


def codes(some: Fleet) -> list[tuple[int, str]]:
    return [(event.slot, event.code) for event in some.take_events()]
