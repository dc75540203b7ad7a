"""Replay: deterministic, the product's own choices, and the published order of things on small fleets."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.jobs import run_scenario
from stickyroute.benchmark.replay import Keys, Replay
from stickyroute.benchmark.results import Run, summarize
from stickyroute.benchmark.scenario import scenario_of
from stickyroute.benchmark.workloads import make_workload
from stickyroute.simulator.profiles import DEMO

SMALL = FleetSpec(DEMO, 4)
TALK: dict[str, Any] = {
    "rate": 12.0,
    "seconds": 30.0,
    "think_s": 3.0,
    "opening_tokens": 600.0,
    "answer_tokens": 20.0,
    "fresh": True,
}


def replay(policy: str, workload: str = "chat", seed: int = 0, replicas: int = 1, **parameters: Any) -> Run:
    return Replay(make_workload(workload, {**TALK, **parameters}), policy, SMALL, seed, replicas).run()


@pytest.mark.parametrize("policy", ["round_robin", "least_tokens", "bounded_ring", "sticky", "omniscient"])
def test_a_run_is_the_same_to_the_last_digit(policy: str) -> None:
    one, two = replay(policy, replicas=2), replay(policy, replicas=2)
    assert one.rows == two.rows
    assert one.engines == two.engines
    assert one.samples == two.samples
    assert replay(policy, seed=1, replicas=2).rows != one.rows


def test_every_request_is_answered_once_and_counted_by_one_engine() -> None:
    run = replay("bounded_ring")
    asked = sum(1 for _ in make_workload("chat", TALK).requests(Random("workload 0")))
    assert len(run.rows) == asked == sum(engine.requests for engine in run.engines)
    assert all(row.ttft_s is not None and row.latency_s is not None for row in run.rows)
    assert sum(row.prompt_tokens for row in run.rows) == sum(engine.queries for engine in run.engines)
    assert sum(row.cached_tokens or 0 for row in run.rows) == sum(engine.hits for engine in run.engines)


def test_sticky_beats_round_robin_where_there_is_something_to_stick_to() -> None:
    usual, sticky = summarize(replay("round_robin")), summarize(replay("ring"))
    assert sticky.hit_rate > 1.4 * usual.hit_rate
    assert sticky.ttft_mean_s < usual.ttft_mean_s


def test_hashing_the_head_of_one_prompt_sends_everything_to_one_backend() -> None:
    values = {"system_tokens": 400, "rate": 8.0, "seconds": 20.0}
    run = Replay(make_workload("one_prompt", values), "ring", SMALL).run()
    assert sorted(engine.requests for engine in run.engines)[:3] == [0, 0, 0]
    bounded = Replay(make_workload("one_prompt", values), "bounded_ring", SMALL).run()
    assert max(engine.requests for engine in bounded.engines) < len(bounded.rows) / 2


def test_a_user_stays_home_on_the_ring_whichever_replica_is_asked() -> None:
    run = replay("ring", replicas=4)
    alone = replay("ring")
    assert [engine.requests for engine in run.engines] == [engine.requests for engine in alone.engines]


def test_round_robin_is_even() -> None:
    counts = [engine.requests for engine in replay("round_robin").engines]
    assert max(counts) - min(counts) <= 1


def test_keys_come_from_the_user_and_else_from_the_head() -> None:
    keys = Keys()
    named = next(iter(make_workload("chat", TALK).requests(Random(0))))
    plain = next(iter(make_workload("chat_without_ids", TALK).requests(Random(0))))
    assert keys.of(named).source == "body:user"
    assert keys.of(plain).source == "prefix"
    assert keys.of(named) == keys.of(named)


def test_a_prompt_longer_than_the_context_is_an_error_and_holds_nothing() -> None:
    spec = replace(SMALL, profile=replace(DEMO, context_tokens=500))
    run = Replay(make_workload("no_overlap", {"rate": 5.0, "seconds": 10.0}), "least_requests", spec).run()
    errors = [row for row in run.rows if row.error]
    assert errors
    assert all(row.error == "too long" and row.latency_s is None for row in errors)
    assert summarize(run).errors == len(errors)


def test_the_number_of_processes_changes_nothing() -> None:
    scenario = scenario_of(
        {
            "fleet": {"profile": "demo", "engines": 2},
            "workloads": [{"workload": "no_overlap", "rate": 4, "seconds": 10}],
            "policies": ["round_robin", "least_requests"],
            "seeds": 2,
        },
        "test",
        "test",
    )
    one = [done.summary for done in run_scenario(scenario, 1)]
    assert one == [done.summary for done in run_scenario(scenario, 2)]
    assert [(s.policy, s.seed) for s in one] == [
        ("round_robin", 0), ("least_requests", 0), ("round_robin", 1), ("least_requests", 1),
    ]  # fmt: skip
