"""Responses and sessions live in one engine: who comes back to one reaches that engine, as long as it is there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fake_backend import Call, FakeBackend, PeerGone, fakes, finish, reply
from tests.support.raw_client import Response
from tests.support.run_proxy import RunningProxy, run_proxy

RESPONSES = "/v1/responses"
NAMES = ("a", "b", "c")


class Engines:
    """Three engines that keep the responses they made, as vLLM does with its store on."""

    def __init__(self, proxy: RunningProxy, backends: list[FakeBackend]) -> None:
        self.proxy = proxy
        self.backends = {fake.name: fake for fake in backends}
        self.kept: dict[str, str] = {}
        for fake in backends:
            fake.on(RESPONSES, self._make)
            fake.on("*", self._keep)

    async def _make(self, call: Call) -> None:
        asked = call.json
        before = asked.get("previous_response_id")
        if before is not None and self.kept.get(before) != call.fake.name:
            await self._lacks(call)
            return
        name = f"resp_{len(self.kept)}"
        self.kept[name] = call.fake.name
        told = {"id": name, "object": "response", "output": [{"id": "msg_1"}], "previous_response_id": before}
        if not asked.get("stream"):
            await reply(200, json.dumps(told).encode())(call)
            return
        await call.start(200, [("Content-Type", "text/event-stream")])
        created = b"event: response.created\ndata: " + json.dumps({"response": told}).encode() + b"\n\n"
        for i in range(0, len(created), 9):  # cut anywhere
            await call.piece(created[i : i + 9])
        await call.piece(
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'
        )
        await call.end()

    async def _keep(self, call: Call) -> None:
        name = call.path.split("/")[3]
        if self.kept.get(name) != call.fake.name:
            await self._lacks(call)
        else:
            await reply(200, json.dumps({"id": name, "backend": call.fake.name}).encode())(call)

    @staticmethod
    async def _lacks(call: Call) -> None:
        await reply(404, b'{"error": {"message": "Response with id is not found.", "code": 404}}')(call)

    async def make(self, **more: Any) -> tuple[str, str]:
        """A new response: its id, and who made it."""
        made = len(self.kept)
        body = {"model": "m", "input": "hello", **more}
        answer = await self.proxy.ask(json.dumps(body).encode(), path=RESPONSES)
        assert answer.status == 200, answer.body
        name = f"resp_{made}"
        return name, self.kept[name]

    async def get(self, name: str, tail: str = "", method: str = "GET") -> Response:
        return await self.proxy.ask(
            b"" if method == "POST" else None, method=method, path=f"{RESPONSES}/{name}{tail}"
        )

    def asked(self) -> list[str]:
        """Who got a request since the last look, in no order."""
        got = [name for name, fake in self.backends.items() for _ in fake.requests]
        for fake in self.backends.values():
            fake.requests.clear()
        return got


@asynccontextmanager
async def engines(**settings: Any) -> AsyncIterator[Engines]:
    """Requests go round: what finds its engine does so by its id."""
    async with (
        fakes(*NAMES) as backends,
        run_proxy(backends, policy="round_robin", response_headers=True, **settings) as proxy,
    ):
        yield Engines(proxy, backends)
        await proxy.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_asked_for_where_it_was_made(stream: bool) -> None:
    async with engines() as fleet:
        made = [await fleet.make(stream=stream) for _ in range(6)]
        assert {keeper for _, keeper in made} == set(NAMES)
        fleet.asked()
        for name, keeper in made:
            for answer in (
                await fleet.get(name),
                await fleet.get(name, "?stream=true"),
                await fleet.get(name, "/cancel", "POST"),
            ):
                assert (answer.status, answer.backend) == (200, keeper)
                assert answer.get("x-stickyroute-reason") == "pinned"
            assert fleet.asked() == [keeper] * 3


async def test_a_response_goes_on_from_another_where_that_was_made() -> None:
    async with engines() as fleet:
        first, keeper = await fleet.make()
        for _ in range(3):
            await fleet.make()
        fleet.asked()
        second, again = await fleet.make(previous_response_id=first)
        third, still = await fleet.make(previous_response_id=second, stream=True)
        assert (again, still) == (keeper, keeper)
        assert (await fleet.get(third)).backend == keeper
        assert fleet.asked() == [keeper] * 3


async def test_a_response_that_another_replica_saw_is_looked_for_and_then_remembered() -> None:
    async with engines(retries={"max": 0}) as fleet:
        fleet.kept = {"resp_x": "c", "resp_y": "c", "resp_z": "c"}
        for name, keeper in fleet.kept.items():
            assert (await fleet.get(name)).backend == keeper
        looks = len(fleet.asked())
        assert looks > len(fleet.kept)
        for name, keeper in fleet.kept.items():
            answer = await fleet.get(name)
            assert (answer.backend, answer.get("x-stickyroute-reason")) == (keeper, "pinned")
            assert fleet.asked() == [keeper]
        samples = await fleet.proxy.metrics()
        assert samples.sum("stickyroute_retries_total", kind="not_here") == looks - len(fleet.kept)


async def test_a_response_that_nobody_has_is_asked_for_once_of_each_and_the_answer_is_the_engine_s() -> None:
    async with engines() as fleet:
        for _ in range(2):
            answer = await fleet.get("resp_none")
            assert (answer.status, answer.json["error"]["code"]) == (404, 404)
            assert sorted(fleet.asked()) == list(NAMES)
        body = json.dumps({"model": "m", "input": "x", "previous_response_id": "resp_none"}).encode()
        assert (await fleet.proxy.ask(body, path=RESPONSES)).status == 404
        assert sorted(fleet.asked()) == list(NAMES)


async def test_an_engine_that_lost_its_responses_is_not_asked_first_again() -> None:
    async with engines() as fleet:
        name, keeper = await fleet.make()
        fleet.kept[name] = next(other for other in NAMES if other != keeper)
        assert (await fleet.get(name)).backend == fleet.kept[name]
        fleet.asked()
        assert (await fleet.get(name)).backend == fleet.kept[name]
        assert fleet.asked() == [fleet.kept[name]]


async def test_while_its_engine_is_away_a_response_is_not_said_to_be_gone() -> None:
    async with engines() as fleet:
        name, keeper = await fleet.make()
        fleet.asked()
        await fleet.backends[keeper].die()
        for _ in range(2):  # found out by the first one, known to the second
            answer = await fleet.get(name)
            assert answer.status == 503
            assert int(answer.get("retry-after") or 0) >= 1
        assert fleet.asked() == []
        await fleet.backends[keeper].listen()
        await fleet.proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == len(NAMES))
        assert (await fleet.get(name)).backend == keeper


async def test_a_busy_engine_is_believed_since_no_other_has_the_response() -> None:
    async with engines() as fleet:
        name, keeper = await fleet.make()
        fleet.asked()
        fleet.backends[keeper].on("*", reply(503, b"busy", fields=[("Retry-After", "7")]))
        answer = await fleet.get(name)
        assert (answer.status, answer.body, answer.get("retry-after")) == (503, b"busy", "7")
        assert fleet.asked() == [keeper]


async def test_a_keeper_that_drops_the_connection_is_a_failure_and_nobody_else_is_asked() -> None:
    async def cut(call: Call) -> None:
        await finish(call, "close")
        raise PeerGone

    async with engines() as fleet:
        name, keeper = await fleet.make()
        fleet.asked()
        fleet.backends[keeper].on("*", cut)
        assert (await fleet.get(name)).status == 502
        assert set(fleet.asked()) == {keeper}


async def test_a_session_goes_on_where_it_was_opened() -> None:
    async def opened(call: Call) -> None:
        await reply(200, json.dumps(f"session-of-{call.fake.name}").encode())(call)

    async with engines() as fleet:
        for fake in fleet.backends.values():
            fake.on("/open_session", opened)
            fake.on("/generate", reply())
            fake.on("/close_session", reply())
        sessions = [
            (await fleet.proxy.ask(b'{"capacity_of_str_len": 1000}', path="/open_session")).json
            for _ in NAMES
        ]
        assert sorted(sessions) == [f"session-of-{name}" for name in NAMES]
        fleet.asked()
        for session in sessions:
            body = json.dumps({"text": "x", "session_params": {"id": session}}).encode()
            for _ in range(2):
                assert (await fleet.proxy.ask(body, path="/generate")).status == 200
            await fleet.proxy.ask(json.dumps({"session_id": session}).encode(), path="/close_session")
            assert fleet.asked() == [session[-1]] * 3


async def test_a_model_that_the_keeper_does_not_serve_is_asked_of_one_that_does() -> None:
    async with (
        fakes("a", models=["m"]) as a,
        fakes("b", models=["n"]) as b,
        run_proxy([a, b], policy="round_robin") as proxy,
    ):
        for fake in (a, b):
            fake.on(RESPONSES, reply(200, b'{"id":"resp_%b"}' % fake.name.encode()))
        assert (await proxy.ask(b'{"model": "m", "input": "x"}', path=RESPONSES)).json["id"] == "resp_a"
        body = b'{"model": "n", "input": "x", "previous_response_id": "resp_a"}'
        assert (await proxy.ask(body, path=RESPONSES)).json["id"] == "resp_b"
