"""An admin port over a real socket, for the tests of whatever plugs into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from stickyroute import __version__
from stickyroute.control import Deps, build_admin
from stickyroute.fleet import BackendSpec, Fleet, Tuning
from stickyroute.metrics import Metrics
from stickyroute.settings import Settings

TOKEN = "admin-token-that-nobody-may-see"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class AdminPort:
    """A running admin port and what stands behind it. `settings` may be replaced."""

    fleet: Fleet
    metrics: Metrics
    settings: Settings
    url: str = ""
    session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and JSON body."""
        assert self.session is not None
        async with self.session.request(method, self.url + path, **more) as reply:
            assert reply.content_type == "application/json"
            return reply.status, orjson.loads(await reply.read())

    async def code(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        """Status and the code of the error."""
        status, answer = await self.ask(method, path, **more)
        return status, answer["error"]["code"]


def spec(name: str, weight: int = 1, port: int = 8000) -> BackendSpec:
    return BackendSpec(name=name, scheme="http", host="127.0.0.1", port=port, weight=weight)


@asynccontextmanager
async def admin_port(
    *names: str, deps: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[AdminPort]:
    """A fleet of backends called `names`, and the port over it; `settings` are the configuration's."""
    fleet = Fleet([spec(name) for name in names or ("a", "b")], 16, Tuning(index_entries=4096))
    made = Settings(backends=[{"name": "a", "url": "http://127.0.0.1:1"}], **settings)
    port = AdminPort(fleet, Metrics(fleet, __version__), made)
    app = build_admin(Deps(fleet=fleet, metrics=port.metrics, settings=lambda: port.settings, **(deps or {})))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as port.session:
        port.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield port
    await runner.cleanup()
