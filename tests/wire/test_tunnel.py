"""WebSocket upgrades are tunnelled."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_backend import Call, FakeBackend, PeerGone, drop, fakes, finish, reply, reset
from tests.support.raw_client import CHAT, RawClient, Response, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy
from tests.wire.inside import connection_of, until

REALTIME = "/v1/realtime?model=m"
UPGRADE = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def switch(early: bytes = b""):  # type: ignore[no-untyped-def]
    """Agree to the upgrade, send `early` in the same write, then record what comes."""

    async def script(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n" + early
        )
        call.fake.tunnelled += bytes(call.connection.buffer)
        call.method = "UPGRADED"

    return script


async def open_tunnel(
    proxy: RunningProxy, fake: FakeBackend, early: bytes = b""
) -> tuple[RawClient, Response]:
    client = await proxy.client()
    client.send(request(method="GET", path=REALTIME, headers=UPGRADE) + early)
    async with asyncio.timeout(5):
        return client, await client.head(method="GET")


async def test_an_upgrade_is_tunnelled_both_ways() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", switch())
        client, answer = await open_tunnel(proxy, fake)
        assert (answer.status, (answer.get("upgrade") or "").lower()) == (101, "websocket")
        assert "upgrade" in (answer.get("connection") or "").lower()
        assert answer.get("sec-websocket-accept") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        seen = fake.requests[0]
        assert (seen.target, (seen.get("upgrade") or "").lower()) == (REALTIME, "websocket")
        assert "upgrade" in (seen.get("connection") or "").lower()
        assert seen.get("sec-websocket-key") == UPGRADE["Sec-WebSocket-Key"]
        for i in range(5):
            client.send(b"\x81ping%d" % i)
            await fake.until(lambda i=i: fake.tunnelled.endswith(b"ping%d" % i))
            seen.connection.transport.write(b"\x81pong%d" % i)
            assert await client.read(6) == b"\x81pong%d" % i
        assert await proxy.in_flight() == 1
        client.close()
        await seen.gone.wait()
        await proxy.settled()


async def test_bytes_sent_before_the_agreement_arrive_on_both_sides() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", switch(b"early from backend"))
        client, answer = await open_tunnel(proxy, fake, b"early from client")
        assert answer.status == 101
        assert await client.read(18) == b"early from backend"
        await fake.until(lambda: fake.tunnelled == b"early from client")
        client.close()


async def test_a_megabyte_each_way_arrives_unchanged() -> None:
    data = bytes(range(256)) * 4096
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", switch())
        client, _ = await open_tunnel(proxy, fake)
        client.send(data)
        await fake.until(lambda: len(fake.tunnelled) == len(data))
        assert fake.tunnelled == data
        fake.requests[0].connection.transport.write(data)
        assert await client.read(len(data)) == data
        client.close()


async def test_the_end_of_the_backend_ends_the_client_after_the_last_byte() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", switch())
        client, _ = await open_tunnel(proxy, fake)
        fake.requests[0].connection.transport.write(b"bye" * 10_000)
        fake.requests[0].close()
        assert await client.rest() == b"bye" * 10_000
        await proxy.settled()


async def test_no_time_limit_of_http_ends_a_silent_tunnel() -> None:
    short = {"stream_idle_s": 0.1, "client_idle_s": 0.1, "client_head_s": 0.1, "upstream_idle_s": 0.1}
    async with fakes() as fake, run_proxy([fake], timeouts=short) as proxy:
        fake.on("/v1/realtime", switch())
        client, _ = await open_tunnel(proxy, fake)
        await asyncio.sleep(0.5)
        client.send(b"still here")
        await fake.until(lambda: fake.tunnelled == b"still here")
        client.close()
        await fake.requests[0].gone.wait()


@pytest.mark.parametrize("status", [400, 401, 404, 426])
async def test_a_refused_upgrade_is_a_reply_like_any_other(status: int) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on("/v1/realtime", reply(status, b"no"))
        client.send(request(method="GET", path=REALTIME, headers=UPGRADE))
        answer = await client.response(method="GET")
        assert (answer.status, answer.body, answer.closes) == (status, b"no", True)
        assert await client.rest() == b""
        await proxy.settled()


async def test_an_upgrade_whose_backend_drops_it_is_tried_on_the_next() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy="round_robin") as proxy:
        a.on("/v1/realtime", drop())
        b.on("/v1/realtime", switch())
        for _ in range(2):
            client, answer = await open_tunnel(proxy, b)
            assert answer.status == 101
            client.close()
        await proxy.settled()


async def test_a_client_that_leaves_before_the_agreement_closes_its_upstream() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", lambda call: finish(call, "hang"))
        client = await proxy.client()
        client.send(request(method="GET", path=REALTIME, headers=UPGRADE))
        call = await fake.arrived()
        client.transport.close()
        async with asyncio.timeout(10):
            await call.gone.wait()
        await proxy.settled()


@pytest.mark.parametrize("token", ["h2c", "TLS/1.0", "websocket2"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_upgrade_that_is_not_offered_on_a_route_is_a_plain_request(
    token: str, chunked: bool
) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": token, "HTTP2-Settings": "AAMAAABk"}
        body = chat()
        for _ in range(2):
            asked = (
                request(chunks=[body[:9], body[9:]], headers=headers)
                if chunked
                else request(body, headers=headers)
            )
            answer = await client.ask(asked)
            assert answer.status == 200
            assert fake.requests[-1].body == body
            assert fake.requests[-1].get("upgrade") is None
        assert fake.requests[-1].path == CHAT


async def test_many_upgrades_that_are_not_offered_in_one_write() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        offers = [
            request(chat(f"{i}"), path=f"{CHAT}?n={i}", headers={"Connection": "Upgrade", "Upgrade": "h2c"})
            for i in range(200)
        ]
        client.send(b"".join(offers))
        for i in range(200):
            assert (await client.response()).json["target"] == f"{CHAT}?n={i}"
        assert len(fake.requests) == 200


async def test_a_websocket_upgrade_with_a_body_smuggles_nothing() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        inner = request(path=f"{CHAT}?smuggled")
        client.send(request(inner, headers={"Connection": "Upgrade", "Upgrade": "websocket"}))
        answer = await client.response()
        assert answer.closes
        await proxy.settled()
        assert not [call for call in fake.requests if "smuggled" in call.target]


async def test_a_backend_that_dies_in_a_tunnel_resets_nobody_else() -> None:
    async def die(call: Call) -> None:
        await switch()(call)
        await asyncio.sleep(0.02)
        call.reset()
        raise PeerGone

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", die)
        client, _ = await open_tunnel(proxy, fake)
        assert await client.rest() == b""
        await proxy.settled()
        assert (await proxy.ask()).status == 200


async def test_a_tunnel_does_not_wait_for_ever_for_a_side_that_does_not_read() -> None:
    # Nor was it noticed that the other side had left: while one side stalls, the other is not read.
    async def agree(call: Call) -> None:
        call.connection.transport.pause_reading()
        await switch()(call)
        await call.fake.until(lambda: False, timeout_s=600)

    async with fakes() as fake, run_proxy([fake], timeouts={"client_write_s": 0.2}) as proxy:
        fake.on("/v1/realtime", agree)
        client, _ = await open_tunnel(proxy, fake)
        upstream = connection_of(proxy)._transport.get_protocol()._far
        client.send(b"x" * (16 << 20))
        await until(lambda: upstream.get_write_buffer_size())
        reset(client.transport)
        await until(lambda: upstream.is_closing() and not upstream.get_write_buffer_size())
        await proxy.settled()


async def test_a_tunnel_may_go_on_until_the_limit_of_a_graceful_stop() -> None:
    # It was closed at once, as if it were an idle connection.
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", switch())
        client, _ = await open_tunnel(proxy, fake)
        stopping = asyncio.create_task(proxy.app.stop(60))
        await until(lambda: proxy.app._server and proxy.app._server.stopping)
        client.send(b"last words")
        await fake.until(lambda: fake.tunnelled == b"last words")
        assert not client.ended.is_set()
        client.close()
        assert await stopping == 0
