"""The fake backend itself: listening and dying on command, what to answer, what arrived and when."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

from tests.support.fake_backend.call import Call, Script, reset
from tests.support.fake_backend.connection import Connection
from tests.support.fake_backend.scripts import echo, reply

PROBES = {"/v1/models", "/health", "/metrics"}


class FakeBackend:
    """The server. `on(path, script)` says how to answer; else a small JSON reply tells what arrived."""

    def __init__(
        self,
        name: str = "a",
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        idle_close_s: float | None = None,
        models: Iterable[str] = ("m",),
        models_status: int = 200,
    ) -> None:
        self.name = name
        self.host = host
        self.tls = tls
        self.idle_close_s = idle_close_s
        self.models: list[dict[str, Any]] = [{"id": model, "object": "model"} for model in models]
        self.models_status = models_status
        self.health_status = 200
        self.metrics_text = ""
        self.rcvbuf: int | None = None
        self.refuse_reading = False
        """Accept connections and never read from them."""
        self.port = 0
        self.requests: list[Call] = []
        """Everything but the proxy's own probes."""
        self.probes: list[Call] = []
        self.completed: list[Call] = []
        self.connections: list[Connection] = []
        self.tunnelled = b""
        self.sent_bytes = 0
        """What peers have taken, but for what one transport buffers."""
        self._scripts: dict[str, Script] = {}
        self._server: asyncio.Server | None = None
        self._change = asyncio.Event()

    # Life.

    async def listen(self) -> FakeBackend:
        """Accept connections; on the same port as before, when there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self.host, self.port, ssl=self.tls, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones live on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.sleep(0)

    def drop_idle(self) -> None:
        """Close the connections on which nothing is being answered."""
        for connection in self.open:
            if connection.task is None or connection.task.done():
                connection.transport.close()

    async def die(self) -> None:
        """Stop listening and reset every connection, as a killed process does."""
        await self.refuse()
        for connection in self.open:
            if connection.task is not None:
                connection.task.cancel()
            reset(connection.transport)

    async def close(self) -> None:
        """Stop everything in good order."""
        await self.refuse()
        tasks = [c.task for c in self.connections if c.task is not None and not c.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self.open:
            connection.transport.abort()
        await asyncio.sleep(0)

    # Telling it what to do.

    def on(self, path: str, *scripts: Script) -> None:
        """How to answer a path ("*": all others). Several scripts are used in turn, the last for good."""
        left = list(scripts)

        async def in_turn(call: Call) -> None:
            await (left.pop(0) if len(left) > 1 else left[0])(call)

        self._scripts[path] = in_turn

    def script_for(self, call: Call) -> Script:
        script = self._scripts.get(call.path)
        if script is None and call in self.probes:
            return self._probe
        return script or self._scripts.get("*", echo)

    async def _probe(self, call: Call) -> None:
        if call.path == "/v1/models":
            rows = json.dumps({"object": "list", "data": self.models}).encode()
            await reply(self.models_status, rows)(call)
        elif call.path == "/health":
            await reply(self.health_status, b"")(call)
        else:
            await reply(200, self.metrics_text.encode(), fields=[("Content-Type", "text/plain")])(call)

    # What it saw.

    def note(self, call: Call) -> None:
        probe = call.method == "GET" and any(call.path.endswith(path) for path in PROBES)
        (self.probes if probe else self.requests).append(call)
        self.changed()

    def changed(self) -> None:
        self._change.set()

    async def until(self, true: Callable[[], object], timeout_s: float = 10) -> None:
        """Wait until `true()` holds, looked at whenever something happens here."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._change.clear()
                await self._change.wait()

    async def arrived(self, count: int = 1, timeout_s: float = 10) -> Call:
        """Wait for the `count`-th request; returns it."""
        await self.until(lambda: len(self.requests) >= count, timeout_s)
        return self.requests[count - 1]

    @property
    def open(self) -> list[Connection]:
        return [connection for connection in self.connections if not connection.lost]

    @property
    def used(self) -> set[Connection]:
        """The connections that carried requests, those of the proxy's own probes left out."""
        return {call.connection for call in self.requests}

    @property
    def executed(self) -> list[str | None]:
        """The request ids that were begun here, in order."""
        return [call.request_id for call in self.requests]

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """This backend as an entry of the configuration."""
        return {"name": self.name, "url": self.url, **more}


@asynccontextmanager
async def fakes(*names: str, **options: Any) -> Any:
    """Listening fake backends, one for each name."""
    backends = [await FakeBackend(name, **options).listen() for name in names or ("a",)]
    try:
        yield backends if len(backends) > 1 else backends[0]
    finally:
        for backend in backends:
            await backend.close()


class Canary:
    """A listener that must never be contacted."""

    def __init__(self) -> None:
        self.contacts = 0

    async def __aenter__(self) -> Self:
        def contacted() -> asyncio.Protocol:
            self.contacts += 1
            return asyncio.Protocol()

        self._server = await asyncio.get_running_loop().create_server(contacted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.sleep(0)
