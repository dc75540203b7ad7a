"""Group C of the field's bug reports: streaming and transport. Each test is named after its case."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import zlib

import pytest

from tests.support.fake_backend import (
    DONE,
    EVENT,
    Call,
    PeerGone,
    drop,
    echo,
    events,
    fakes,
    finish,
    silent,
    stream,
)  # fmt: skip
from tests.support.raw_client import CHAT, Truncated, chat, request
from tests.support.run_proxy import run_proxy

MIB = 1 << 20
ASK = chat(stream=True)


async def test_b27_events_arrive_one_by_one_as_they_are_made() -> None:
    """Every event is its own read at the client, although the backend never waits for the client."""
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream(events(19), gap_s=0.02))
        reply = await proxy.ask(ASK)
        assert [piece for _, piece in reply.pieces] == events(19)
        assert len({at for at, _ in reply.pieces}) >= 17


async def test_b28_the_upstream_closes_when_the_streaming_client_leaves_fifty_times() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream(events(3), then="hang"))
        for i in range(50):
            client = await proxy.client()
            client.send(request(ASK))
            async with asyncio.timeout(5):
                await client.body(await client.head(), stop_after=3)
                client.close()
                await fake.requests[i].gone.wait()
        await proxy.settled()
        assert (await proxy.metrics()).sum("stickyroute_client_disconnects_total") == 50


async def test_b30_cancelling_a_request_that_does_not_stream_reaches_the_engine() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, silent())
        client = await proxy.client()
        client.send(request(chat(stream=False)))
        call = await fake.arrived()
        client.close()
        async with asyncio.timeout(10):
            await call.gone.wait()
        await proxy.settled()


@pytest.mark.parametrize(("size", "newline"), [(1, True), (8, True), (8, False)])
async def test_b31_one_event_of_megabytes_passes_unharmed(size: int, newline: bool) -> None:
    event = b"data: " + os.urandom(size * MIB // 2).hex().encode() + (b"\n\n" if newline else b"")
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream([event]))
        reply = await proxy.ask(ASK)
        assert hashlib.sha256(reply.body).digest() == hashlib.sha256(event).digest()


async def test_b32_the_death_of_an_upstream_is_never_a_clean_end() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream(events(3)[:3], then="reset"))
        with pytest.raises(Truncated) as cut:
            await proxy.ask(ASK)
        assert cut.value.response is not None
        assert cut.value.response.body == b"".join(events(3)[:3])
        assert DONE not in cut.value.response.body + cut.value.raw
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_upstream_failures_total") == 1


async def test_b34_no_failover_after_the_first_byte() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, stream([EVENT % 0, EVENT % 1], then="reset"), stream([b"marker"]))
        with pytest.raises(Truncated) as cut:
            await proxy.ask(ASK)
        assert cut.value.response is not None
        assert b"marker" not in cut.value.response.body + cut.value.raw
        assert len(a.requests) + len(b.requests) == 1


async def test_b35_no_total_timeout_cuts_a_long_generation() -> None:
    """Limits scaled by 1/50: the 15 s for a head are 0.3 s here, and the stream takes five times that."""
    fiftieth = {
        "client_head_s": 0.3,
        "client_body_s": 0.6,
        "client_idle_s": 1.5,
        "connect_s": 0.04,
        "upstream_idle_s": 0.08,
    }
    async with fakes() as fake, run_proxy([fake], timeouts=fiftieth) as proxy:
        fake.on(CHAT, stream([EVENT % i for i in range(15)], first_s=0.8, gap_s=0.05))
        assert len((await proxy.ask(ASK)).pieces) == 15


async def test_b37_a_pooled_socket_that_the_engine_is_closing_loses_and_doubles_nothing() -> None:
    """The backend closes idle sockets at the very moment the next request comes, over and over."""
    async with fakes(idle_close_s=0.02) as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        for i in range(100):
            answer = await client.ask(request())
            assert answer.status == 200
            if i % 2:
                await asyncio.sleep(0.019 + 0.002 * (i % 10) / 10)
        ids = [call.request_id for call in fake.completed if call.method == "POST"]
        assert len(ids) == len(set(ids)) == 100
        assert len({call.connection for call in fake.requests}) > 10  # sockets were closed between requests


async def test_b37_a_reused_socket_that_yields_no_byte_is_replaced_every_time() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:

        async def stale(call: Call) -> None:
            await (echo if call.connection.served == 0 else drop())(call)

        fake.on(CHAT, stale)
        for _ in range(50):
            assert (await client.ask(request())).status == 200
        assert len([call for call in fake.completed if call.method == "POST"]) == 50


async def test_b39_no_cap_on_what_a_stream_carries() -> None:
    piece = bytes(range(256)) * 256
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, stream([piece] * 960))
        client.send(request(ASK))
        total, digest = 0, hashlib.sha256()
        async with asyncio.timeout(20):
            reply = await client.head()
            while total < 60 * MIB:
                before = len(reply.pieces)
                await client.body(reply, stop_after=before + 16)
                for _, data in reply.pieces:
                    total += len(data)
                    digest.update(data)
                reply.pieces.clear()
                if len(reply.pieces) == before and client.ended.is_set():
                    break
        assert total == 60 * MIB
        assert digest.digest() == hashlib.sha256(piece * 960).digest()


async def test_b41_proxies_in_front_are_told_not_to_buffer_streams() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, stream(events(1)))
        reply = await proxy.ask(ASK)
        assert (reply.get("x-accel-buffering"), reply.get("cache-control")) == ("no", "no-cache")
        fake.on(CHAT, echo)
        reply = await proxy.ask()
        assert (reply.get("x-accel-buffering"), reply.get("cache-control")) == (None, None)
        kept = [
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("Cache-Control", "no-store"),
            ("X-Accel-Buffering", "yes"),
        ]
        fake.on(CHAT, stream(events(1), fields=kept))
        reply = await proxy.ask(ASK)
        assert (reply.get("x-accel-buffering"), reply.get("cache-control")) == ("yes", "no-store")


async def test_b44_a_compressed_stream_keeps_its_events_apart() -> None:
    """Compressed per event and flushed; the client can inflate each event before the next is made."""
    read = asyncio.Event()

    async def compressed(call: Call) -> None:
        packer = zlib.compressobj(wbits=31)
        await call.start(200, [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")])
        for event in events(5):
            await call.piece(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))
            await read.wait()
            read.clear()
        await call.piece(packer.flush())
        await call.end()

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, compressed)
        client.send(request(ASK, headers={"Accept-Encoding": "gzip"}))
        unpacker = zlib.decompressobj(wbits=31)
        async with asyncio.timeout(10):
            reply = await client.head()
            assert reply.get("content-encoding") == "gzip"
            for i, event in enumerate(events(5)):
                await client.body(reply, stop_after=i + 1)
                assert unpacker.decompress(reply.pieces[i][1]) == event
                read.set()
            await client.body(reply)
        assert gzip.decompress(reply.body) == b"".join(events(5))


async def only_a_head(call: Call) -> None:
    await call.start(200, [("Content-Type", "text/event-stream")])
    await finish(call, "close")


async def test_a_stream_that_hangs_up_right_after_its_head_is_tried_elsewhere() -> None:
    """Engines send the head of a stream before any work; nothing of it had gone to the client."""
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy="round_robin") as proxy:
        a.on(CHAT, only_a_head)
        for _ in range(4):
            reply = await proxy.ask(ASK)
            assert (reply.status, reply.backend) == (200, "b")
        assert len(a.requests) >= 1
        assert (await proxy.metrics()).sum("stickyroute_retries_total", kind="head_only") == len(a.requests)
        b.on(CHAT, only_a_head)
        assert (await proxy.ask(ASK)).status == 502


async def test_ten_events_in_one_write_arrive_together_and_in_order() -> None:
    async def coalesced(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        await call.send(b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events(63)) + b"0\r\n\r\n")

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, coalesced)
        for _ in range(2):
            assert (await client.ask(request(ASK))).body == b"".join(events(63))


async def test_a_client_that_leaves_between_two_attempts_ends_both() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy="round_robin") as proxy:
        client = await proxy.client()

        async def drop_late(call: Call) -> None:
            client.close()
            call.close()
            raise PeerGone

        for fake in (a, b):
            fake.on(CHAT, drop_late)
        client.send(request())
        await proxy.until_metrics(lambda s: s.sum("stickyroute_client_disconnects_total") == 1)
        await proxy.settled()
