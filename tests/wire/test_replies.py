"""What the data plane owes, the reply's half: from the backend's bytes to what the client reads."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from tests.support.fake_backend import Call, fakes, finish, raw, reply
from tests.support.raw_client import CHAT, Truncated, chat, request
from tests.support.run_proxy import run_proxy

BODY = b'{"text":"' + b"\xc3\xa9" * 4000 + b'"}'


@pytest.mark.parametrize("minor", [1, 0])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("status", [200, 201, 400, 404, 500])
async def test_a_reply_of_any_framing_is_relayed_with_exactly_one(
    framing: str, status: int, minor: int
) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, reply(status, BODY, framing=framing))
        async with await proxy.client() as client:
            answer = await client.ask(request(minor=minor), minor=minor)
            assert (answer.status, answer.body) == (status, BODY)
            assert answer.framing == {"length": "length"}.get(framing, "chunked" if minor else "close")
            if minor:
                again = await client.ask(request())
                assert again.body == BODY


async def test_an_empty_body_of_any_framing_is_an_empty_body() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        for framing in ("length", "chunked", "close"):
            fake.on(CHAT, reply(200, b"", framing=framing))
            assert (await client.ask(request())).body == b""


async def test_a_large_reply_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with fakes() as fake, run_proxy([fake]) as proxy:
        for framing in ("length", "chunked", "close"):
            fake.on(CHAT, reply(200, body, framing=framing))
            answer = await proxy.ask()
            assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()


async def test_a_reply_to_an_http_1_0_client_may_keep_its_connection_when_it_has_a_length() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        alive = request(minor=0, headers={"Connection": "keep-alive"})
        answer = await client.ask(alive, minor=0)
        assert not answer.closes
        fake.on(CHAT, reply(200, BODY, framing="chunked"))
        answer = await client.ask(alive, minor=0)
        assert (answer.closes, answer.framing, answer.body) == (True, "close", BODY)


async def test_hop_by_hop_fields_and_those_connection_names_are_stripped_from_replies() -> None:
    hop = [
        ("Connection", "close, X-Bar"),
        ("X-Bar", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authenticate", "Basic"),
        ("Proxy-Connection", "close"),
        ("Trailer", "X-Late"),
        ("Upgrade", "h2c"),
    ]
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(
            CHAT,
            reply(200, BODY, fields=[*hop, ("X-Kept", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]),
        )
        for _ in range(2):
            answer = await client.ask(request())
            names = {name for name, _ in answer.fields}
            assert not names & {name.lower() for name, _ in hop}
            assert answer.get("x-kept") == "1"
            assert answer.all("set-cookie") == ["a=1", "b=2"]
            assert not answer.closes


async def test_reason_phrase_date_and_server_come_from_the_backend() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(
            CHAT, reply(200, b"{}", fields=[("Server", "uvicorn"), ("Date", "Sun, 06 Nov 1994 08:49:37 GMT")])
        )
        answer = await proxy.ask()
        assert answer.reason == b"Whatever"
        assert (answer.get("server"), answer.get("date")) == ("uvicorn", "Sun, 06 Nov 1994 08:49:37 GMT")


@pytest.mark.parametrize("reason", [b"", b"O\0K", b"\x1b[31mOK", b"\x7f"])
async def test_a_reason_phrase_that_is_absent_or_unprintable_becomes_the_usual_one(reason: bytes) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, raw(b"HTTP/1.1 200 " + reason + b"\r\nContent-Length: 2\r\n\r\n{}", "keep"))
        answer = await proxy.ask()
        assert (answer.status, answer.reason, answer.body) == (200, b"OK", b"{}")


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "unheard-of"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_any_content_coding_is_opaque(coding: str, framing: str) -> None:
    body = gzip.compress(BODY) if coding == "gzip" else bytes(range(256)) * 9
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(
            CHAT, reply(200, body, framing=framing, fields=[("Content-Encoding", coding), ("ETag", '"x"')])
        )
        answer = await proxy.ask(headers={"Accept-Encoding": coding})
        assert (answer.body, answer.get("content-encoding"), answer.get("etag")) == (body, coding, '"x"')
        assert fake.requests[0].get("accept-encoding") == coding


async def test_a_coded_request_body_is_opaque_too() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        body = gzip.compress(chat())
        answer = await proxy.ask(body, path="/tokenize", headers={"Content-Encoding": "gzip"})
        assert answer.status == 200
        assert (fake.requests[0].body, fake.requests[0].get("content-encoding")) == (body, "gzip")


async def _hints(call: Call) -> None:
    await call.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
    await reply(200, b"{}")(call)


async def test_1xx_replies_are_passed_on() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, _hints)
        for _ in range(2):
            answer = await client.ask(request())
            assert [hint.status for hint in answer.informational] == [103, 102]
            assert answer.informational[0].get("link") == "</a>"
            assert (answer.status, answer.body) == (200, b"{}")


async def test_1xx_replies_are_kept_from_http_1_0_clients() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, _hints)
        answer = await proxy.ask(minor=0)
        assert (answer.status, answer.informational) == (200, [])


async def test_a_backend_s_100_continue_is_not_passed_on_a_second_time() -> None:
    async def eager(call: Call) -> None:
        await call.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reply(200, b"{}")(call)

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, eager)
        for _ in range(2):
            answer = await client.ask(request())
            assert (answer.status, answer.informational) == (200, [])


@pytest.mark.parametrize("head", [b"", b"Content-Length: 0\r\n"])
async def test_204_has_no_body_and_no_framing_and_the_connections_live_on(head: bytes) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, raw(b"HTTP/1.1 204 No Content\r\n" + head + b"X-A: 1\r\n\r\n", "keep"))
        for _ in range(3):
            answer = await client.ask(request())
            assert (answer.status, answer.body, answer.get("x-a")) == (204, b"", "1")
        assert len(fake.used) == 1


@pytest.mark.parametrize("head", [b"", b"Content-Length: 1234\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_304_has_no_body_whatever_it_announces(head: bytes) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on("/v1/responses/r", raw(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n" + head + b"\r\n", "keep"))
        for _ in range(2):
            asked = request(method="GET", path="/v1/responses/r", headers={"If-None-Match": "x"})
            answer = await client.ask(asked, method="GET")
            assert (answer.status, answer.body, answer.get("etag")) == (304, b"", "x")


@pytest.mark.parametrize("head", [b"", b"Content-Length: 1234\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_head_has_no_body_whatever_it_announces(head: bytes) -> None:
    async with (
        fakes() as fake,
        run_proxy([fake], extra_routes=["HEAD /probe"]) as proxy,
        await proxy.client() as client,
    ):
        fake.on("/probe", raw(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n" + head + b"\r\n", "keep"))
        for _ in range(3):
            answer = await client.ask(request(method="HEAD", path="/probe"), method="HEAD")
            assert (answer.status, answer.get("x-a")) == (200, "1")
            assert client.nothing_left
            if b"Length" in head:
                assert answer.get("content-length") == "1234"
        assert (await client.ask(request())).status == 200
        assert [call.method for call in fake.requests] == ["HEAD"] * 3 + ["POST"]


INVALID = {
    "not http": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "no status": b"HTTP/1.1 \r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    "odd length": b"HTTP/1.1 200 OK\r\nContent-Length: 2x\r\n\r\n{}",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    "space in a name": b"HTTP/1.1 200 OK\r\nX Y: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a nul": b"HTTP/1.1 200 OK\r\nX-Y: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "a bare return": b"HTTP/1.1 200 OK\r\nX-Y: a\rX-Z: b\r\nContent-Length: 2\r\n\r\n{}",
    "101 unasked": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "1xx with a body": b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "1xx with a length": b"HTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n",
    "1xx with a body before a reply": b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "nothing but a line": b"HTTP/1.1 200 OK\r\n",
}


@pytest.mark.parametrize("what", INVALID)
async def test_an_invalid_reply_is_a_502_and_not_tried_again(what: str) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, raw(INVALID[what]))
        answer = await proxy.ask()
        assert answer.status == 502
        assert answer.json["error"]["code"] == "upstream_failed"
        assert len(a.requests) + len(b.requests) == 1
        await proxy.settled()


async def test_length_and_chunked_together_never_reach_the_client_together() -> None:
    both = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, raw(both, "keep"))
        answer = await proxy.ask()  # the client checks that there is one framing
        assert (answer.status, answer.body) in [(200, b"{}")] or answer.status == 502


async def test_bytes_after_a_reply_are_no_answer_to_anybody() -> None:
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(
            CHAT,
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" + evil, "keep"),
            reply(200, b'{"good":1}'),
        )
        assert (await client.ask(request())).body == b"{}"
        assert (await client.ask(request())).body == b'{"good":1}'


async def test_bytes_on_an_idle_connection_are_no_answer_to_anybody() -> None:
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        assert (await client.ask(request())).status == 200
        pooled = fake.requests[0].connection
        pooled.transport.write(evil)
        await fake.until(lambda: pooled.lost)
        assert (await client.ask(request())).json["backend"] == "a"


async def test_trailers_of_a_chunked_reply_break_nothing() -> None:
    async def trailing(call: Call) -> None:
        await call.start(200, [("Trailer", "X-Sum")])
        await call.piece(b"{}")
        await call.end(trailers=b"X-Sum: 1\r\nX-Stickyroute-Backend: z\r\n")

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, trailing)
        for _ in range(2):
            assert (await client.ask(request())).body == b"{}"


async def test_a_reply_before_the_request_is_read_reaches_the_client() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, reply(400, b'{"error":"too long"}', fields=[("Connection", "close")]))
        answer = await proxy.ask(chat("x" * 5_000_000))
        assert (answer.status, answer.body) == (400, b'{"error":"too long"}')


async def test_a_sized_reply_that_falls_short_is_visibly_cut() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"))
        client.send(request())
        with pytest.raises(Truncated) as cut:
            await client.response()
        assert cut.value.response is not None
        assert cut.value.response.body == b"{}"


async def test_a_reply_with_a_head_of_many_fields_is_relayed_whole() -> None:
    fields = [(f"X-{i}", "v" * 100) for i in range(300)]
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, reply(200, b"{}", fields=fields))
        answer = await proxy.ask()
        assert all(answer.get(name) == value for name, value in fields)


async def test_a_backend_that_closes_after_each_reply_is_asked_on_new_connections() -> None:
    async def once(call: Call) -> None:
        await reply(200, b"{}", fields=[("Connection", "close")])(call)
        await finish(call, "close")

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, once)
        for _ in range(3):
            assert (await client.ask(request())).status == 200
        assert len(fake.used) == 3
        assert (await proxy.metrics()).sum("stickyroute_retries_total") == 0
