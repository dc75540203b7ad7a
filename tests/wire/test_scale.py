"""Group J of the field's bug reports, scaled down, and the process's memory; the heavy ones are slow."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from bench.soak.streams import soak
from tests.support.fake_backend import Call, events, fakes, finish, stream
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import run_proxy, serve_process

MIB = 1 << 20


async def test_b39_a_long_stream_leaves_no_memory_behind() -> None:
    piece = b"x" * 4096
    async with fakes() as fake, serve_process([fake]) as proxy:
        fake.on(CHAT, stream([piece] * 64))
        assert (await proxy.ask(chat(stream=True))).status == 200
        before = proxy.rss_bytes
        fake.on(CHAT, stream([piece] * (60 * MIB // 4096)))
        reply = await proxy.ask(chat(stream=True))
        assert len(reply.body) == 60 * MIB
        assert proxy.rss_bytes - before < 20 * MIB


async def test_b110_hundreds_of_clients_are_served_at_once() -> None:
    async with fakes("a", "b", "c") as three, run_proxy(three) as proxy:
        for fake in three:
            fake.on(CHAT, stream(events(5), gap_s=0.02))
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(proxy.ask(chat(f"{i}", stream=True))) for i in range(300)]
        assert {task.result().status for task in asked} == {200}
        assert {task.result().body for task in asked} == {b"".join(events(5))}
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_requests_total", status="2xx") == 300
        assert samples.sum("stickyroute_backend_in_flight") == 0


async def test_b111_b114_long_prompts_at_once_arrive_whole_and_health_is_answered_among_them() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        body = chat("y" * 500_000, user="u")
        digest = hashlib.sha256(body).hexdigest()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(proxy.ask(body)) for _ in range(32)]
            health = [group.create_task(proxy.ask(method="GET", path="/health")) for _ in range(32)]
        assert {task.result().json["sha256"] for task in asked} == {digest}
        assert {task.result().status for task in health} == {200}


async def test_b116_thirty_large_streams_dropped_together_are_cleaned_up() -> None:
    async def large(call: Call) -> None:
        await call.start(200)
        for _ in range(80):
            await call.piece(b"x" * 65_536)
        await finish(call, "hang")

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, large)
        clients = [await proxy.client() for _ in range(30)]
        for client in clients:
            client.send(request(chat(stream=True)))
        await fake.arrived(30)
        for client in clients:
            client.close()
        async with asyncio.timeout(5):
            for call in fake.requests:
                await call.gone.wait()
        assert (await proxy.ask(method="GET", path="/health")).status == 200
        await proxy.settled()


async def test_connections_that_come_and_go_leave_no_sockets_behind() -> None:
    async with fakes() as fake, serve_process([fake], "--set", "timeouts.upstream_idle_s=0.1") as proxy:
        samples = await proxy.metrics()
        before = samples.sum("process_open_fds")
        for _ in range(5):
            await asyncio.gather(*(proxy.ask(chat(f"{i}")) for i in range(30)))
        await fake.until(lambda: not fake.used.intersection(fake.open), 10)
        await proxy.until_metrics(lambda s: s.sum("process_open_fds") <= before + 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_thousand_concurrent_slow_streams() -> None:
    result = await soak(streams=2000, events=30, gap_s=0.5)
    assert result.errors == 0
    assert result.whole == 2000
    assert result.rss_bytes_per_stream < 40 * 1024
    assert result.healthz_p99_s < 0.1
