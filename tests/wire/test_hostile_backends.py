"""What careful reading found: backends that flood, lie or die at the one moment where it used to matter."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from stickyroute.watch import ask
from tests.support.fake_backend import Call, PeerGone, drop, echo, fakes, finish, raw, reply
from tests.support.raw_client import CHAT, request
from tests.support.run_proxy import run_proxy
from tests.wire.inside import pools_of, until

MIB = 1 << 20
HEALTH = request(method="GET", path="/health")


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
        assert [pool.idle for pool in pools_of(proxy)] == [1] * 6
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
            for pool in pools_of(proxy):
                pool.close_idle()

            class Poor:
                create_connection = staticmethod(none_left)

                def __getattr__(self, name: str) -> Any:
                    return getattr(loop, name)

            for pool in pools_of(proxy):
                monkeypatch.setattr(pool, "_loop", Poor())
            answer = await client.ask(request())
            assert answer.status == 503
            assert answer.get("retry-after")
            assert list(proxy.app.fleet.available) == [1, 1]
            for pool in pools_of(proxy):
                monkeypatch.setattr(pool, "_loop", loop)
            assert (await client.ask(request())).status == 200


@pytest.mark.parametrize(("number", "available"), [(errno.EMFILE, 1), (errno.ECONNREFUSED, 0)])
async def test_a_probe_that_finds_no_descriptor_says_nothing_of_a_backend(
    number: int, available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fakes() as fake, run_proxy([fake], probe={"interval_s": 0.02}) as proxy:
        await fake.until(lambda: len(fake.probes) > 5)
        tried = 0

        class Poor:
            async def create_connection(self, *_: object, **__: object) -> None:
                nonlocal tried
                tried += 1
                raise OSError(number, "no")

            def __getattr__(self, name: str) -> Any:
                return getattr(asyncio.get_running_loop(), name)

        class PoorAsyncio:
            get_running_loop = staticmethod(Poor)

            def __getattr__(self, name: str) -> Any:
                return getattr(asyncio, name)

        monkeypatch.setattr(ask, "asyncio", PoorAsyncio())
        await until(lambda: fake.drop_idle() or tried >= 3)
        assert list(proxy.app.fleet.available) == [available]


async def test_backends_that_reset_what_they_accepted_leave_nothing_behind() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        pool = pools_of(proxy)[0]
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
