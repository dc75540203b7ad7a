"""The live feed: what a watcher gets, what many cost, and what becomes of one that reads nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from stickyroute.control import events
from stickyroute.control.answers import errors_in_json
from stickyroute.control.events import Feed
from stickyroute.metrics.sources import ShadowFigures
from tests.support.admin_port import AdminPort, admin_port, spec


class Watcher:
    """A reader of the feed, event by event."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply

    async def next(self) -> tuple[str, Any]:
        """Name and value of the next event."""
        name = ""
        while True:
            line = (await self.reply.content.readline()).decode()
            if not line:
                return "end", None
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                return name, orjson.loads(line[6:])


@asynccontextmanager
async def watching(port: AdminPort) -> AsyncIterator[Watcher]:
    assert port.session is not None
    async with port.session.get(port.url + "/events") as reply:
        assert reply.status == 200
        assert reply.content_type == "text/event-stream"
        assert reply.headers["Cache-Control"] == "no-store"
        yield Watcher(reply)


async def test_a_watcher_gets_the_charts_and_then_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "TICK_S", 0.01)
    async with admin_port("a", "b") as port, watching(port) as watcher:
        name, value = await watcher.next()
        assert (name, value) == ("beginning", {"points": []})
        name, state = await watcher.next()
        assert name == "state"
        assert [backend["name"] for backend in state["backends"]] == ["a", "b"]
        assert state["summary"]["available"] == 2
        await port.ask("POST", "/backends/b/drain")
        while state["backends"][1]["operator"] != "draining":
            _, state = await watcher.next()
        assert state["summary"]["available"] == 1


async def test_board_is_the_same_once() -> None:
    async with admin_port("a") as port:
        status, state = await port.ask("GET", "/board")
        assert status == 200
        assert {"points", "backends", "summary", "alerts"} <= state.keys()


@pytest.mark.parametrize(
    ("settings", "access"),
    [
        ({}, "open"),
        ({"admin_token": "x"}, "token"),
        ({"admin_listen": "0.0.0.0:9090"}, "closed"),
        ({"admin_listen": "0.0.0.0:9090", "admin_token": "x"}, "token"),
    ],
)
async def test_the_page_is_told_what_a_change_needs(settings: dict[str, str], access: str) -> None:
    async with admin_port("a", **settings) as port:
        assert (await port.ask("GET", "/board"))[1]["access"] == access


async def test_a_fleet_of_hostile_names_is_still_one_line_of_json() -> None:
    name = 'a\n\ndata: {"x":1}\r\nevent: state\u2028</script>'
    async with admin_port(name, "b") as port, watching(port) as watcher:
        await watcher.next()
        assert (await watcher.next())[1]["backends"][0]["name"] == name


async def test_held_requests_and_the_shadow_policy_are_told() -> None:
    """150 of 200 requests would have gone the same way; 60 % of their tokens expected to be cached, live 70 %."""
    async with admin_port("a") as port:
        quiet = (await port.ask("GET", "/board"))[1]
        assert (quiet["summary"]["held"], quiet["shadow"]) == (0, None)
        port.metrics.sources.held_requests = lambda: 7
        port.metrics.sources.shadow = lambda: ShadowFigures("ring", 200, 150, 1000.0, 600.0, 700.0, 1.2, 1.1)
        told = (await port.ask("GET", "/board"))[1]
        assert told["summary"]["held"] == 7
        assert told["shadow"] == {"policy": "ring", "agreed": 0.75, "expected": 0.6, "live_expected": 0.7}


async def test_a_removed_backend_is_shown_until_it_is_empty() -> None:
    async with admin_port("a", "b") as port:
        lease = port.fleet.lease(1)
        assert lease is not None
        port.fleet.apply(port.fleet.plan([spec("a")]), 100.0)
        told = (await port.ask("GET", "/board"))[1]
        assert [backend["name"] for backend in told["backends"]] == ["a"]
        assert told["leaving"] == [{"name": "b", "in_flight": 1}]
        lease.release()
        assert (await port.ask("GET", "/board"))[1]["leaving"] == []


async def test_what_the_configuration_has_to_say_is_an_alert() -> None:
    class Configured:
        def state(self) -> dict[str, Any]:
            return {"generation": 4, "last_error": "policy: must be", "needs_restart": ["listen", "tls.cert"]}

        def discovery_state(self) -> list[dict[str, Any]]:
            return [
                {"source": "dns engines", "error": None, "left_out": ["a", "b"]},
                {"source": "file x", "error": "gone", "left_out": []},
            ]

        def effective(self) -> str:
            return ""

    async with admin_port("a", deps={"config": Configured()}) as port:
        alerts = (await port.ask("GET", "/board"))[1]["alerts"]
    assert [(alert["level"], alert["text"]) for alert in alerts] == [
        ("bad", "a configuration was refused, 4 stays in force: policy: must be"),
        ("warn", "discovery by dns engines: left out, since others have the name or address: a, b"),
        ("warn", "discovery by file x: gone"),
        ("note", "changed in the configuration, and waiting for a restart: listen, tls.cert"),
    ]


