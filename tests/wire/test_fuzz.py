"""Robustness: whatever bytes arrive from either side, no crash, no hang, and always a valid reply or a close.

Seeded, so that a failure repeats; the message names the seed and the bytes.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.fake_backend import Call, fakes, finish
from tests.support.raw_client import CHAT, BadFraming, RawClient, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

SHORT = {
    "client_head_s": 0.3,
    "client_body_s": 0.3,
    "client_idle_s": 0.3,
    "stream_idle_s": 0.3,
    "response_header_s": 0.3,
    "client_write_s": 1,
}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
REQUESTS = [
    request(),
    request(chat("x" * 300), headers={"Expect": "100-continue", "x-session-id": "s"}),
    request(chunks=[chat()[:20], chat()[20:]]),
    request(method="GET", path="/v1/models") + request() + request(method="GET", path="/health"),
    request(minor=0),
    request(b"a=b", path="/tokenize", headers={"Connection": "close, X-A", "X-A": "1", "TE": "trailers"}),
    request(method="GET", path="/v1/realtime?model=m", headers=UPGRADE) + b"\x81\x05hello",
    request(headers={"Connection": "Upgrade", "Upgrade": "h2c"}),
    (
        b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2;a=b\r\n{}\r\n0\r\nX-T: 1\r\n\r\n"
    ),
]
REPLIES = [
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}',
    (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
    ),
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end",
    b"HTTP/1.0 200 OK\r\n\r\nto the end",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 204 No Content\r\nConnection: keep-alive, X-B\r\nX-B: 1\r\n\r\n",
    b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfree bytes",
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
        b"5;x=y\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"
    ),
]
TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b":",
    b" ",
    b"\t",
    b"0",
    b"-1",
    b"ffffffffffffffff",
    b"\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"HTTP/1.1",
    b"HTTP/9.9",
    b"\xff\xfe",
    b"Connection: close\r\n",
    b"Upgrade: websocket\r\n",
    b"Host: x\r\n",
    b"Expect: 100-continue\r\n",
    b"\x16\x03\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"100",
    b"304",
]


def mutated(seeds: list[bytes], rand: random.Random) -> bytes:
    """A valid message with a few random injuries, or noise."""
    if rand.random() < 0.05:
        return rand.randbytes(rand.randrange(1, 400))
    data = bytearray(rand.choice(seeds))
    for _ in range(rand.randrange(1, 5)):
        at = rand.randrange(len(data) + 1)
        match rand.randrange(6):
            case 0:
                data[at : at + 1] = rand.randbytes(1)
            case 1:
                del data[at : at + rand.randrange(1, 20)]
            case 2:
                data[at:at] = rand.choice(TOKENS)
            case 3:
                del data[at:]
            case 4:
                data[at:at] = data[rand.randrange(len(data) + 1) :][: rand.randrange(1, 60)]
            case _:
                data += rand.choice(seeds)
        if not data:
            return rand.choice(TOKENS)
    return bytes(data)


def in_parts(data: bytes, rand: random.Random) -> list[bytes]:
    """The same bytes in one to five writes."""
    cuts = sorted(rand.randrange(len(data) + 1) for _ in range(rand.choice([0, 0, 1, 4])))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def send_and_judge(proxy: RunningProxy, data: bytes, rand: random.Random) -> None:
    """Send bytes as a client; every reply must be valid and whole, and the connection must end."""
    async with await RawClient.connect(proxy.port) as client:
        for part in in_parts(data, rand):
            client.send(part)
            await asyncio.sleep(0)
        if rand.random() < 0.2:
            return  # a client that does not wait
        while True:
            try:
                reply = await client.response(timeout_s=8)
                if reply.status == 101:
                    return
            except Truncated as cut:
                assert cut.response is None, "a healthy backend's reply was cut"
                assert cut.raw == b"", "half a head"
                return


async def judge_reply(proxy: RunningProxy, data: bytes, rand: random.Random) -> None:
    """Have a backend answer these bytes; the client must see a valid reply or a visible cut."""
    asked = rand.choice([request(), request(minor=0), request(method="GET", path="/v1/responses/r")])
    method, minor = asked[:4].decode().strip(), 0 if b"HTTP/1.0" in asked else 1
    async with await RawClient.connect(proxy.port) as client:
        client.send(asked)
        try:
            reply = await client.response(timeout_s=8, method=method, minor=minor)
            assert reply.status != 101
        except Truncated as cut:
            assert cut.response is not None or cut.raw == b"", f"half a head: {cut.raw!r} for {data!r}"


async def healthy(proxy: RunningProxy) -> None:
    """Nothing is in flight and a normal request works."""
    await proxy.settled()
    assert (await proxy.ask()).status == 200


async def fuzz_clients(seed: int, count: int) -> None:
    async with (
        fakes("a", "b") as (a, b),
        run_proxy([a, b], timeouts=SHORT, limits={"body_bytes": 100_000}) as proxy,
    ):

        async def one(number: int) -> None:
            rand = random.Random(f"{seed}/{number}")
            data = mutated(REQUESTS, rand)
            try:
                await send_and_judge(proxy, data, rand)
            except (AssertionError, TimeoutError) as problem:
                raise AssertionError(f"seed {seed}, case {number}: {data!r}: {problem!r}") from problem

        for start in range(0, count, 100):
            await asyncio.gather(*(one(number) for number in range(start, min(count, start + 100))))
        await healthy(proxy)
        assert not [call for call in a.requests + b.requests if call.path == "/flush_cache"]


async def fuzz_backends(seed: int, count: int) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], timeouts=SHORT) as proxy:
        numbers = iter(range(count * 10))

        async def nonsense(call: Call) -> None:
            rand = random.Random(f"{seed}/backend/{next(numbers)}")
            for part in in_parts(mutated(REPLIES, rand), rand):
                await call.send(part)
                await asyncio.sleep(0)
            await finish(call, rand.choice(["close", "reset", "hang", "close"]))

        for fake in (a, b):
            fake.on("*", nonsense)

        async def one(number: int) -> None:
            rand = random.Random(f"{seed}/{number}")
            try:
                await judge_reply(proxy, b"", rand)
            except (AssertionError, BadFraming, TimeoutError) as problem:
                raise AssertionError(f"seed {seed}, case {number}: {problem!r}") from problem

        for start in range(0, count, 100):
            await asyncio.gather(*(one(number) for number in range(start, min(count, start + 100))))
        for fake in (a, b):
            fake._scripts.clear()
        await healthy(proxy)


async def test_no_bytes_of_a_client_do_harm() -> None:
    await fuzz_clients(seed=1, count=400)


async def test_no_bytes_of_a_backend_do_harm() -> None:
    await fuzz_backends(seed=1, count=400)


def chunked(data: bytes, rand: random.Random) -> bytes:
    """`data` in chunks of every kind a backend may write: tiny, huge, with odd size lines and extensions."""
    wire, at = bytearray(), 0
    while at < len(data):
        size = rand.choice([1, 2, 9, 15, 16, 17, 255, 256, 1023, 1024, 4000, 4086, 4096, 5000, 70_000])
        part = data[at : at + size]
        at += len(part)
        line = b"%x" % len(part)
        match rand.randrange(12):
            case 0:
                line = line.upper()
            case 1:
                line = b"000" + line
            case 2:
                line += b";name=value"
        wire += line + b"\r\n" + part + b"\r\n"
    return bytes(wire)


def nasty(size: int, rand: random.Random) -> bytes:
    """Data that looks like framing."""
    pieces = [
        b"\r\n",
        b"\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"data: x\n\n",
        b"1\r\n\n\r\n",
        rand.randbytes(40),
    ]
    return b"".join(rand.choice(pieces) for _ in range(size))


async def exact_streams(seed: int, count: int) -> None:
    """Whatever the chunks and the reads they come in, the client gets the same bytes."""
    async with fakes() as fake, run_proxy([fake]) as proxy:
        sent: dict[str, bytes] = {}

        async def answer(call: Call) -> None:
            rand = random.Random(f"{seed}/{call.path}{call.target}")
            data = nasty(rand.choice([1, 10, 300, 3000]), rand)
            sent[call.target] = data
            wire = chunked(data, rand) + b"0\r\n\r\n"
            await call.start(200, [("Content-Type", "text/event-stream")])
            whole = rand.random() < 0.5
            at = 0
            while at < len(wire):
                size = wire.index(b"\r\n", at) - at if whole and wire[at : at + 1].isalnum() else 0
                size = size or rand.choice([1, 2, 3, 7, 100, 5000, 100_000])
                await call.send(wire[at : at + size])
                at += size
                await asyncio.sleep(0)

        fake.on("*", answer)

        async def one(number: int) -> None:
            async with await proxy.client() as client:
                for turn in range(3):
                    target = f"/v1/responses/r?{number}.{turn}"
                    reply = await client.ask(request(method="GET", path=target), method="GET")
                    assert reply.body == sent[target], f"seed {seed}, {target}"

        for start in range(0, count, 25):
            await asyncio.gather(*(one(number) for number in range(start, start + 25)))


async def test_streams_of_any_chunks_arrive_as_they_were_sent() -> None:
    await exact_streams(seed=1, count=100)


async def test_streams_of_one_chunk_a_write_arrive_as_they_were_sent() -> None:
    """Each chunk waits for the client to have read the one before, so that each is a read of its own."""
    rand = random.Random(7)
    parts = [nasty(rand.choice([1, 5, 30, 400]), rand) for _ in range(150)]
    read = asyncio.Event()

    async def lock_step(call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        for part in parts:
            wire = b"%x\r\n%b\r\n" % (len(part), part)
            cut = rand.choice([0, 0, 0, 1, 2, len(wire) // 2, len(wire) - 2, len(wire) - 1])
            for half in (wire[:cut], wire[cut:]):
                if half:
                    await call.send(half)
                    await asyncio.sleep(0.001)
            await read.wait()
            read.clear()
        await call.end()

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, lock_step)
        for _ in range(2):
            client.send(request())
            async with asyncio.timeout(20):
                reply = await client.head()
                got, total = 0, 0
                for part in parts:
                    total += len(part)
                    while got < total:
                        seen = len(reply.pieces)
                        await client.body(reply, stop_after=seen + 1)
                        got += len(reply.pieces[-1][1])
                    read.set()
                await client.body(reply)
            assert reply.body == b"".join(parts)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10, 20))
async def test_no_bytes_do_harm_at_length(seed: int) -> None:
    await fuzz_clients(seed, 3000)
    await fuzz_backends(seed, 3000)
    await exact_streams(seed, 500)
