"""What the data plane owes to time: limits that cut slow-loris clients and dead engines, never a generation.

Limits are scaled down to tenths of a second. Each test waits for the event it is about; none measures.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from stickyroute.settings import Settings
from tests.support.fake_backend import Call, fakes, finish, reply, silent, stream
from tests.support.raw_client import CHAT, RawClient, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

SHORT = {
    "stream_idle_s": 0.25,
    "client_head_s": 0.25,
    "client_body_s": 0.25,
    "client_idle_s": 0.25,
    "client_write_s": 0.25,
    "upstream_idle_s": 0.25,
}
"""Every limit but the two on the way to a reply's head."""
LONG_S = 0.8


async def test_no_limit_cuts_a_long_silence_before_the_first_byte() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts=SHORT) as proxy:
        fake.on(CHAT, stream([b"data: x\n\n"], first_s=LONG_S))
        assert (await proxy.ask(chat(stream=True))).body == b"data: x\n\n"
    assert Settings(backends=["http://h:1"]).timeouts.response_header_s is None


async def test_no_limit_cuts_a_generation_that_goes_on() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts={**SHORT, "response_header_s": 0.25}) as proxy:
        fake.on(CHAT, stream([b"x"] * 20, gap_s=0.05))
        assert len((await proxy.ask(chat(stream=True))).pieces) == 20


async def test_a_stream_that_falls_silent_is_visibly_cut_and_its_upstream_closed() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts={"stream_idle_s": 0.2}) as proxy:
        fake.on(CHAT, stream([b"x"], then="hang"))
        with pytest.raises(Truncated) as cut:
            await proxy.ask(chat(stream=True))
        assert cut.value.response is not None
        assert cut.value.response.body == b"x"
        await fake.requests[0].gone.wait()
        samples = await proxy.until_metrics(lambda s: s.sum("stickyroute_upstream_failures_total") == 1)
        assert samples.sum("stickyroute_backend_in_flight") == 0
    assert Settings(backends=["http://h:1"]).timeouts.stream_idle_s == 600


async def test_a_reply_that_stops_inside_its_head_does_not_hang_for_ever() -> None:
    async def half_a_head(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-")
        await finish(call, "hang")

    async with fakes() as fake, run_proxy([fake], timeouts={"stream_idle_s": 0.2}) as proxy:
        fake.on(CHAT, half_a_head)
        assert (await proxy.ask()).status in (502, 504)
        await fake.requests[0].gone.wait()
        await proxy.settled()


async def test_the_response_header_limit_answers_504_when_it_is_set() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts={"response_header_s": 0.15}) as proxy:
        fake.on(CHAT, silent())
        answer = await proxy.ask()
        assert (answer.status, answer.json["error"]["type"]) == (504, "timeout_error")
        await fake.requests[0].gone.wait()


async def _trickle(client: RawClient, data: bytes, gap_s: float = 0.03) -> None:
    """Send byte by byte until the peer ends the connection or the data is out."""
    for byte in data:
        if client.ended.is_set():
            return
        client.send(bytes([byte]))
        await asyncio.sleep(gap_s)


async def _is_cut(proxy: RunningProxy, data: bytes, *, first: bytes = b"") -> None:
    """A client that trickles `data` is answered 408 or just cut, long before it is through."""
    async with await proxy.client() as client:
        client.send(first)
        trickle = asyncio.create_task(_trickle(client, data))
        try:
            assert (await client.response(timeout_s=5)).status == 408
            assert await client.rest(5) == b""
        except Truncated as cut:
            assert cut.raw == b""
        trickle.cancel()


async def test_a_slow_loris_head_is_cut() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts={"client_head_s": 0.2}) as proxy:
        await _is_cut(proxy, b"POST / HTTP/1.1\r\nHost: h\r\n" + b"X-A: b\r\n" * 200)
        assert fake.requests == []
        assert (await proxy.ask()).status == 200


async def test_a_slow_loris_head_is_cut_on_a_connection_that_was_used_before() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts={"client_head_s": 0.2}) as proxy:
        async with await proxy.client() as client:
            assert (await client.ask(request())).status == 200
            trickle = asyncio.create_task(_trickle(client, b"POST / HTTP/1.1\r\n" + b"X-A: b\r\n" * 200))
            async with asyncio.timeout(5):
                await client.ended.wait()
            trickle.cancel()
        assert len(fake.requests) == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_stops_or_trickles_is_cut(chunked: bool) -> None:
    whole = request(chunks=[b"x" * 5000]) if chunked else request(b"x" * 5000)
    head = whole[: whole.index(b"\r\n\r\n") + 4]
    async with fakes() as fake, run_proxy([fake], timeouts={"client_body_s": 0.2}) as proxy:
        await _is_cut(proxy, b"", first=head)
        await _is_cut(proxy, whole[len(head) :], first=head)
        assert fake.requests == []