async def test_alerts_tell_who_is_out_and_are_bounded() -> None:
    async with admin_port(*(f"gpu-{number:02}" for number in range(40))) as port:
        for backend in port.fleet.backends:
            port.fleet.record_refused(backend.slot, 100.0, 0.5)
        alerts = (await port.ask("GET", "/board"))[1]["alerts"]
        assert alerts[0]["code"] == "none_available"
        assert (alerts[1]["level"], alerts[1]["backend"]) == ("bad", "gpu-00")
        assert len(alerts) == 21
        assert alerts[-1]["text"] == "and 21 more: see the fleet below"


# The feed alone, with a state of our own.


@asynccontextmanager
async def feed(state: Any, tick_s: float = 0.001) -> AsyncIterator[tuple[Feed, AdminPort]]:
    """A port with nothing but a feed that makes `state()` each tick."""
    made = Feed(state, dict, tick_s)
    app = web.Application(middlewares=[errors_in_json])
    app.router.add_get("/events", made.events)
    app.on_shutdown.append(made.close)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    task = asyncio.create_task(made.run())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        port = AdminPort(None, None, None, f"http://127.0.0.1:{runner.addresses[0][1]}", session)  # type: ignore[arg-type]
        yield made, port
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await runner.cleanup()


class Counted:
    """A state that counts how often it was asked for."""

    def __init__(self, size: int = 0) -> None:
        self.made = 0
        self.text = "x" * size

    async def __call__(self) -> dict[str, Any]:
        self.made += 1
        return {"number": self.made, "text": self.text}


async def until_nobody_watches(made: Feed) -> None:
    async with asyncio.timeout(5):
        while made.watchers:
            await asyncio.sleep(0.005)


async def test_one_state_is_made_for_all_who_watch_and_none_for_nobody() -> None:
    state = Counted()
    async with feed(state, tick_s=3600) as (made, port), AsyncExitStack() as open_:
        assert state.made == 0
        watchers = [await open_.enter_async_context(watching(port)) for _ in range(20)]
        for watcher in watchers:
            assert (await watcher.next())[0] == "beginning"
            assert (await watcher.next())[1]["number"] in (1, 2)
        assert made.watchers == 20
        assert state.made <= 2  # what the first one found, and the tick that began with it


async def test_who_leaves_is_forgotten_and_then_nothing_is_made() -> None:
    state = Counted()
    async with feed(state) as (made, port):
        async with watching(port) as watcher:
            while (await watcher.next())[0] != "state":
                pass
        await until_nobody_watches(made)
        count = state.made
        for _ in range(20):
            await asyncio.sleep(0)
        assert state.made <= count + 1


async def test_too_many_watchers_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WATCHERS", 3)
    async with feed(Counted()) as (made, port), AsyncExitStack() as open_:
        watchers = [await open_.enter_async_context(watching(port)) for _ in range(3)]
        for watcher in watchers:
            await watcher.next()
        assert port.session is not None
        async with port.session.get(port.url + "/events") as reply:
            assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
            assert orjson.loads(await reply.read())["error"]["code"] == "too_many_watchers"
        await open_.aclose()
        await until_nobody_watches(made)
        async with watching(port) as watcher:
            assert (await watcher.next())[0] == "beginning"


async def test_who_reads_nothing_holds_little_and_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is a quarter of a megabyte; a reader without a window takes a few, and nobody else waits for it."""
    monkeypatch.setattr(events, "WRITE_LIMIT_S", 0.5)
    state = Counted(size=1 << 18)
    async with feed(state, tick_s=0.01) as (made, port):
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(idle, ("127.0.0.1", int(port.url.rpartition(":")[2])))
            await loop.sock_sendall(idle, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with watching(port) as watcher:
                seen = 0
                async with asyncio.timeout(20):
                    while made.watchers == 2 or seen < 3:
                        name, _ = await watcher.next()
                        assert name != "end"
                        seen += name == "state"
                assert made.watchers == 1


async def test_a_slow_reader_misses_states_and_never_gets_old_ones_twice() -> None:
    state = Counted()
    async with feed(state) as (_, port), watching(port) as watcher:
        await watcher.next()
        numbers = [(await watcher.next())[1]["number"] for _ in range(10)]
        assert numbers == sorted(set(numbers))


async def test_a_port_that_closes_lets_its_watchers_go() -> None:
    made = Feed(Counted(), dict, 3600)
    app = web.Application()
    app.router.add_get("/events", made.events)
    app.on_shutdown.append(made.close)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/events"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        watcher = Watcher(reply)
        assert (await watcher.next())[0] == "beginning"
        assert (await watcher.next())[0] == "state"
        async with asyncio.timeout(5):
            await runner.cleanup()
            assert (await watcher.next())[0] == "end"
    assert made.watchers == 0
