"""Graceful shutdown of the real process: stop accepting, finish streams up to a limit, exit 0."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.support.fake_backend import Call, fakes
from tests.support.raw_client import CHAT, RawClient, Response, Truncated, chat, request
from tests.support.run_proxy import ServeProcess, serve_process


def halves(gate: asyncio.Event):  # type: ignore[no-untyped-def]
    """A stream whose second half waits for the test."""

    async def script(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        await call.piece(b"data: first\n\n")
        await gate.wait()
        await call.piece(b"data: second\n\n")
        await call.end()

    return script


async def begin(proxy: ServeProcess) -> tuple[RawClient, Response]:
    """A stream whose first half was read."""
    client = await proxy.client()
    client.send(request(chat(stream=True)))
    async with asyncio.timeout(10):
        return client, await client.body(await client.head(), stop_after=1)


async def refuses(proxy: ServeProcess) -> None:
    """Wait until new connections are refused (or closed without a word)."""
    async with asyncio.timeout(10):
        while True:
            try:
                client = await proxy.client()
            except ConnectionRefusedError:
                return
            client.send(request(method="GET", path="/health"))
            try:
                if (await client.response(method="GET")).status == 503:
                    return
            except Truncated:
                pass
            finally:
                client.close()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_streams_are_finished_nothing_new_is_accepted_and_the_exit_code_is_0(
    number: signal.Signals,
) -> None:
    gate = asyncio.Event()
    async with fakes() as fake, serve_process([fake]) as proxy:
        fake.on(CHAT, halves(gate))
        idle = await proxy.client()
        assert (await idle.ask(request(method="GET", path="/health"), method="GET")).status == 200
        client, reply = await begin(proxy)
        proxy.signal(number)
        assert await idle.rest() == b""  # a connection between two requests is closed at once
        await refuses(proxy)
        assert (await proxy.admin("/readyz")).status == 503  # while the streams go on
        assert (await proxy.admin("/healthz")).status == 200
        gate.set()
        assert (await client.body(reply)).body == b"data: first\n\ndata: second\n\n"
        assert await client.rest() == b""  # and its connection is not kept
        assert await proxy.exit_code() == 0
        assert not [line for line in proxy.lines if "Traceback" in line or "ERROR" in line]


async def test_at_the_limit_streams_are_visibly_cut_and_the_upstream_is_told() -> None:
    gate = asyncio.Event()
    async with fakes() as fake, serve_process([fake], "--set", "timeouts.shutdown_s=0.3") as proxy:
        fake.on(CHAT, halves(gate))
        client, reply = await begin(proxy)
        proxy.signal(signal.SIGTERM)
        with pytest.raises(Truncated):
            await client.body(reply)
        assert await proxy.exit_code() == 0
        await fake.requests[0].gone.wait()


async def test_a_second_signal_cuts_at_once() -> None:
    gate = asyncio.Event()
    async with fakes() as fake, serve_process([fake]) as proxy:
        fake.on(CHAT, halves(gate))
        client, reply = await begin(proxy)
        proxy.signal(signal.SIGTERM)
        await refuses(proxy)
        proxy.signal(signal.SIGINT)
        with pytest.raises(Truncated):
            await client.body(reply)
        await proxy.exit_code()


async def test_an_idle_proxy_exits_at_once() -> None:
    async with fakes() as fake, serve_process([fake], "--set", "timeouts.shutdown_s=600") as proxy:
        assert (await proxy.ask()).status == 200
        proxy.signal(signal.SIGTERM)
        assert await proxy.exit_code(10) == 0


async def test_pipelined_requests_that_were_read_are_answered_before_the_end() -> None:
    gate = asyncio.Event()
    async with fakes() as fake, serve_process([fake]) as proxy:
        fake.on(CHAT, halves(gate))
        client = await proxy.client()
        client.send(request(chat(stream=True)) + request(method="GET", path="/health"))
        async with asyncio.timeout(10):
            reply = await client.body(await client.head(), stop_after=1)
        proxy.signal(signal.SIGTERM)
        await refuses(proxy)
        gate.set()
        assert (await client.body(reply)).body.endswith(b"second\n\n")
        await (
            client.rest()
        )  # the second one was not begun: answered or not, the connection ends in good order
        assert not client.was_reset
        assert await proxy.exit_code() == 0
