"""Tiny engines for the watch's tests, on random ports: an aiohttp application or a raw server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class RawEngine:
    """A running raw server and the heads of the requests it got."""

    port: int
    asked: list[bytes] = field(default_factory=list)


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Engine:
    """A running engine: where it listens and what it was asked."""

    port: int
    asked: list[web.Request] = field(default_factory=list)


def models(*ids: str) -> Answer:
    """Answer with a list of models in the engines' form."""

    async def answer(request: web.Request) -> web.Response:
        rows = [{"id": name, "object": "model", "max_model_len": 4096} for name in ids]
        return web.json_response({"object": "list", "data": rows})

    return answer


def fixed(body: bytes | str, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        payload = body if isinstance(body, bytes) else body.encode()
        return web.Response(body=payload, status=status, headers=headers)

    return answer


@asynccontextmanager
async def engine(
    answer: Answer,
    *,
    path: str = "/v1/models",
    method: str = "GET",
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[Engine]:
    """Serve `answer` at `path`; every other path is a 404."""
    running = Engine(port=0)

    async def handle(request: web.Request) -> web.StreamResponse:
        running.asked.append(request)
        return await answer(request)

    app = web.Application()
    app.router.add_route(method, path, handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_address=True).start()
    running.port = runner.addresses[0][1]
    try:
        yield running
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_engine(reply: bytes | None) -> AsyncIterator[RawEngine]:
    """Answer each connection with these bytes once its request has come, then close; None: never answer."""
    running = RawEngine(port=0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            running.asked.append(await reader.readuntil(b"\r\n\r\n"))
            if reply is None:
                await reader.read()  # until the other side gives up
            else:
                writer.write(reply)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    async with server:
        yield running
