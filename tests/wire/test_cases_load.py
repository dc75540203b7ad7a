"""Groups A and B of the field's bug reports, as far as they are about load that is counted, and counted off again.
Each test is named after its case."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.fake_backend import FakeBackend, drop, events, fakes, held, reply, stream
from tests.support.raw_client import CHAT, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

PROMPT = "The same long words, asked about by forty people at once. " * 40
PATHS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/embeddings": {"input": PROMPT},
    "/v1/responses": {"input": PROMPT},
    "/v1/rerank": {"query": "words", "documents": [PROMPT]},
    "/v1/unheard/of": {"prompt": PROMPT},
}


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.002)


def assert_nothing_left(proxy: RunningProxy) -> None:
    """No request, token or waiting place counts any more, and nobody remembers one."""
    fleet = proxy.app.fleet
    loads = fleet.loads
    for one in (loads.in_flight, loads.queued, loads.in_flight_tokens, loads.backlog_tokens):
        assert not any(one)
    assert not any(fleet._books._waiting)


@pytest.mark.parametrize("policy", ["bounded_ring", "sticky"])
async def test_b05_every_path_that_is_proxied_counts_as_load(policy: str) -> None:
    """Forty at once with one prompt are no longer one backend's, whichever way they came in."""
    more = {"policy": policy, "extra_routes": ["POST /v1/unheard/of"]}
    async with fakes(*"abcd") as backends, run_proxy(backends, **more) as proxy:
        for path, body in PATHS.items():
            gate = asyncio.Event()
            for backend in backends:
                backend.requests.clear()
                backend.on("*", held(gate))
                backend.on(CHAT, held(gate))
            asked = [
                asyncio.create_task(proxy.ask(json.dumps({"model": "m", **body}).encode(), path=path))
                for _ in range(40)
            ]
            await until(lambda: sum(proxy.app.fleet.in_flight) == 40)
            assert await proxy.in_flight() == 40
            assert sum(1 for count in proxy.app.fleet.in_flight if count) >= 3, path
            gate.set()
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
            await until(lambda: not any(proxy.app.fleet.in_flight))
        assert_nothing_left(proxy)


async def abandoned(proxy: RunningProxy, backend: FakeBackend, body: bytes, read: bool) -> None:
    """A client that leaves before the head of its answer, or in the middle of it."""
    async with await proxy.client() as client:
        client.send(request(body))
        if read:
            await client.read(20)
        else:
            await until(lambda: any(proxy.app.fleet.in_flight))
        client.reset()


@pytest.mark.parametrize("policy", ["bounded_ring", "sticky"])
async def test_b03_b22_whatever_ends_a_request_gives_back_all_it_was_counted_as(policy: str) -> None:
    """Refused, left before the head, left after a piece, answered 500, reset: thirty of each, many at once."""
    async with (
        fakes(*"abc") as backends,
        run_proxy(backends, policy=policy, health={"eject_after": 1000}) as proxy,
    ):
        gate = asyncio.Event()
        ways = {
            "before the head": held(gate),
            "after a piece": stream(events(2), then="hang"),
            "500": reply(500),
            "reset": drop("reset"),
        }
        for way, script in ways.items():
            for backend in backends:
                backend.on(CHAT, script)
            bodies = [chat(f"{number} {PROMPT}", stream=True, user=f"{number}") for number in range(30)]
            if way in ("500", "reset"):
                answers = await asyncio.gather(*(proxy.ask(body) for body in bodies))
                assert {answer.status for answer in answers} == ({500} if way == "500" else {502})
            else:
                await asyncio.gather(
                    *(abandoned(proxy, backends[0], body, way == "after a piece") for body in bodies)
                )
            await until(lambda: not any(proxy.app.fleet.in_flight))
            assert_nothing_left(proxy)
        for backend in backends:
            await backend.die()
        answers = await asyncio.gather(*(proxy.ask(chat(PROMPT)) for _ in range(30)), return_exceptions=True)
        assert not [answer for answer in answers if isinstance(answer, BaseException)]
        assert_nothing_left(proxy)
        assert await proxy.in_flight() == 0


@pytest.mark.parametrize("policy", ["bounded_ring", "sticky"])
async def test_b26_members_come_and_go_under_traffic_and_nobody_notices(policy: str) -> None:
    """Eight clients at it all the time, while a third backend is added and taken away again and again."""
    async with fakes(*"abc") as (a, b, c), run_proxy([a, b], policy=policy) as proxy:
        fleet = proxy.app.fleet
        over = asyncio.Event()
        statuses: set[int] = set()

        async def at_it(number: int) -> int:
            asked = 0
            async with await proxy.client() as client:
                while not over.is_set():
                    try:
                        answer = await client.ask(
                            request(chat(f"{asked} {PROMPT}", user=f"{number} {asked}"))
                        )
                    except Truncated as cut:
                        raise AssertionError("a good answer was cut") from cut
                    statuses.add(answer.status)
                    asked += 1
            return asked

        clients = [asyncio.create_task(at_it(number)) for number in range(8)]
        for number in range(6):
            members = [a, b, c] if number % 2 else [a, b]
            answer = await proxy.put_config(json.dumps({"policy": policy, "backends": [
                {"name": one.name, "url": one.url} for one in members
            ]}))  # fmt: skip
            assert answer.status == 200, answer.body
            served = len(a.completed) + len(b.completed)
            await until(lambda served=served: len(a.completed) + len(b.completed) > served)
        over.set()
        asked = await asyncio.gather(*clients)
        assert min(asked) > 0
        assert statuses == {200}
        assert c.completed, "it was used while it was there"
        await until(lambda: not any(fleet.in_flight))
        assert_nothing_left(proxy)
