"""Requests that wait while nobody can take them: bounded in number and time, and a client that leaves is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.fake_backend import FakeBackend, fakes
from tests.support.fake_backend import held as held_back
from tests.support.raw_client import request
from tests.support.run_proxy import RunningProxy, run_proxy

OFTEN = {"interval_s": 0.02}


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.002)


def held(proxy: RunningProxy) -> int:
    assert proxy.app._proxy is not None
    return len(proxy.app._proxy.hold)


async def gone(fake: FakeBackend, proxy: RunningProxy) -> None:
    await fake.die()
    await until(lambda: not proxy.app.fleet.available[0])


async def test_requests_wait_for_a_backend_that_comes_back_in_their_order() -> None:
    async with fakes() as fake, run_proxy([fake], probe=OFTEN, hold={"requests": 10, "wait_s": 30}) as proxy:
        await gone(fake, proxy)
        asking = []
        for user in range(3):
            asking.append(asyncio.create_task(proxy.ask(headers={"x-session-id": f"{user}"})))
            await until(lambda: held(proxy) == len(asking))
        await fake.listen()
        assert [(await task).status for task in asking] == [200] * 3
        assert [call.get("x-session-id") for call in fake.requests] == ["0", "1", "2"]
        assert held(proxy) == 0
        await proxy.settled()


async def test_who_is_one_too_many_is_refused_at_once_and_the_others_in_time() -> None:
    async with fakes() as fake, run_proxy([fake], probe=OFTEN, hold={"requests": 2, "wait_s": 0.3}) as proxy:
        await gone(fake, proxy)
        waiting = [asyncio.create_task(proxy.ask()) for _ in range(2)]
        await until(lambda: held(proxy) == 2)
        one_more = await proxy.ask()
        assert not any(task.done() for task in waiting)
        for answer in (one_more, *[await task for task in waiting]):
            assert answer.status == 503
            assert int(answer.get("retry-after")) >= 1
            assert answer.json["error"]["code"] == "no_backend_available"
        assert held(proxy) == 0


async def test_a_client_that_leaves_makes_room() -> None:
    async with fakes() as fake, run_proxy([fake], probe=OFTEN, hold={"requests": 1, "wait_s": 30}) as proxy:
        await gone(fake, proxy)
        async with await proxy.client() as client:
            client.send(request())
            await until(lambda: held(proxy) == 1)
        await until(lambda: held(proxy) == 0)
        waiting = asyncio.create_task(proxy.ask())
        await until(lambda: held(proxy) == 1)
        await fake.listen()
        assert (await waiting).status == 200
        assert len(fake.requests) == 1


async def test_a_request_waits_where_everybody_is_full() -> None:
    gate = asyncio.Event()
    async with fakes() as fake:
        entry = fake.settings() | {"max_in_flight": 1}
        async with run_proxy([entry], probe=OFTEN, hold={"requests": 5, "wait_s": 30}) as proxy:
            fake.on("/v1/chat/completions", held_back(gate))
            asking = [asyncio.create_task(proxy.ask()) for _ in range(3)]
            await until(lambda: held(proxy) == 2)
            gate.set()
            assert [(await task).status for task in asking] == [200] * 3


async def test_a_proxy_that_stops_answers_who_waits() -> None:
    async with fakes() as fake, run_proxy([fake], probe=OFTEN, hold={"requests": 1, "wait_s": 300}) as proxy:
        await gone(fake, proxy)
        waiting = asyncio.create_task(proxy.ask())
        await until(lambda: held(proxy) == 1)
        assert await proxy.app.stop(30.0) == 0
        assert (await waiting).status == 503
