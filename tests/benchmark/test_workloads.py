"""Workloads: exact by seed, in order of arrival, and with the statistics they promise."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stickyroute.benchmark.workloads import WORKLOADS, Request, make_workload
from stickyroute.benchmark.workloads.base import poisson, stages

GENERATED = [name for name, kind in WORKLOADS.items() if not hasattr(kind, "path")]


def play(name: str, seed: int = 0, **parameters: Any) -> list[Request]:
    return list(make_workload(name, parameters).requests(Random(seed)))


def facts(requests: list[Request]) -> list[tuple[float, int, int, str]]:
    return [(r.at_s, r.prompt_tokens, r.output_tokens, r.user) for r in requests]


@pytest.mark.parametrize("name", GENERATED)
def test_the_same_seed_makes_the_same_requests_in_order_of_arrival(name: str) -> None:
    one = play(name, 5, seconds=20.0)
    assert facts(one) == facts(play(name, 5, seconds=20.0))
    assert [r.reply.keys() for r in one[:40]] == [r.reply.keys() for r in play(name, 5, seconds=20.0)[:40]]
    assert facts(one) != facts(play(name, 6, seconds=20.0))
    arrivals = [request.at_s for request in one]
    assert arrivals == sorted(arrivals)
    assert all(request.prompt_tokens > 0 and request.output_tokens > 0 for request in one)


@pytest.mark.parametrize("name", [name for name in GENERATED if name != "shared_prefixes"])
def test_the_rate_is_what_was_asked_for(name: str) -> None:
    requests = play(name, 1, rate=10.0, seconds=200.0)
    assert 0.8 * 2000 < len(requests) < 1.2 * 2000


def reuse(requests: list[Request]) -> float:
    """The share of prompt blocks that an endless cache would have had."""
    seen: set[int] = set()
    hits = total = 0
    for request in requests:
        keys = request.reply.keys()
        prompt = keys[: request.prompt_tokens // 16]
        hits += next((i for i, key in enumerate(prompt) if key not in seen), len(prompt))
        total += len(prompt)
        seen.update(keys)
    return hits / total


def test_conversations_overlap_and_strangers_do_not() -> None:
    assert reuse(play("chat", rate=6.0, seconds=120.0)) > 0.6
    assert reuse(play("agentic", rate=4.0, seconds=120.0)) > 0.8
    assert reuse(play("no_overlap", seconds=30.0)) == 0.0


def test_ids_are_all_that_chat_without_ids_leaves_out() -> None:
    with_ids, without = play("chat", 3, seconds=20.0), play("chat_without_ids", 3, seconds=20.0)
    assert [f[:3] for f in facts(with_ids)] == [f[:3] for f in facts(without)]
    assert {request.user for request in without} == {""}
    assert len({request.user for request in with_ids}) > 100


def test_shared_prefixes_are_llm_ds_numbers() -> None:
    requests = play("shared_prefixes", 0, warmup_s=100.0, seconds=100.0)
    assert {request.prompt_tokens for request in requests} == {7200}
    assert {request.output_tokens for request in requests} == {1000}
    first = [request.reply.keys() for request in requests[:750]]
    assert len({keys[449] for keys in first}) == 750  # the whole prompt: every one once
    assert Counter(keys[374] for keys in first) == dict.fromkeys(
        {k[374] for k in first}, 5
    )  # 150 groups of 5
    assert requests[750].reply.keys() == first[0]  # then round again


def test_one_prompt_shares_just_the_system_prompt() -> None:
    requests = play("one_prompt", seconds=5.0)
    assert len({request.reply.keys()[186] for request in requests}) == 1  # 3,000 tokens: 187 full blocks
    assert len({request.reply.keys()[-1] for request in requests}) == len(requests)


def test_the_clock_moves_everything_behind_it() -> None:
    requests = play("clock", 2, seconds=120.0, tick_s=60.0)
    early = {request.reply.keys()[60] for request in requests if request.at_s < 60}
    late = {request.reply.keys()[60] for request in requests if request.at_s >= 60}
    assert (len(early), len(late)) == (1, 1)
    assert early != late
    assert len({request.reply.keys()[0] for request in requests}) == 1


def test_a_window_forgets_the_oldest_turn() -> None:
    turns = [r for r in play("window", 0, seconds=300.0, rate=2.0, think_s=5.0) if r.user == "user-0"]
    users = [[part.seed for part in turn.reply.parts() if part.role == "user"] for turn in turns]
    assert max(len(seeds) for seeds in users) == 8
    assert users[-1][:-1] == users[-2][1:]


def test_arrivals_are_poisson_and_stages_follow_each_other() -> None:
    gaps = list(poisson(Random(1), 10.0, 1000.0))
    assert 9_700 < len(gaps) < 10_300
    times = list(stages(Random(1), [(1.0, 100.0), (10.0, 100.0)]))
    assert times == sorted(times)
    assert sum(time >= 100 for time in times) > 5 * sum(time < 100 for time in times)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("chatter", {}, "known: chat"),
        ("chat", {"speed": 2}, "has no speed"),
        ("mooncake", {}, "give its path"),
    ],
)
def test_mistakes_are_told(name: str, parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_workload(name, parameters)


def test_a_mooncake_trace_keeps_its_lengths_and_its_prefixes(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 1500, "output_length": 7, "hash_ids": [0, 1, 3]},
        {"timestamp": 6000, "input_length": 700, "output_length": 9, "hash_ids": [9, 1]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    one, two, three = play("mooncake", path=str(path), spread_s=0.0, speed=2.0)
    assert facts([one, two, three]) == [(0, 1200, 5, ""), (1.5, 1500, 7, ""), (3.0, 700, 9, "")]
    assert one.reply.keys()[:64] == two.reply.keys()[:64]
    assert one.reply.keys()[64] != two.reply.keys()[64]
    assert one.reply.keys()[0] != three.reply.keys()[0]


def test_recorded_sessions_keep_their_growth(tmp_path: Path) -> None:
    session = {
        "id": "s", "block_size": 64, "tool_tokens": 256, "system_tokens": 0,
        "requests": [
            {"t": 0.0, "in": 700, "out": 10, "h": [[1, 10]]},
            {"requests": [{"t": 1.0, "in": 300, "out": 4, "h": [[50, 53]]}]},
            {"t": 200.0, "in": 1000, "out": 20, "h": [[1, 15]]},
        ],
    }  # fmt: skip
    path = tmp_path / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(session).encode()))
    requests = play("coding_sessions", path=str(path), sessions_s=0.01, seconds=400.0, idle_s=60.0)
    mine = [request for request in requests if request.user == requests[0].user]
    assert [request.prompt_tokens for request in mine] == [700, 300, 1000]
    assert mine[2].at_s - mine[1].at_s == pytest.approx(60.0)  # a longer pause is cut
    assert mine[0].reply.keys()[:40] == mine[2].reply.keys()[:40]


def test_azure_and_sharegpt_are_read(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:05.9799600,3180,8\n"
    )
    assert [f[:3] for f in facts(play("azure", path=str(azure)))] == [(0, 4808, 10), (2.0, 3180, 8)]
    talks = tmp_path / "talks.jsonl.gz"
    talks.write_bytes(gzip.compress(b'{"id":"a","turns":[[34,244],[36,320]]}\n'))
    lengths = {f[1:3] for f in facts(play("sharegpt", path=str(talks), seconds=20.0, think_s=2.0))}
    assert lengths == {(34, 244), (34 + 244 + 36, 320)}