async def test_a_long_upload_that_goes_on_is_not_cut() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts=SHORT) as proxy, await proxy.client() as client:
        body = chat("x" * 20_000)
        whole = request(body)
        for at in range(0, len(whole), 1000):
            client.send(whole[at : at + 1000])
            await asyncio.sleep(0.03)
        assert (await client.response()).status == 200
        assert fake.requests[0].body == body


@pytest.mark.parametrize("used", [False, True])
async def test_an_idle_client_connection_is_closed(used: bool) -> None:
    async with (
        fakes() as fake,
        run_proxy([fake], timeouts={"client_idle_s": 0.15}) as proxy,
        await proxy.client() as client,
    ):
        if used:
            assert (await client.ask(request())).status == 200
        assert await client.rest(5) == b""
        assert not client.was_reset


async def test_a_client_that_reads_nothing_is_cut_and_its_upstream_closed() -> None:
    async def flood(call: Call) -> None:
        await call.start(200)
        while True:
            await call.piece(b"x" * 65_536)

    async with fakes() as fake, run_proxy([fake], timeouts={"client_write_s": 0.3}) as proxy:
        fake.on(CHAT, flood)
        client = await proxy.client(rcvbuf=65_536)
        client.stop_reading()
        client.send(request(chat(stream=True)))
        call = await fake.arrived()
        async with asyncio.timeout(5):
            await call.gone.wait()
        samples = await proxy.until_metrics(lambda s: s.sum("stickyroute_client_disconnects_total") == 1)
        assert samples.sum("stickyroute_backend_in_flight") == 0
        client.close()


async def test_a_client_that_reads_slowly_is_not_taken_for_a_silent_engine() -> None:
    piece = b"x" * 65_536
    async with fakes() as fake, run_proxy([fake], timeouts={"stream_idle_s": 0.2}) as proxy:
        fake.on(CHAT, stream([piece] * 300))
        client = await proxy.client(rcvbuf=65_536)
        client.stop_reading()
        client.send(request(chat(stream=True)))
        await fake.arrived()
        await asyncio.sleep(LONG_S)  # four times the limit
        client.read_again()
        assert len((await client.response()).body) == 300 * len(piece)
        client.close()


async def test_an_idle_upstream_connection_is_closed_before_the_engine_would() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts={"upstream_idle_s": 0.15}) as proxy:
        assert (await proxy.ask()).status == 200
        pooled = fake.requests[0].connection
        await fake.until(lambda: pooled.lost, 5)
        assert (await proxy.ask()).status == 200
        assert fake.requests[1].connection is not pooled


def test_the_idle_limit_of_upstream_connections_is_under_5_s() -> None:
    assert Settings(backends=["http://h:1"]).timeouts.upstream_idle_s < 5
    with pytest.raises(ValidationError):
        Settings(backends=["http://h:1"], timeouts={"upstream_idle_s": 5})


@pytest.fixture
def deaf_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port that neither accepts nor refuses: its queue of connections is full."""
    monkeypatch.setattr("stickyroute.app._FIRST_ROUND_S", 0.05)  # start-up waits for its models in vain
    with socket.socket() as listener, socket.socket() as one, socket.socket() as two:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (one, two):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_connecting_has_a_limit_and_then_the_next_backend_is_asked(deaf_port: int) -> None:
    async with fakes("b") as b:
        deaf = {"name": "a", "url": f"http://127.0.0.1:{deaf_port}", "models": ["m"]}
        b_too = b.settings(models=["m"])
        async with run_proxy([deaf, b_too], timeouts={"connect_s": 0.15}, policy="round_robin") as proxy:
            for _ in range(3):
                assert (await proxy.ask()).backend == "b"
            samples = await proxy.metrics()
            assert samples.sum("stickyroute_upstream_failures_total", backend="a") >= 1
            assert samples.sum("stickyroute_backend_in_flight") == 0


async def test_a_client_that_leaves_while_its_backend_is_being_connected_leaves_nothing_behind(
    deaf_port: int,
) -> None:
    deaf = {"name": "a", "url": f"http://127.0.0.1:{deaf_port}", "models": ["m"]}
    async with run_proxy([deaf], timeouts={"connect_s": 5}) as proxy:
        client = await proxy.client()
        client.send(request())
        await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_in_flight") == 1)
        client.close()
        await proxy.until_metrics(lambda s: s.sum("stickyroute_client_disconnects_total") == 1)
        await proxy.settled()


async def test_only_deaf_backends_are_a_503_within_the_limit(deaf_port: int) -> None:
    deaf = {"name": "a", "url": f"http://127.0.0.1:{deaf_port}", "models": ["m"]}
    async with run_proxy([deaf], timeouts={"connect_s": 0.15}) as proxy:
        answer = await proxy.ask()
        assert answer.status in (503, 504)


async def test_after_a_reply_to_a_slow_request_the_connection_is_usable() -> None:
    async with fakes() as fake, run_proxy([fake], timeouts=SHORT) as proxy, await proxy.client() as client:

        async def late(call: Call) -> None:
            await asyncio.sleep(LONG_S)
            await reply()(call)

        fake.on(CHAT, late, reply())
        for _ in range(2):
            assert (await client.ask(request())).status == 200
