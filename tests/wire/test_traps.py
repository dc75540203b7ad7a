"""The traps that engines set inside a good transport: each is recognised, counted as what it is, and acted on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stickyroute.clock import monotonic
from stickyroute.http import relay
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.faults import Fault
from stickyroute.simulator.server import RunningEngine, serve_engines
from tests.support.fake_backend import DONE, Call, events, fakes, held, reply, stream
from tests.support.raw_client import CHAT, Response, request
from tests.support.run_proxy import RunningProxy, run_proxy

ASK = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "Tell me."}], "stream": True, "max_tokens": 8}
).encode()
FULL = (
    b'data: {"error":{"object":"error","message":"The request queue is full.",'
    b'"type":"SERVICE_UNAVAILABLE","param":null,"code":503}}\n\n'
)
SSE = [("Content-Type", "text/event-stream")]


@asynccontextmanager
async def two(
    dialect: str = "vllm", **config: Any
) -> AsyncIterator[tuple[list[RunningEngine], RunningProxy]]:
    """Two simulated engines that are asked in turn."""
    made = EngineConfig(**{"model": "m", "speedup": 20.0, "dialect": dialect, **config})
    engines = await serve_engines([made] * 2)
    entries = [{"name": f"b{slot}", "url": engine.url} for slot, engine in enumerate(engines)]
    try:
        async with run_proxy(entries, policy="round_robin", response_headers=True) as proxy:
            yield engines, proxy
    finally:
        for engine in engines:
            await engine.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.002)


def said(answer: Response) -> list[Any]:
    """The events of a stream."""
    texts = [line[6:] for line in answer.body.split(b"\n\n") if line.startswith(b"data: ")]
    return [text if text == b"[DONE]" else json.loads(text) for text in texts]


def is_whole(answer: Response) -> bool:
    told = said(answer)
    return answer.status == 200 and told[-1] == b"[DONE]" and not any("error" in e for e in told[:-1])


async def failures(proxy: RunningProxy, kind: str) -> float:
    return (await proxy.metrics()).sum("stickyroute_upstream_failures_total", kind=kind)


async def retries(proxy: RunningProxy, kind: str) -> float:
    return (await proxy.metrics()).sum("stickyroute_retries_total", kind=kind)


async def test_sglang_that_is_full_says_so_in_a_200_and_the_next_takes_the_request() -> None:
    async with two("sglang") as (engines, proxy):
        engines[0].inject(Fault("busy"))
        answers = [await proxy.ask(ASK) for _ in range(4)]
        assert all(is_whole(answer) for answer in answers)
        assert {answer.get("x-stickyroute-backend") for answer in answers} == {"b1"}
        assert await retries(proxy, "busy") >= 1
        assert await failures(proxy, "upstream_error") == 0


async def test_where_nobody_else_is_left_the_error_event_reaches_the_client_as_it_came() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream([FULL, DONE]))
        answer = await proxy.ask(ASK)
        assert (answer.status, answer.body) == (200, FULL + DONE)
        assert len(fake.requests) == 1


@pytest.mark.parametrize("cut", [1, 8, 20, len(FULL) - 1])
async def test_an_error_event_in_parts_is_known_and_a_good_one_in_parts_is_whole(cut: int) -> None:
    good = events(3)
    half = min(cut, len(good[0]) - 1)
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy="round_robin") as proxy:
        a.on(CHAT, stream([FULL[:cut], FULL[cut:], DONE], gap_s=0.01))
        b.on(CHAT, stream([good[0][:half], good[0][half:], *good[1:]], gap_s=0.002))
        for _ in range(2):
            assert (await proxy.ask(ASK)).body == b"".join(good)


async def test_the_first_event_of_a_good_stream_waits_for_nothing() -> None:
    gate = asyncio.Event()

    async def one_event_then_wait(call: Call) -> None:
        await call.start(200, SSE)
        await call.piece(events(1)[0])
        await gate.wait()
        await call.end("chunked")

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, one_event_then_wait)
        client.send(request(ASK))
        answer = await client.head()
        await client.body(answer, stop_after=1)
        assert answer.pieces[0][1] == events(1)[0]
        gate.set()
        await client.body(answer)


async def test_the_head_of_a_stream_goes_out_by_itself_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is in front of us may have a limit for heads."""
    monkeypatch.setattr(relay, "HEAD_HELD_S", 0.05)
    gate = asyncio.Event()

    async def head_then_wait(call: Call) -> None:
        await call.start(200, SSE)
        await gate.wait()
        await call.piece(events(1)[0])
        await call.end("chunked")

    limits = {"client_idle_s": 0.1}  # what is looked for often
    async with fakes() as fake, run_proxy([fake], timeouts=limits) as proxy, await proxy.client() as client:
        fake.on(CHAT, head_then_wait)
        client.send(request(ASK))
        answer = await client.head()
        assert not gate.is_set()
        gate.set()
        await client.body(answer)
        assert answer.body == events(1)[0]


