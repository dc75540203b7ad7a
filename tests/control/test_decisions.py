"""GET /decisions: the last ones, what was predicted and achieved, filters, and nothing that is a secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stickyroute.control.decisions import Decisions
from tests.support.fake_backend import fakes, reply
from tests.support.raw_client import CHAT, chat
from tests.support.run_proxy import RunningProxy, run_proxy

SECRET = "somebody@example.org"
USAGE = json.dumps({
    "object": "chat.completion",
    "choices": [],
    "usage": {
        "prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020,
        "prompt_tokens_details": {"cached_tokens": 960},
    },
})  # fmt: skip


async def decisions(proxy: RunningProxy, query: str = "") -> Any:
    answer = await proxy.admin(f"/decisions{query}")
    return answer.json


async def test_what_was_predicted_and_what_came_of_it() -> None:
    async with fakes("a") as fake, run_proxy([fake], policy="sticky") as proxy:
        fake.on(CHAT, reply(body=USAGE.encode()))
        for _ in range(2):
            assert (await proxy.ask(chat("tell me all " * 330, user=SECRET))).status == 200
        told = await decisions(proxy)
    assert (told["kept"], told["recorded"]) == (2, 2)
    second, first = told["decisions"]
    assert (second["number"], first["number"]) == (2, 1)
    assert second["backend"] == "a"
    assert second["reason"] == "home"
    assert second["key_source"] == "body:user"
    assert second["key"] == first["key"]
    assert first["predicted"]["cached_tokens"] == 0
    assert second["predicted"]["cached_tokens"] > 800
    assert second["predicted"]["ttft_s"] < first["predicted"]["ttft_s"]
    assert second["achieved"]["prompt_tokens"] == 1000
    assert second["achieved"]["cached_tokens"] == 960
    assert second["achieved"]["ttft_s"] > 0
    assert second["end"] == "complete"
    text = json.dumps(told)
    assert SECRET not in text
    assert "tell me" not in text


async def test_who_does_not_look_at_caches_predicts_nothing() -> None:
    async with fakes("a") as fake, run_proxy([fake], policy="bounded_ring") as proxy:
        await proxy.ask(chat("tell me all " * 330, user=SECRET))
        (row,) = (await decisions(proxy))["decisions"]
    assert row["predicted"] is None


async def test_filters_and_limits() -> None:
    async with fakes("a", "b") as two, run_proxy(two, policy="round_robin", decisions=5) as proxy:
        for _ in range(8):
            await proxy.ask(chat())
        whole = await decisions(proxy)
        assert (whole["kept"], whole["recorded"]) == (5, 8)
        assert [row["number"] for row in whole["decisions"]] == [8, 7, 6, 5, 4]
        assert len((await decisions(proxy, "?limit=2"))["decisions"]) == 2
        of_a = (await decisions(proxy, "?backend=a"))["decisions"]
        assert {row["backend"] for row in of_a} == {"a"}
        assert 2 <= len(of_a) <= 3
        assert len((await decisions(proxy, "?reason=round_robin&limit=3"))["decisions"]) == 3
        assert (await decisions(proxy, "?reason=home"))["decisions"] == []
        assert [row["number"] for row in (await decisions(proxy, "?after=6"))["decisions"]] == [8, 7]
        assert (await decisions(proxy, "?after=8"))["decisions"] == []


@pytest.mark.parametrize("query", ["?limit=x", "?limit=-1", "?after=1.5", "?limit=99999999999"])
async def test_what_is_no_number_is_refused(query: str) -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        answer = await proxy.admin(f"/decisions{query}")
        assert answer.status == 400
        assert answer.json["error"]["code"] == "bad_request"


async def test_a_request_that_nobody_took_is_one_too() -> None:
    async with fakes("a") as fake, run_proxy([fake], retries={"max": 0}) as proxy:
        await fake.close()
        answer = await proxy.ask(chat())
        assert answer.status == 503
        (row,) = (await decisions(proxy))["decisions"]
    assert (row["backend"], row["status"]) == (None, 503)


async def test_the_ring_is_resized_while_it_runs() -> None:
    async with fakes("a") as fake, run_proxy([fake], decisions=3) as proxy:
        kept: Decisions = proxy.app.insight.decisions
        for _ in range(5):
            await proxy.ask(chat())
        kept.resize(10)
        await proxy.ask(chat())
        assert [row["number"] for row in kept.last(10)] == [6, 5, 4, 3]
        kept.resize(2)
        assert [row["number"] for row in kept.last(10)] == [6, 5]
        kept.resize(0)
        await proxy.ask(chat())
        assert (kept.last(10), kept.recorded) == ([], 6)
