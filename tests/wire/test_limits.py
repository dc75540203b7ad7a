"""No hidden cap on concurrency, and the explicit ones: 503 with Retry-After, never a queue."""

from __future__ import annotations

import asyncio

from tests.support.fake_backend import Call, echo, events, fakes, held, stream
from tests.support.raw_client import CHAT, Response, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy


async def hold(proxy: RunningProxy, count: int, **headers: str) -> list[asyncio.Task[Response]]:
    """Begin so many requests."""
    return [asyncio.create_task(proxy.ask(headers=headers)) for _ in range(count)]


async def test_no_hidden_cap_on_concurrent_streams() -> None:
    gate = asyncio.Event()

    async def begin_then_wait(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        await call.piece(b"data: 1\n\n")
        await gate.wait()
        await call.end()

    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, begin_then_wait)
        asked = [asyncio.create_task(proxy.ask(chat(f"{i}", stream=True))) for i in range(300)]
        async with asyncio.timeout(20):
            while len(a.requests) + len(b.requests) < 300:
                await asyncio.sleep(0.01)
        assert await proxy.in_flight() == 300
        gate.set()
        assert [(await task).body for task in asked] == [b"data: 1\n\n"] * 300
        await proxy.settled()


async def test_past_the_cap_of_the_whole_proxy_the_answer_is_503_with_retry_after() -> None:
    gate = asyncio.Event()
    async with fakes() as fake, run_proxy([fake], limits={"max_in_flight": 3}) as proxy:
        fake.on(CHAT, held(gate))
        running = await hold(proxy, 3)
        await fake.arrived(3)
        async with await proxy.client() as client:
            for _ in range(2):  # the connection stays usable
                refused = await client.ask(request())
                assert refused.status == 503
                assert int(refused.get("retry-after") or 0) >= 1
                assert refused.json["error"]["type"]
            assert (await client.ask(request(method="GET", path="/health"), method="GET")).status == 200
            gate.set()
            assert [(await task).status for task in running] == [200] * 3
            assert (await client.ask(request())).status == 200
        assert len(fake.requests) == 4


async def test_past_the_cap_of_one_backend_another_takes_the_request() -> None:
    gate = asyncio.Event()
    async with fakes("a", "b") as (a, b):
        backends = [a.settings(max_in_flight=2), b.settings(max_in_flight=1)]
        async with run_proxy(backends, policy="ring") as proxy:
            for fake in (a, b):
                fake.on(CHAT, held(gate))
            running = await hold(proxy, 3, **{"x-session-id": "s"})
            await a.arrived(2)
            await b.arrived(1)
            refused = await proxy.ask(headers={"x-session-id": "s"})
            assert refused.status == 503
            assert int(refused.get("retry-after") or 0) >= 1
            gate.set()
            assert [(await task).status for task in running] == [200] * 3
            assert (await proxy.ask()).status == 200


async def test_past_the_cap_of_connections_new_ones_are_told_so_and_closed() -> None:
    async with fakes() as fake, run_proxy([fake], limits={"max_connections": 2}) as proxy:
        one, two = await proxy.client(), await proxy.client()
        assert (await one.ask(request())).status == (await two.ask(request())).status == 200
        async with await proxy.client() as three:
            three.send(request())
            try:
                refused = await three.response()
                assert refused.status == 503
                assert refused.closes
            except Truncated as cut:
                assert cut.raw == b""
            await three.rest()
        one.close()
        two.close()
        async with asyncio.timeout(5):
            while True:
                try:
                    if (await proxy.ask()).status == 200:
                        break
                except Truncated:
                    pass
                await asyncio.sleep(0.01)
        assert len(fake.requests) == 3


async def test_in_flight_counts_every_kind_of_route() -> None:
    paths = [
        CHAT,
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/rerank",
        "/tokenize",
        "/odd",
    ]
    async with fakes("a", "b", "c", "d") as four, run_proxy(four, extra_routes=["POST /odd"]) as proxy:
        for path in paths:
            gate = asyncio.Event()
            for fake in four:
                fake.requests.clear()
                fake.on(path, held(gate))
            body = chat("same", prompt="same", input="same", max_tokens=1)
            running = [asyncio.create_task(proxy.ask(body, path=path)) for _ in range(16)]
            async with asyncio.timeout(10):
                while sum(len(fake.requests) for fake in four) < 16:
                    await asyncio.sleep(0.005)
            assert await proxy.in_flight() == 16, path
            assert sum(bool(fake.requests) for fake in four) >= 3, path
            gate.set()
            assert {(await task).status for task in running} == {200}
            await proxy.settled()


async def test_a_busy_load_leaves_no_trace() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        a.on(CHAT, stream(events(3)))
        b.on(CHAT, echo)
        for _ in range(3):
            replies = await asyncio.gather(*(proxy.ask(chat(f"{i}")) for i in range(60)))
            assert {reply.status for reply in replies} == {200}
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_backend_in_flight") == 0
        assert samples.sum("stickyroute_requests_total", status="2xx") == 180
