"""The yardstick: it sees what is there, and no simple policy beats it by more than noise."""

from __future__ import annotations

from typing import Any

import pytest

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.omniscient import Omniscient
from stickyroute.benchmark.prompts import Prompt, start
from stickyroute.benchmark.replay import Replay
from stickyroute.benchmark.results import summarize
from stickyroute.benchmark.workloads import Request, make_workload
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import DEMO

SMALL = FleetSpec(DEMO, 4)


class Fleet:
    """Three engines behind the omniscient router; requests are placed where it says, or where the story
    wants."""

    def __init__(self) -> None:
        self.engines = [Engine(DEMO) for _ in range(3)]
        self.router = Omniscient(self.engines, DEMO)
        self.now_s = 0.0
        self._next = 0

    def ask(self, prompt: Prompt, at_s: float, slot: int | None = None) -> int:
        self.now_s = at_s
        for engine in self.engines:
            engine.advance(at_s)
        self._next += 1
        request = Request(at_s, prompt.then("assistant", 10_000 + self._next, 8))
        chosen, _, _ = self.router.choose(request, at_s)
        place = chosen if slot is None else slot
        keys = request.reply.keys()
        self.router.placed(place, self.engines[place].submit(at_s, keys, request.prompt_tokens, 8))
        return chosen


def test_a_prompt_goes_where_its_prefix_is() -> None:
    fleet = Fleet()
    talk = start("user", 1, 2000)
    fleet.ask(talk, 0.0, slot=2)
    assert fleet.ask(talk.then("user", 2, 50), 10.0) == 2


def test_a_prefix_that_somebody_ahead_has_computed_counts_already() -> None:
    fleet = Fleet()
    talk = start("user", 1, 2000)
    fleet.ask(talk, 0.0, slot=1)
    assert fleet.ask(talk.then("user", 2, 50), 0.1) == 1  # 0.07 s are left, an idle engine would need 0.17


@pytest.mark.parametrize(("at_s", "stays"), [(10.0, False), (11.3, True)])
def test_a_long_queue_is_left_for_an_idle_engine_and_a_short_one_is_not(at_s: float, stays: bool) -> None:
    fleet = Fleet()
    talk = start("user", 1, 2000)  # 0.17 s to compute
    fleet.ask(talk, 0.0, slot=0)
    for number in range(4):
        fleet.ask(start("user", 100 + number, 4000), 10.0, slot=0)  # 1.4 s of others' work
    assert (fleet.ask(talk.then("user", 2, 50), at_s) == 0) is stays


def test_a_prefix_everybody_wants_is_spread_before_queues_are_long() -> None:
    fleet = Fleet()
    system = start("system", 1, 1200)
    slots = [fleet.ask(system.then("user", 10 + n, 300), 0.02 * n) for n in range(60)]
    assert {slots.count(slot) for slot in (0, 1, 2)} <= set(range(15, 26))


WORKLOADS: dict[str, dict[str, Any]] = {
    "chat": {"rate": 12, "think_s": 3, "opening_tokens": 600, "answer_tokens": 40},
    "chat_without_ids": {"rate": 12, "think_s": 3, "opening_tokens": 600, "answer_tokens": 40},
    "agentic": {"rate": 3, "context_tokens": 12_000, "system_tokens": 1500, "files_tokens": 1500},
    "rag": {"rate": 16, "documents": 80, "document_tokens": 900, "answer_tokens": 40},
    "shared_prefixes": {"rate": 12, "warmup_s": 0, "groups": 24, "system_tokens": 1200,
                        "question_tokens": 150, "answer_tokens": 40},
    "one_prompt": {"rate": 20, "system_tokens": 1500, "answer_tokens": 40},
    "no_overlap": {"rate": 12, "prompt_tokens": 900, "answer_tokens": 40},
    "clock": {"rate": 12, "tick_s": 15, "think_s": 5, "answer_tokens": 40},
    "window": {"rate": 12, "think_s": 5, "answer_tokens": 40},
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_simple_policy_beats_it_by_more_than_noise(name: str) -> None:
    def mean_s(policy: str) -> float:
        workload = make_workload(name, {**WORKLOADS[name], "seconds": 15})
        return summarize(Replay(workload, policy, SMALL).run()).ttft_mean_s

    best_s = min(mean_s(policy) for policy in ("round_robin", "power_of_two", "ring", "bounded_ring"))
    assert mean_s("omniscient") <= 1.05 * best_s
