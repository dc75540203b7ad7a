"""An operator at work on a running proxy: a drain at noon, and who may not do it (case B97)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from stickyroute.cli import main
from tests.support.admin_port import BEARER, TOKEN
from tests.support.fake_backend import FakeBackend, fakes, held
from tests.support.run_proxy import RunningProxy, run_proxy

ALICE = {"x-session-id": "alice"}


@asynccontextmanager
async def admin(proxy: RunningProxy) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{proxy.admin_port}") as session:
        yield session


async def home_of_alice(proxy: RunningProxy, *fake: FakeBackend) -> tuple[FakeBackend, FakeBackend]:
    """Whoever answers her, and the other one."""
    await proxy.ask(headers=ALICE)
    home = next(one for one in fake if one.requests)
    return home, next(one for one in fake if one is not home)


@pytest.mark.parametrize("policy", ["bounded_ring", "sticky"])
async def test_a_drain_finishes_what_runs_moves_the_rest_and_is_undone(policy: str) -> None:
    gate = asyncio.Event()
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy=policy) as proxy, admin(proxy) as session:
        home, other = await home_of_alice(proxy, a, b)
        home.on("/v1/chat/completions", held(gate))
        running = asyncio.create_task(proxy.ask(headers=ALICE))
        await home.until(lambda: len(home.requests) == 2)
        async with session.post(f"/backends/{home.name}/drain") as reply:
            assert (await reply.json())["told"] == f"{home.name} is draining: 1 request runs there."
        assert (await proxy.ask(headers=ALICE)).status == 200
        assert (len(home.requests), len(other.requests)) == (2, 1)
        gate.set()
        assert (await running).status == 200
        arguments = ["drain", home.name, "--wait", "--admin", f"http://127.0.0.1:{proxy.admin_port}"]
        assert await asyncio.to_thread(main, arguments) == 0
        async with session.get(f"/backends/{home.name}") as reply:
            state = await reply.json()
        assert (state["operator"], state["in_flight"], state["available"]) == ("draining", 0, False)
        async with session.post(f"/backends/{home.name}/undrain") as reply:
            assert reply.status == 200
        assert (await proxy.ask(headers=ALICE)).status == 200
        assert (len(home.requests), len(other.requests)) == (3, 1)


async def test_with_everybody_disabled_clients_are_told_and_the_page_too() -> None:
    async with fakes("a", "b") as fake, run_proxy(fake) as proxy, admin(proxy) as session:
        for one in fake:
            async with session.post(f"/backends/{one.name}/disable") as reply:
                last = await reply.json()
        assert "No other backend is available" in last["warning"]
        answer = await proxy.ask()
        assert (answer.status, answer.json["error"]["code"]) == (503, "no_backend_available")
        async with session.get("/board") as reply:
            board = await reply.json()
        assert board["alerts"][0]["code"] == "none_available"
        assert not any(one.requests for one in fake)


async def test_without_the_token_nothing_changes_and_nobody_is_dialled() -> None:
    """Every route of a whole proxy, with every method that is not a look."""
    async with fakes() as fake, run_proxy([fake], admin_token=TOKEN) as proxy, admin(proxy) as session:
        runner = proxy.app._admin
        assert runner is not None
        paths = {resource.canonical for resource in runner.app.router.resources()}
        assert {"/config", "/explain", "/backends/{name}/{action}", "/events", "/"} <= paths
        before = (fake.requests.copy(), proxy.app.fleet.snapshot()["backends"][0]["operator"])
        body = b'{"url": "http://127.0.0.1:9/", "backends": ["http://127.0.0.1:9/"]}'
        for path in sorted(paths):
            url = path.replace("{name}", fake.name).replace("{action}", "disable")
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                for headers in ({}, {"Authorization": "Bearer wrong"}):
                    async with session.request(method, url, data=body, headers=headers) as reply:
                        assert reply.status == 401, (method, url)
        assert (fake.requests, proxy.app.fleet.snapshot()["backends"][0]["operator"]) == before
        async with session.post(f"/backends/{fake.name}/disable", headers=BEARER) as reply:
            assert reply.status == 200


async def test_a_stop_lets_watchers_go() -> None:
    async with (
        fakes() as fake,
        run_proxy([fake]) as proxy,
        admin(proxy) as session,
        session.get("/events") as reply,
    ):
        assert (await reply.content.readline()) == b"retry: 2000\n"
        async with asyncio.timeout(5):
            await proxy.app.stop(0.0)
            await reply.content.read()


async def test_who_leaves_in_the_middle_of_a_body_is_nothing_to_log(caplog: pytest.LogCaptureFixture) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        for method, path in ((b"PUT", b"/config"), (b"POST", b"/explain")):
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.app.admin_port)
            head = b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\nabc"
            writer.write(head % (method, path))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        assert (await proxy.admin("/healthz")).status == 200
    assert not [record for record in caplog.records if record.name == "aiohttp.server"]
