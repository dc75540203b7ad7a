"""What the data plane owes to streams: nothing held back, backpressure, and every way a stream can end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import pytest

from tests.support.fake_backend import DONE, EVENT, Call, PeerGone, events, fakes, finish, raw, silent, stream
from tests.support.raw_client import CHAT, RawClient, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

MIB = 1 << 20
ASK = chat(stream=True)


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_each_piece_is_forwarded_before_the_next_exists(framing: str) -> None:
    """The backend writes an event only after the client has read the one before: all else is a deadlock."""
    read = asyncio.Event()

    async def lock_step(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")], framing=framing)
        for i in range(20):
            await call.piece(EVENT % i)
            await read.wait()
            read.clear()
        await call.end(framing)

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, lock_step)
        client.send(request(ASK))
        async with asyncio.timeout(10):
            reply = await client.head()
            for i in range(20):
                await client.body(reply, stop_after=i + 1)
                assert reply.pieces[i][1] == EVENT % i
                read.set()
            await client.body(reply)
        assert len(reply.pieces) == 20


async def _flood(call: Call) -> None:
    """Write for ever, as fast as the peer takes it."""
    await call.start(200)
    while True:
        await call.piece(b"x" * 65_536)


async def _stands_still(count: Callable[[], int]) -> int:
    """Wait until a number no longer changes; returns it."""
    before = -1
    while before != (now := count()):
        before = now
        await asyncio.sleep(0.15)
    return now


async def test_a_slow_reader_stalls_its_own_upstream_and_memory_stays_bounded() -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, _flood)
        client = await proxy.client(rcvbuf=65_536)
        client.stop_reading()
        client.send(request(ASK))
        await fake.arrived()
        taken = await _stands_still(lambda: fake.sent_bytes)
        assert 0 < taken < 16 * MIB  # what the buffers of two sockets and two transports hold, and no more
        fake.on(CHAT, stream(events(3)))
        other = await proxy.ask(ASK)  # another client of the same backend is not held up
        assert other.body.endswith(DONE)
        client.read_again()
        await fake.until(lambda: fake.sent_bytes > taken + 4 * MIB)
        client.close()
        async with asyncio.timeout(5):
            await fake.requests[0].gone.wait()
        await proxy.settled()


async def test_a_stalled_stream_goes_on_where_it_stopped_with_nothing_lost() -> None:
    piece = bytes(range(256)) * 256
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream([piece] * 200))
        client = await proxy.client(rcvbuf=65_536)
        client.stop_reading()
        client.send(request(ASK))
        await fake.arrived()
        for _ in range(20):  # read a little, stop, read a little
            client.read_again()
            await asyncio.sleep(0)
            client.stop_reading()
        client.read_again()
        reply = await client.response()
        assert hashlib.sha256(reply.body).digest() == hashlib.sha256(piece * 200).digest()
        client.close()


async def test_small_events_fill_a_stalled_client_s_socket_with_nothing_lost_or_doubled() -> None:
    """One event a read on the way in; somewhere in the middle the socket takes only a part of one."""
    count = 5000  # more than all buffers on the way can hold
    parts = [b"data: %06d %b\n\n" % (i, b"x" * 3900) for i in range(count)]

    async def one_by_one(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        for part in parts:
            await call.piece(part)
            await asyncio.sleep(0)
        await call.end()

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, one_by_one)
        client = await proxy.client(rcvbuf=65_536)
        client.stop_reading()
        client.send(request(ASK))
        await fake.arrived()
        assert await _stands_still(lambda: fake.sent_bytes) < count * 3900
        client.read_again()
        assert (await client.response()).body == b"".join(parts)
        client.close()


async def test_a_client_that_pipelines_without_end_is_not_read_without_end() -> None:
    async with (
        fakes() as fake,
        run_proxy([fake], limits={"pipelined": 4}) as proxy,
        await proxy.client() as client,
    ):
        fake.on(CHAT, silent())
        one = request(chat("x" * 16_000))
        for _ in range(2500):
            client.send(one)
        await fake.arrived()
        left = await _stands_still(client.transport.get_write_buffer_size)
        assert left > 10 * MIB


async def test_a_backend_that_does_not_read_holds_up_nobody_else() -> None:
    async with fakes("a", "b") as (a, b):
        backends = [a.settings(models=["m"]), b.settings(models=["n"])]
        async with run_proxy(backends) as proxy:
            b.refuse_reading = True
            big = [await proxy.client() for _ in range(3)]
            for client in big:
                client.send(request(chat("x" * 8 * MIB, model="n")))
            await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_in_flight", backend="b") == 3)
            for _ in range(5):
                assert (await proxy.ask()).backend == "a"
            assert b.requests == []
            assert await proxy.in_flight() == 3
            for client in big:
                client.close()
            await proxy.settled()


async def _leave(client: RawClient, how: str) -> None:
    if how == "reset":
        client.reset()
    elif how == "half":
        client.transport.write_eof()
    else:
        client.transport.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_before_the_first_byte_closes_its_upstream_at_once(
    how: str, streams: bool
) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, silent())
        client = await proxy.client()
        client.send(request(chat(stream=streams)))
        call = await fake.arrived()
        assert await proxy.in_flight() == 1
        await _leave(client, how)
        async with asyncio.timeout(10):
            await call.gone.wait()
        samples = await proxy.until_metrics(lambda s: s.sum("stickyroute_client_disconnects_total") == 1)
        assert samples.sum("stickyroute_backend_in_flight") == 0
        client.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_a_client_that_leaves_after_the_first_byte_closes_its_upstream_at_once(how: str) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream(events(3), then="hang"))
        client = await proxy.client()
        client.send(request(ASK))
        async with asyncio.timeout(5):
            await client.body(await client.head(), stop_after=3)
        await _leave(client, how)
        async with asyncio.timeout(10):
            await fake.requests[0].gone.wait()
        samples = await proxy.until_metrics(lambda s: s.sum("stickyroute_client_disconnects_total") == 1)
        assert samples.sum("stickyroute_backend_in_flight") == 0
        client.close()


async def test_a_client_that_leaves_with_requests_waiting_behind_takes_them_along() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, silent())
        client = await proxy.client()
        client.send(request(ASK) * 5)
        call = await fake.arrived()
        client.transport.close()
        async with asyncio.timeout(10):
            await call.gone.wait()
        await proxy.settled()
        assert len(fake.requests) == 1


async def _cut(proxy: RunningProxy, **options: int) -> Truncated:
    """Ask for a stream and expect it to be cut."""
    async with await proxy.client() as client:
        client.send(request(ASK, **options))
        with pytest.raises(Truncated) as cut:
            await client.response(**options)
        return cut.value


@pytest.mark.parametrize("minor", [1, 0])
@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_an_upstream_reset_mid_stream_is_a_visible_failure(framing: str, minor: int) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, stream(events(2)[:2], framing=framing, then="reset"))
        cut = await _cut(proxy, minor=minor)
        assert cut.response is not None
        assert cut.response.body == EVENT % 0 + EVENT % 1
        assert len(a.requests) + len(b.requests) == 1  # and never a second answer spliced on
        samples = await proxy.until_metrics(lambda s: s.sum("stickyroute_upstream_failures_total") == 1)
        assert samples.sum("stickyroute_retries_total") == 0
        assert samples.sum("stickyroute_backend_in_flight") == 0


@pytest.mark.parametrize("minor", [1, 0])
@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"5\r\nda",
        b"zz\r\n",
        b"-1\r\n",
        b"ffffffffffffffffff\r\n",
        b"4\r\ndata",
        b"4\r\ndataXX",
        b"0\r\n",
    ],
)
async def test_a_chunked_upstream_that_ends_or_lies_mid_stream_is_a_visible_failure(
    tail: bytes, minor: int
) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for fake in (a, b):
            fake.on(CHAT, raw(head + b"5\r\nfirst\r\n" + tail))
        cut = await _cut(proxy, minor=minor)
        assert b"[DONE]" not in cut.raw
        assert len(a.requests) + len(b.requests) == 1
        await proxy.settled()


async def test_the_death_of_one_upstream_leaves_other_streams_alone() -> None:
    gate = asyncio.Event()

    async def two_halves(call: Call) -> None:
        await call.start(200)
        await call.piece(b"first")
        await gate.wait()
        if call.json["messages"][0]["content"] == "dies":
            call.reset()
            raise PeerGone
        await call.piece(b"second")
        await finish(call, "end")

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, two_halves)
        lives, dies = await proxy.client(), await proxy.client()
        lives.send(request(chat("lives")))
        dies.send(request(chat("dies")))
        await fake.arrived(2)
        gate.set()
        assert (await lives.response()).body == b"firstsecond"
        with pytest.raises(Truncated):
            await dies.response()
        lives.close()
        dies.close()