async def test_vllm_that_drains_refuses_with_a_500_while_its_health_is_green() -> None:
    async with two(answer_tokens=200) as (engines, proxy):
        # Longer than a look at what is in flight takes.
        long = ASK.replace(b'"max_tokens": 8', b'"max_tokens": 200')
        running = asyncio.create_task(proxy.ask(long))
        await until(lambda: sum(proxy.app.fleet.in_flight))
        engines[0].inject(Fault("draining"))
        answers = [await proxy.ask(ASK) for _ in range(4)]
        assert all(is_whole(answer) for answer in [*answers, await running])
        assert {answer.get("x-stickyroute-backend") for answer in answers} == {"b1"}
        assert await retries(proxy, "engine_dead") == 1  # then it is left alone
        state = proxy.app.fleet.state(0)
        assert (state.ejected, state.available) == (True, False)


async def test_another_500_is_the_clients_to_see() -> None:
    body = b'{"error":{"message":"list index out of range","code":500}}'
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, reply(500, body))
        answer = await proxy.ask(ASK)
        assert (answer.status, answer.body) == (500, body)
        assert len(a.requests) + len(b.requests) == 1


async def test_a_dead_engine_core_is_a_failure_however_cleanly_its_stream_ends() -> None:
    async with two(answer_tokens=400) as (engines, proxy), await proxy.client() as client:
        client.send(request(ASK.replace(b'"max_tokens": 8', b'"max_tokens": 400')))
        answer = await client.head()
        await client.body(answer, stop_after=2)
        slot = int(answer.get("x-stickyroute-backend")[1:])
        engines[slot].inject(Fault("engine_error"))
        await client.body(answer)
        assert said(answer)[-2]["error"]["code"] == 500
        assert said(answer)[-1] == b"[DONE]"
        assert await failures(proxy, "upstream_dead") == 1
        assert not proxy.app.fleet.available[slot]
        assert is_whole(await proxy.ask(ASK))


async def test_a_stream_that_sigterm_ended_is_counted_as_cut() -> None:
    async with two() as (engines, proxy), await proxy.client() as client:
        client.send(request(ASK.replace(b'"max_tokens": 8', b'"max_tokens": 400')))
        answer = await client.head()
        await client.body(answer, stop_after=2)
        slot = int(answer.get("x-stickyroute-backend")[1:])
        await engines[slot].close()
        await client.body(answer)
        assert said(answer)[-2]["choices"][0]["finish_reason"] == "abort"
        assert await failures(proxy, "upstream_aborted") == 1


async def test_an_engine_that_dies_before_the_first_token_costs_the_client_nothing() -> None:
    async with two(speedup=0.5) as (engines, proxy):
        asking = asyncio.create_task(proxy.ask(ASK.replace(b"Tell me.", b"Tell me. " * 2000)))
        await until(lambda: engines[0].observed.in_flight + engines[1].observed.in_flight)
        slot = 0 if engines[0].observed.in_flight else 1
        await until(lambda: proxy.app.fleet.in_flight[slot])
        engines[slot].crash()
        answer = await asking
        assert is_whole(answer)
        assert answer.get("x-stickyroute-backend") == f"b{1 - slot}"


async def test_a_busy_backend_is_left_alone_for_as_long_as_it_asks() -> None:
    busy = reply(503, b'{"error":{"code":503}}', fields=[("Retry-After", "20")])
    async with fakes("a", "b", "c") as (a, b, c), run_proxy([a, b, c], policy="round_robin") as proxy:
        a.on(CHAT, busy)
        answers = [await proxy.ask() for _ in range(9)]
        assert {answer.status for answer in answers} == {200}
        assert len(a.requests) == 1
        proxy.app.fleet.tick(monotonic())
        assert 5 < proxy.app.fleet.state(0).paused_s <= 20
        assert not proxy.app.fleet.state(0).ejected


async def test_a_full_backend_with_a_long_queue_does_not_empty_the_budget_of_retries() -> None:
    gate = asyncio.Event()
    busy = held(gate, reply(503, b'{"error":{"code":503}}'))
    scarce = {"budget": 0, "burst": 1}
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy="round_robin", retries=scarce) as proxy:
        a.on(CHAT, busy)
        asking = [asyncio.create_task(proxy.ask()) for _ in range(12)]
        await a.arrived(6)
        gate.set()
        assert {(await task).status for task in asking} == {200}
        b.on(CHAT, busy)  # nobody is well: now each costs
        assert [(await proxy.ask()).status for _ in range(4)] == [503] * 4
        assert await retries(proxy, "busy") <= 7
