"""The load generator over real sockets: against a server that misbehaves, and against a simulated engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import orjson
import pytest

from stickyroute.benchmark.client import Client
from stickyroute.benchmark.engines import Engines, values
from stickyroute.benchmark.load import Load
from stickyroute.benchmark.prompts import start
from stickyroute.benchmark.workloads import Request, make_workload
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import serve_engines

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], "asyncio.Future[None]"]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
)


def event(content: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % content.encode()


@asynccontextmanager
async def server(*replies: list[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers the n-th request with the n-th list of writes, then closes if the last one is empty."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                asked.append(head + await reader.readexactly(length))
                for piece in replies[len(asked) - 1]:
                    if not piece:
                        return
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked


async def test_the_first_token_is_not_the_first_event() -> None:
    body = event("") + event("one ") + event("two ") + USAGE
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(body)
    async with server([whole + body[:20], body[20:130], body[130:]]) as (url, _), Client(url) as client:
        reply = await client.post("/v1/chat/completions", b"{}")
    assert not reply.error
    assert "".join(reply.text) == "one two "
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached_tokens) == (9, 2, 4)
    assert reply.sent_s <= reply.first_byte_s <= reply.first_token_s <= reply.last_token_s <= reply.done_s
    assert len(reply.gaps_s) == 1


async def test_a_stream_that_is_cut_is_an_error() -> None:
    cut = [HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n", b""]
    async with server(cut) as (url, _), Client(url) as client:
        reply = await client.post("/", b"{}")
    assert reply.error == "connection lost"


async def test_a_status_and_an_error_inside_the_stream_are_errors() -> None:
    inside = b'data: {"error":{"message":"busy"}}\n\n'
    replies = (
        [b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"],
        [HEAD + b"content-length: %d\r\n\r\n" % len(inside) + inside],
        [b"HTTP/2 nonsense\r\n\r\n"],
    )
    async with server(*replies) as (url, asked), Client(url) as client:
        errors = [(await client.post("/", b"{}")).error for _ in replies]
    assert errors[:2] == ["status 503", "an error inside the stream"]
    assert errors[2].startswith("malformed reply")
    assert len(asked) == 3


async def test_a_kept_connection_that_was_closed_is_replaced_once() -> None:
    good = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    async with server([good], [b""], [good], [b""]) as (url, asked), Client(url) as client:
        assert not (await client.post("/", b"{}")).error
        assert not (await client.post("/", b"{}")).error  # closed on the kept one, answered on a fresh one
        assert len(asked) == 3


async def test_nobody_there_is_an_error_and_not_an_exception() -> None:
    async with server() as (url, _):
        pass
    async with Client(url) as client:
        assert (await client.post("/", b"{}")).error.startswith("connect:")


def test_only_plain_http_is_spoken() -> None:
    async def make() -> None:
        Client("https://127.0.0.1")

    with pytest.raises(ValueError, match="http://"):
        asyncio.run(make())


async def test_a_workload_against_a_simulated_engine() -> None:
    engines = await serve_engines([EngineConfig(speedup=50.0)] * 2)
    counters = Engines([engine.url for engine in engines])
    try:
        workload = make_workload(
            "chat",
            {
                "rate": 40.0,
                "seconds": 1.5,
                "think_s": 0.3,
                "answer_tokens": 8.0,
                "opening_tokens": 200.0,
                "fresh": True,
            },
        )
        requests = list(workload.requests(Random(3)))
        await counters.begin()
        told: list[float] = []
        load = Load([engine.url for engine in engines], "sim", on_row=lambda row: told.append(row.at_s))
        loaded = await load.run(requests, counters.sample)
        gained = await counters.gained()
    finally:
        await counters.end()
        for engine in engines:
            await engine.close()
    assert len(loaded.rows) == len(requests) == len(told)
    assert not [row.error for row in loaded.rows if row.error]
    assert all(row.ttft_s is not None and row.latency_s is not None for row in loaded.rows)
    assert sorted(row.output_tokens for row in loaded.rows) == sorted(r.output_tokens for r in requests)
    assert sum(engine.requests for engine in gained) == len(requests)
    assert sum(engine.queries for engine in gained) == sum(row.prompt_tokens for row in loaded.rows)
    assert sum(engine.hits for engine in gained) == sum(row.cached_tokens or 0 for row in loaded.rows) > 0
    assert loaded.samples
    assert len(loaded.samples[0].kv) == 2


async def test_the_body_and_the_header_carry_the_user() -> None:
    body = event("said ") + USAGE
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    first = start("system", 1, 2).then("user", 2, 3).then("assistant", 3, 4)
    second = first.then("user", 4, 1).then("assistant", 5, 2)
    async with server([whole], [whole]) as (url, asked):
        await Load(url, "m").run([Request(0.0, first, "ann"), Request(0.5, second, "ann")])
    one, two = (
        {"head": head.split(b"\r\n"), **orjson.loads(body)}
        for head, _, body in (a.partition(b"\r\n\r\n") for a in asked)
    )
    assert b"x-session-id: ann" in one["head"]
    assert (one["user"], one["model"], one["stream"], one["max_tokens"]) == ("ann", "m", True, 4)
    assert [message["role"] for message in two["messages"]] == ["system", "user", "assistant", "user"]
    assert two["messages"][2]["content"] == "said "  # what was really answered, not what was planned


async def test_unanswered_requests_are_errors_after_the_grace() -> None:
    reply = start("user", 1, 2).then("assistant", 3, 4)
    async with server([HEAD + b"transfer-encoding: chunked\r\n\r\n"]) as (url, _):
        loaded = await Load(url, "m").run([Request(0.0, reply)], grace_s=0.1)
    assert [row.error for row in loaded.rows] == ["unanswered"]
    waited_s = loaded.rows[0].ttft_s
    assert waited_s is not None
    assert waited_s > 0  # since it was sent, which is a little later than its time
    assert loaded.rows[0].latency_s is None


async def test_a_request_cut_off_on_a_kept_connection_is_not_sent_again() -> None:
    whole = HEAD + b"content-length: 0\r\n\r\n"
    ask = start("user", 1, 2)
    requests = [Request(at_s, ask.then("assistant", seed, 4)) for at_s, seed in ((0.0, 3), (0.3, 5))]
    async with server([whole], []) as (url, asked):
        loaded = await Load(url, "m").run(requests, grace_s=0.1)
    assert [row.error for row in loaded.rows] == ["", "unanswered"]
    assert len(asked) == 2


def test_metrics_are_summed_over_their_series() -> None:
    text = '# TYPE a counter\na{x="1"} 2.0\na{x="2"} 3\nb 1e3\nbroken\n'
    assert values(text) == {"a": 5.0, "b": 1000.0}
