"""What careful reading found: peers that stall, flood or lie at the one moment where it used to matter."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from tests.support.fake_backend import (
    Call,
    PeerGone,
    Script,
    drop,
    echo,
    fakes,
    finish,
    held,
    raw,
    reply,
    reset,
)
from tests.support.raw_client import CHAT, RawClient, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

KIB = 1024
MIB = KIB * KIB
HEALTH = request(method="GET", path="/health")


async def small_window(proxy: RunningProxy) -> RawClient:
    """A client that takes next to nothing before it reads."""
    client = await proxy.client(rcvbuf=4 * KIB)
    client.stop_reading()
    return client


def connection_of(proxy: RunningProxy) -> Any:
    """The one client connection there is, as the proxy sees it."""
    assert proxy.app._server is not None
    (connection,) = proxy.app._server.connections
    return connection


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)


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
        await until(lambda: proxy.app._pools[0].idle == 1)
        assert connection_of(proxy)._stalled_s
        assert (await proxy.ask()).status == 200
        assert len(fake.connections) == 2  # the other one is the probe's
        slow.close()


async def test_no_further_request_is_begun_for_a_client_that_does_not_read() -> None:
    # The second reply began unpaused, and all of it was kept in memory.
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, ends_in_a_stall(proxy), echo)
        client = await small_window(proxy)
        client.send(request() + request())
        await until(lambda: proxy.app._pools[0].idle == 1)
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


@pytest.mark.parametrize("flood", [b"X-Field: 1\r\n" * 5000, b"x" * 60_000], ids=["fields", "one field"])
async def test_the_head_of_a_reply_is_bounded(flood: bytes) -> None:
    async def endless(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while call.fake.sent_bytes < 64 * MIB:
            await call.send(flood)
        await finish(call, "hang")

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, endless)
        assert (await proxy.ask()).status == 502
        await fake.requests[0].gone.wait()
        assert fake.sent_bytes < 16 * MIB
        await proxy.settled()


async def test_interim_replies_without_end_are_cut() -> None:
    async def endless(call: Call) -> None:
        while call.fake.sent_bytes < 64 * MIB:
            await call.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 500)
        await finish(call, "hang")

    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, endless)
        client.send(request())
        call = await fake.arrived()
        async with asyncio.timeout(10):
            await call.gone.wait()
        assert fake.sent_bytes < 16 * MIB


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
    limits = {"client_write_s": 0.3, "client_idle_s": 0.3, "stream_idle_s": 600}
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


async def test_noise_after_a_reply_spoils_no_pooled_connection() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        fake.on(CHAT, raw(plain + b"\x00\x01noise", then="keep"), echo)
        assert (await proxy.ask()).body == b"{}"
        for _ in range(3):
            assert (await proxy.ask()).status == 200


async def test_a_body_after_a_reply_to_head_is_no_answer_to_anybody() -> None:
    # Its bytes went to the client, in front of the next reply.
    async with (
        fakes() as fake,
        run_proxy([fake], extra_routes=["HEAD /probe"]) as proxy,
        await proxy.client() as client,
    ):
        fake.on("/probe", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", then="keep"))
        for _ in range(3):
            asked = request(method="HEAD", path="/probe")
            assert (await client.ask(asked, method="HEAD")).get("content-length") == "5"
        assert (await client.ask(HEALTH, method="GET")).status == 200


async def test_what_a_backend_allows_browsers_gives_way_to_the_configured_origins() -> None:
    # vLLM answers `*` by itself: with ours beside it, a browser refused both, and any other origin was let in.
    fields = [("Access-Control-Allow-Origin", "*"), ("Access-Control-Allow-Credentials", "true")]
    async with fakes() as fake:
        fake.on(CHAT, reply(200, fields=fields))
        async with run_proxy([fake], cors={"allow_origins": ["https://ours"]}) as proxy:
            answer = await proxy.ask(headers={"Origin": "https://ours"})
            assert answer.all("access-control-allow-origin") == ["https://ours"]
            answer = await proxy.ask(headers={"Origin": "https://other"})
            assert answer.all("access-control-allow-origin") == []
            assert answer.all("access-control-allow-credentials") == []
        async with run_proxy([fake]) as proxy:  # nothing configured: the backend's word passes
            assert (await proxy.ask()).get("access-control-allow-origin") == "*"


async def test_a_backend_that_takes_connections_and_drops_idle_ones_at_once_is_not_asked_for_ever() -> None:
    async with fakes("a") as fake, run_proxy([fake], retries={"max": 1}) as proxy:
        assert (await proxy.ask()).status == 200
        fake.on(CHAT, drop("reset"))
        assert (await proxy.ask()).status == 502
        assert len(fake.requests) <= 4
        await proxy.settled()


async def test_a_request_that_kills_whoever_runs_it_does_not_go_round_the_fleet() -> None:
    # A pooled connection dropped, a fresh one refused: both were tried again freely, on one backend after another.
    async def poisoned(call: Call) -> None:
        await call.fake.die()
        raise PeerGone

    async with fakes(*"abcdef") as backends, run_proxy(backends, policy="round_robin") as proxy:
        for _ in backends:
            assert (await proxy.ask()).status == 200
        assert [pool.idle for pool in proxy.app._pools] == [1] * 6
        for fake in backends:
            fake.requests.clear()
            fake.on(CHAT, poisoned)
        assert (await proxy.ask()).status == 502
        assert sum(len(fake.requests) for fake in backends) == 3
        await proxy.settled()


async def test_our_own_want_of_sockets_is_not_held_against_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    # With no descriptor left, every backend was taken for unreachable, one after the other.
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        loop = asyncio.get_running_loop()

        async def none_left(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        async with await proxy.client() as client:
            for pool in proxy.app._pools:
                pool.close_idle()

            class Poor:
                create_connection = staticmethod(none_left)

                def __getattr__(self, name: str) -> Any:
                    return getattr(loop, name)

            for pool in proxy.app._pools:
                monkeypatch.setattr(pool, "_loop", Poor())
            answer = await client.ask(request())
            assert answer.status == 503
            assert answer.get("retry-after")
            assert list(proxy.app.fleet.available) == [1, 1]
            for pool in proxy.app._pools:
                monkeypatch.setattr(pool, "_loop", loop)
            assert (await client.ask(request())).status == 200


@pytest.mark.parametrize(("number", "available"), [(errno.EMFILE, 1), (errno.ECONNREFUSED, 0)])
async def test_a_probe_that_finds_no_descriptor_says_nothing_of_a_backend(
    number: int, available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fakes() as fake, run_proxy([fake], models_interval_s=600) as proxy:
        watch: Any = proxy.app._watch

        def none_left(*_: object, **__: object) -> None:
            raise aiohttp.ClientConnectorError(SimpleNamespace(), OSError(number, "no"))  # type: ignore[arg-type]

        monkeypatch.setattr(watch._session, "get", none_left)
        await watch._ask(watch._questions[0], watch._session)
        assert list(proxy.app.fleet.available) == [available]


async def test_backends_that_reset_what_they_accepted_leave_nothing_behind() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        pool = proxy.app._pools[0]
        await fake.refuse()
        listener = socket.create_server(("127.0.0.1", fake.port))
        listener.setblocking(False)
        loop = asyncio.get_running_loop()

        async def reset_all() -> None:
            while True:
                sock, _ = await loop.sock_accept(listener)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                sock.close()

        task = asyncio.create_task(reset_all())
        for _ in range(30):
            proxy.app.fleet.record_reachable(0)
            assert (await proxy.ask()).status in (502, 503)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
        await until(lambda: not pool._open)


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


async def test_a_tunnel_does_not_wait_for_ever_for_a_side_that_does_not_read() -> None:
    # Nor was it noticed that the other side had left: while one side stalls, the other is not read.
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}

    async def agree(call: Call) -> None:
        call.connection.transport.pause_reading()
        await call.send(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await call.fake.until(lambda: False, timeout_s=600)

    async with fakes() as fake, run_proxy([fake], timeouts={"client_write_s": 0.2}) as proxy:
        fake.on("/v1/realtime", agree)
        client = await proxy.client()
        client.send(request(method="GET", path="/v1/realtime?model=m", headers=headers))
        assert (await client.head(method="GET")).status == 101
        upstream = connection_of(proxy)._transport.get_protocol()._far
        client.send(b"x" * 16 * MIB)
        await until(lambda: upstream.get_write_buffer_size())
        reset(client.transport)
        await until(lambda: upstream.is_closing() and not upstream.get_write_buffer_size())
        await proxy.settled()


async def test_a_tunnel_may_go_on_until_the_limit_of_a_graceful_stop() -> None:
    # It was closed at once, as if it were an idle connection.
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}

    async def agree(call: Call) -> None:
        await call.send(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        call.method = "UPGRADED"

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on("/v1/realtime", agree)
        client = await proxy.client()
        client.send(request(method="GET", path="/v1/realtime?model=m", headers=headers))
        assert (await client.head(method="GET")).status == 101
        stopping = asyncio.create_task(proxy.app.stop(60))
        await until(lambda: proxy.app._server and proxy.app._server.stopping)
        client.send(b"last words")
        await fake.until(lambda: fake.tunnelled == b"last words")
        assert not client.ended.is_set()
        client.close()
        assert await stopping == 0
