"""Explain over a real socket: it tells the choice that the next request gets, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stickyroute.clock import monotonic
from stickyroute.routing.policies import POLICIES
from tests.support.fake_backend import fakes, reply
from tests.support.raw_client import CHAT, RawClient, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

SECRET = "somebody@example.org"


async def explain(
    proxy: RunningProxy, body: bytes, query: str = "", headers: dict[str, str] | None = None
) -> Any:
    async with await RawClient.connect(proxy.admin_port) as client:
        sent = request(
            body,
            path=f"/explain{query}",
            headers={"Connection": "close", **(headers or {})},
            host="127.0.0.1",
        )
        answer = await client.ask(sent)
    assert answer.status == 200, answer.body
    return answer.body.decode() if "format=text" in query else answer.json


async def served(proxy: RunningProxy, body: bytes, headers: dict[str, str] | None = None) -> str:
    answer = await proxy.ask(body, headers=headers or {})
    return str(answer.get("x-stickyroute-backend"))


async def idle(proxy: RunningProxy) -> None:
    async with asyncio.timeout(10):
        while any(proxy.app.fleet.in_flight):
            await asyncio.sleep(0)


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_choice_is_the_one_that_the_next_request_gets(policy: str) -> None:
    names = ("a", "b", "c")
    async with fakes(*names) as three, run_proxy(three, policy=policy, response_headers=True) as proxy:
        for turn in range(10):
            body = chat(f"question {turn // 3} " + "of some length " * 90)
            headers = {"x-session-id": f"user {turn // 2}"} if turn % 3 else {}
            told = [await explain(proxy, body, headers=headers) for _ in range(2)]
            assert told[0]["choice"] == told[1]["choice"]
            assert await served(proxy, body, headers) == told[0]["choice"]["backend"]
            await idle(proxy)


async def test_every_figure_of_sticky_is_told() -> None:
    async with fakes("a", "b") as two, run_proxy(two, policy="sticky", response_headers=True) as proxy:
        talk: list[dict[str, str]] = [{"role": "user", "content": "tell me all " * 200}]
        body = json.dumps({"model": "m", "messages": talk, "user": SECRET}).encode()
        home = await served(proxy, body)
        await idle(proxy)
        talk += [{"role": "assistant", "content": "All."}, {"role": "user", "content": "And more."}]
        told = await explain(proxy, json.dumps({"model": "m", "messages": talk, "user": SECRET}).encode())
    assert SECRET not in json.dumps(told)
    assert told["key"]["source"] == "body:user"
    assert told["request"]["route"] == CHAT
    assert told["choice"]["backend"] == home
    rows = {row["name"]: row for row in told["backends"]}
    assert told["runner_up"]["backend"] in rows.keys() - {home}
    assert rows[home]["overlap"] > 0.8
    assert rows[home]["held_blocks"] > 0
    other = rows[told["runner_up"]["backend"]]
    assert other["overlap"] == 0.0
    assert other["predicted_ttft_s"] > rows[home]["predicted_ttft_s"]
    for row in rows.values():
        assert sum(row["terms"].values()) == pytest.approx(row["cost_s"], rel=0.01)
        assert row["excluded"] is None


async def test_the_key_is_shown_only_where_asked() -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        body = json.dumps(
            {"body": {"model": "m", "messages": []}, "headers": {"X-Session-Id": SECRET}}
        ).encode()
        assert SECRET not in json.dumps(await explain(proxy, body))
        assert (await explain(proxy, body, "?reveal=1"))["key"]["value"] == SECRET


async def test_who_is_excluded_and_why() -> None:
    async with fakes("a", "b", "c", "d") as (a, b, c, d):
        backends = [
            {**a.settings(), "models": ["m"]},
            {**b.settings(), "models": ["other"]},
            {**c.settings(), "models": ["m"], "weight": 0},
            {**d.settings(), "models": ["m"]},
        ]
        async with run_proxy(backends) as proxy:
            await d.close()
            slot = next(backend.slot for backend in proxy.app.fleet.backends if backend.name == d.name)
            while proxy.app.fleet.available[slot]:
                await proxy.ask(chat())
            told = await explain(proxy, chat())
            text = await explain(proxy, chat(), "?format=text")
    why = {row["name"]: row["excluded"] for row in told["backends"]}
    assert why["a"] is None
    assert why["b"] == "does not serve m"
    assert why["c"].startswith("weight 0")
    assert why["d"]
    assert told["choice"]["backend"] == "a"
    assert "does not serve m" in text
    assert "* choice" in text


async def test_the_operators_word_and_full_places_are_told() -> None:
    async with fakes("a", "b", "c") as (a, b, c):
        backends = [{**a.settings(), "max_in_flight": 1}, b.settings(), c.settings()]
        async with run_proxy(backends, policy="least_requests") as proxy:
            fleet = proxy.app.fleet
            slots = {backend.name: backend.slot for backend in fleet.backends}
            lease = fleet.lease(slots["a"])
            assert lease is not None
            fleet.drain(slots["b"], monotonic())
            fleet.disable(slots["c"], monotonic())
            told = await explain(proxy, chat())
            lease.release()
            assert (await explain(proxy, chat()))["choice"]["backend"] == "a"
    why = {row["name"]: row["excluded"] for row in told["backends"]}
    assert why["a"] == "at max_in_flight (1)"
    assert why["b"].startswith("draining")
    assert why["c"].startswith("disabled")
    assert told["choice"] is None
    assert "No backend" in told["notes"][0]


@pytest.mark.parametrize(
    ("body", "path", "status", "code"),
    [
        (b"{}", CHAT, 400, "missing_model"),
        (b"{", CHAT, 400, "invalid_json"),
        (chat(model="nobody's"), CHAT, 404, "model_not_found"),
        (chat(), "/flush_cache", 404, "unknown_path"),
    ],
)
async def test_what_would_be_refused_is_told(body: bytes, path: str, status: int, code: str) -> None:
    async with fakes("a") as fake, run_proxy([{**fake.settings(), "models": ["m"]}]) as proxy:
        told = await explain(proxy, body, f"?path={path}")
        assert (told["refused"]["status"], told["refused"]["code"]) == (status, code)
        assert "refused" in await explain(proxy, body, f"?path={path}&format=text")


async def test_a_body_nested_too_deep_to_be_written_is_told() -> None:
    async with (
        fakes("a") as fake,
        run_proxy([fake]) as proxy,
        await RawClient.connect(proxy.admin_port) as client,
    ):
        sent = b'{"body":' + b"[" * 500 + b"]" * 500 + b"}"
        answer = await client.ask(request(sent, path="/explain", host="127.0.0.1"))
    assert answer.status == 400
    assert "nested too deep" in answer.json["error"]["message"]


async def test_what_one_backend_keeps_is_explained_as_pinned_there() -> None:
    given = json.dumps({"id": "resp_1", "object": "response", "output": []}).encode()
    async with fakes("a", "b", "c") as three, run_proxy(three, response_headers=True) as proxy:
        for fake in three:
            fake.on("/v1/responses", reply(body=given))
        first = await proxy.ask(json.dumps({"model": "m", "input": "Hello"}).encode(), path="/v1/responses")
        goes_on = json.dumps({"model": "m", "input": "And?", "previous_response_id": "resp_1", "user": "u"})
        told = await explain(proxy, goes_on.encode(), "?path=/v1/responses")
    assert told["choice"] == {
        **told["choice"],
        "backend": first.get("x-stickyroute-backend"),
        "reason": "pinned",
    }


async def test_a_route_that_is_not_read_and_one_that_is_answered_here() -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        told = await explain(proxy, b"anything", "?path=/tokenize", {"X-Session-Id": "s"})
        assert (told["choice"]["backend"], told["key"]["source"]) == ("a", "header:x-session-id")
        assert "not named" in await explain(proxy, b"anything", "?path=/tokenize&format=text")
        here = await explain(proxy, json.dumps({"method": "GET", "path": "/v1/models", "body": ""}).encode())
        assert "answered here" in here["notes"][0]


async def test_keys_of_the_gateway() -> None:
    keys = [{"name": "team", "key": "a-secret-of-theirs"}]
    async with fakes("a") as fake, run_proxy([fake], api_keys=keys) as proxy:
        nobodys = await explain(proxy, chat())
        theirs = await explain(proxy, chat(), "?tenant=team")
        sent = {"body": json.loads(chat()), "headers": {"Authorization": "Bearer a-secret-of-theirs"}}
        same = await explain(proxy, json.dumps(sent).encode())
    assert "refused (401" in nobodys["notes"][0]
    assert theirs["request"]["tenant"] == same["request"]["tenant"] == "team"
    assert theirs["key"] == same["key"] != nobodys["key"]
