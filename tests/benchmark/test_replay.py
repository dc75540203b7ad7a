"""Replay: deterministic, the product's own choices, and the published order of things on small fleets."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pytest

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.jobs import run_scenario
from stickyroute.benchmark.keys import Keys
from stickyroute.benchmark.prompts import start
from stickyroute.benchmark.replay import Replay
from stickyroute.benchmark.results import Run, summarize
from stickyroute.benchmark.scenario import scenario_of
from stickyroute.benchmark.workloads import make_workload
from stickyroute.benchmark.workloads.base import Request
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
    one, two = (replay(policy, replicas=2, seconds=12) for _ in range(2))
    assert one.rows == two.rows
    assert one.engines == two.engines
    assert one.samples == two.samples
    assert replay(policy, seed=1, replicas=2, seconds=12).rows != one.rows


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


@pytest.mark.parametrize("policy", ["ring", "bounded_ring", "sticky"])
def test_one_prompt_on_every_request_does_not_collapse_the_fleet(policy: str) -> None:
    """Case B13's other half: the common head is no key."""
    values = {"system_tokens": 400, "rate": 8.0, "seconds": 40.0}
    run = Replay(make_workload("one_prompt", values), policy, SMALL).run()
    assert max(engine.requests for engine in run.engines) < 0.4 * len(run.rows)


def test_a_user_stays_home_on_the_ring_whichever_replica_is_asked() -> None:
    run = replay("ring", replicas=4)
    alone = replay("ring")
    assert [engine.requests for engine in run.engines] == [engine.requests for engine in alone.engines]


def test_round_robin_is_even() -> None:
    counts = [engine.requests for engine in replay("round_robin").engines]
    assert max(counts) - min(counts) <= 1


def test_a_user_keeps_a_key_and_so_does_a_conversation_without_one() -> None:
    for workload, source in (("chat", "body:user"), ("chat_without_ids", "prefix")):
        keys = Keys(range(4))
        talks: dict[int, set[int | None]] = {}
        for request in islice(make_workload(workload, TALK).requests(Random(0)), 200):
            found = keys.of(request)
            assert found.source == source
            assert found.ends[-1] <= found.prompt_bytes
            talks.setdefault(request.reply.parts()[1].seed, set()).add(found.affinity)
        assert max(len(known) for known in talks.values()) == 1
        assert len({key for known in talks.values() for key in known}) > 20


def test_a_prompt_with_the_same_beginning_has_the_same_first_blocks() -> None:
    keys = Keys(range(4))
    head = start("system", 1, 1000)
    one, other = (
        keys.of(Request(0.0, head.then("user", seed, 500).then("assistant", seed + 10, 5))) for seed in (2, 3)
    )
    shared = sum(a == b for a, b in zip(one.chain, other.chain, strict=True))
    assert one.ends[shared - 1] <= 4000 < one.ends[shared]


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
