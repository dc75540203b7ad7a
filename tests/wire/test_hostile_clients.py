"""What careful reading found: clients that stall, flood or dawdle at the one moment where it used to matter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.fake_backend import Call, PeerGone, Script, echo, fakes, held
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy
from tests.wire.inside import connection_of, pools_of, small_window, until

KIB = 1024
MIB = KIB * KIB
HEALTH = request(method="GET", path="/health")


def ends_in_a_stall(proxy: RunningProxy) -> Script:
    """A reply that ends in the very read that stalls its client."""

    async def script(call: Call) -> None:
        ours = connection_of(proxy)
        await call.start(200)
        while not ours.queued_bytes():  # the kernel takes it all, until it doesn't
            await call.piece(b"x" * 16 * KIB)
            for _ in range(3):
                await asyncio.sleep(0)
        await call.send(b"%x\r\n%b\r\n0\r\n\r\n" % (128 * KIB, b"x" * 128 * KIB))

    return script


async def test_a_connection_whose_reply_ended_while_its_client_stalled_is_read_by_the_next_request() -> None:
    # A paused transport went back to the pool, and the next request on it was never answered.
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, ends_in_a_stall(proxy), echo)
        slow = await small_window(proxy)
        slow.send(request())
        await until(lambda: pools_of(proxy)[0].idle == 1)
        assert connection_of(proxy)._stalled_s
        assert (await proxy.ask()).status == 200
        assert len(fake.used) == 1
        slow.close()


async def test_no_further_request_is_begun_for_a_client_that_does_not_read() -> None:
    # The second reply began unpaused, and all of it was kept in memory.
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, ends_in_a_stall(proxy), echo)
        client = await small_window(proxy)
        client.send(request() + request())
        await until(lambda: pools_of(proxy)[0].idle == 1)
        for _ in range(20):
            await proxy.ask(method="GET", path="/health")
        assert len(fake.requests) == 1
        client.read_again()
        assert (await client.response()).body.strip(b"x") == b""
        assert (await client.response()).backend == "a"
        client.close()


async def test_local_replies_to_a_client_that_does_not_read_are_bounded() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        client = await small_window(proxy)
        count = 60_000
        client.send(HEALTH * count)
        await until(lambda: proxy.app._server and proxy.app._server.connections)
        ours = connection_of(proxy)
        await until(lambda: ours._stalled_s)
        for _ in range(100):
            await proxy.ask(method="GET", path="/health")
        assert ours.queued_bytes() < MIB
        client.read_again()
        for _ in range(200):
            assert (await client.response(method="GET")).status == 200
        client.close()


@pytest.mark.parametrize(
    "end", [b"0\r\nX-Trailer: " + b"x" * 90_000, b"1;" + b"x" * 90_000], ids=["trailer", "extension"]
)
async def test_what_a_chunked_body_carries_besides_its_bytes_is_bounded(end: bytes) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        client.send(request(chunks=[chat()])[:-5])
        client.send(end)
        await until(lambda: proxy.app._server and proxy.app._server.connections)
        for _ in range(20):  # in several reads
            client.send(b"x" * 65_536)
            await asyncio.sleep(0)
        assert (await client.response()).status == 431
        assert fake.requests == []


async def test_a_body_of_tiny_chunks_is_kept_in_few_pieces() -> None:
    # Each byte was an object of its own: a body under the cap could take twenty times its size.
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        body = chat("x" * 400_000)
        wire = request(chunks=[body[i : i + 2] for i in range(0, len(body), 2)])
        client.send(wire[:-5])
        await until(lambda: proxy.app._server and proxy.app._server.connections)
        reader = connection_of(proxy)._reader
        await until(lambda: reader._body_bytes == len(body))
        assert len(reader._pieces) < 5000
        client.send(wire[-5:])
        assert (await client.response()).status == 200
        assert fake.requests[0].body == body


async def test_the_beginning_of_a_request_behind_a_long_one_is_no_long_head() -> None:
    # All bytes of the read were counted as head: 431 for a request of a few hundred.
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        first, second = request(chat("x" * 100_000)), request(chat("second"))
        client.send(first + second[:30])
        assert (await client.response()).status == 200
        assert (await client.ask(second[30:])).status == 200
        assert [len(call.body) > 100_000 for call in fake.requests] == [True, False]


async def test_an_empty_line_between_requests_begins_none() -> None:
    # RFC 9112 2.2. It was taken for the start of a head, answered 408, and held up a graceful stop.
    timeouts = {"client_head_s": 0.05, "client_idle_s": 600}
    async with (
        fakes() as fake,
        run_proxy([fake], timeouts=timeouts) as proxy,
        await proxy.client() as client,
    ):
        assert (await client.ask(request())).status == 200
        client.send(b"\r\n")
        await asyncio.sleep(0.2)  # four times the limit
        assert client.nothing_left
        assert not client.ended.is_set()
        assert (await client.ask(request())).status == 200


async def test_the_wait_for_an_earlier_reply_is_not_the_client_s_slowness() -> None:
    # A client that waited for our `100 Continue` behind a slow reply got a 408 with it.
    gate = asyncio.Event()
    body = chat("late")
    async with (
        fakes() as fake,
        run_proxy([fake], timeouts={"client_body_s": 0.3}) as proxy,
        await proxy.client() as client,
    ):
        fake.on(CHAT, held(gate), echo)
        second = request(body, headers={"Expect": "100-continue"})
        client.send(request() + second[: -len(body)])
        await fake.arrived()
        await asyncio.sleep(0.6)  # twice the limit
        gate.set()
        assert (await client.response()).status == 200
        await asyncio.sleep(0.15)  # a few ticks, and half the limit
        client.send(body)
        answer = await client.response()
        assert [r.status for r in answer.informational] == [100]
        assert answer.status == 200


async def test_a_client_that_never_takes_the_last_bytes_is_dropped_at_the_limit() -> None:
    # Closing waited for ever for what is under the transport's high-water mark.
    async def leave_little(call: Call) -> None:
        await call.start(200, framing="length", length=64 * MIB)
        sent = 0
        while sent < 32 * MIB:  # until something stays in the proxy's transport, then just the rest
            await call.send(b"x" * 4096)
            sent += 4096
            await asyncio.sleep(0)
            if connections[0].queued_bytes():
                break
        call.fake.sent_bytes = -sent
        call.fake.changed()
        await call.gone.wait()
        raise PeerGone

    connections: list[Any] = []
    limits = {"client_write_s": 0.3, "stream_idle_s": 600}
    async with fakes() as fake, run_proxy([fake], timeouts=limits) as proxy:
        fake.on(CHAT, leave_little)
        client = await small_window(proxy)
        await until(lambda: proxy.app._server and proxy.app._server.connections)
        connections.append(connection_of(proxy))
        client.send(request(headers={"Connection": "close"}))
        await fake.until(lambda: fake.sent_bytes < 0)
        for connection in fake.open:
            if connection.call in fake.requests:
                connection.transport.close()  # the reply falls short: the client's connection is to be closed
        assert connections[0].queued_bytes() < 65_536
        await until(lambda: not proxy.app._server.connections)
        client.close()


async def test_a_prompt_is_not_kept_while_its_reply_streams() -> None:
    gate = asyncio.Event()

    async def begin_then_wait(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        await call.piece(b"data: 1\n\n")
        await gate.wait()
        await call.end()

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, begin_then_wait)
        client.send(request(chat("x" * 300_000, stream=True)))
        head = await client.head()
        relay = connection_of(proxy).relay
        assert relay is not None
        assert len(relay.request.body) == 0
        gate.set()
        assert (await client.body(head)).body == b"data: 1\n\n"
