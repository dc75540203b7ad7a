"""The dashboard's live feed: GET /events, server-sent events, one state a second for everybody who watches.

Owns who watches and how much that may cost: a state is computed and encoded once a tick for all of them, and not at
all while there is nobody. A watcher holds no queue: one that reads slowly misses states, one that reads nothing for
WRITE_LIMIT_S is dropped. What a state holds is `board`'s matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from stickyroute.clock import monotonic
from stickyroute.control.board import Board
from stickyroute.control.deps import Deps
from stickyroute.control.history import STEP_S
from stickyroute.errors import NoBackend
from stickyroute.watch.supervisor import Supervisor

__all__ = ["add_routes"]

TICK_S = 1.0
WATCHERS = 64
"""At once; a person's browser is one, or one for each tab."""
WRITE_LIMIT_S = 10.0

_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


def add_routes(app: web.Application, deps: Deps) -> None:
    """GET /events and GET /board, the same once."""
    board = Board(deps)
    feed = Feed(board.state, board.history_points, TICK_S)
    app.router.add_get("/events", feed.events, allow_head=False)
    app.router.add_get("/board", feed.once)
    app.on_shutdown.append(feed.close)

    async def running(app: web.Application) -> AsyncIterator[None]:
        tasks = Supervisor()
        tasks.start("dashboard feed", feed.run)
        tasks.start("dashboard history", lambda: _each_step(board))
        yield
        await tasks.stop()

    app.cleanup_ctx.append(running)


async def _each_step(board: Board) -> None:
    while True:
        board.step(monotonic())
        await asyncio.sleep(STEP_S)


class Feed:
    """`state` gives what everybody gets each tick, `beginning` what a watcher gets first; both as JSON values."""

    def __init__(
        self, state: Callable[[], Awaitable[Any]], beginning: Callable[[], Any], tick_s: float
    ) -> None:
        self._state = state
        self._beginning = beginning
        self._tick_s = tick_s
        self._frame = b""
        self._number = 0
        self._next = asyncio.Event()
        self._someone = asyncio.Event()
        self._closing = False
        self.watchers = 0

    async def run(self) -> None:
        """Make a frame each tick while somebody watches. Runs until cancelled."""
        while True:
            await self._someone.wait()
            await self._make()
            await asyncio.sleep(self._tick_s)

    async def close(self, app: web.Application) -> None:
        """The port is to be closed: every watcher is let go."""
        self._closing = True
        self._turn()

    async def once(self, request: web.Request) -> web.Response:
        """What a watcher would get now, as one piece of JSON."""
        body = orjson.dumps({**self._beginning(), **await self._state()}, option=orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The feed, until the watcher leaves. 503 when there are too many."""
        if self.watchers >= WATCHERS or self._closing:
            raise NoBackend(
                f"{WATCHERS} watch already; close a page or try again later.",
                code="too_many_watchers",
                retry_after_s=5.0,
            )
        self.watchers += 1
        try:
            return await self._serve(request)
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._someone.clear()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers=_HEADERS)
        await reply.prepare(request)
        if not self._someone.is_set():
            await self._make()  # nobody watched, so what is there is old
            self._someone.set()
        try:
            await _send(reply, b"retry: 2000\n" + _event("beginning", self._beginning()))
            seen = 0
            while not self._closing:
                if seen == self._number:
                    await self._next.wait()
                    continue
                seen = self._number
                await _send(reply, self._frame)
        except (ConnectionError, TimeoutError):
            # It left, or reads nothing: what it has not read is dropped with the connection.
            if request.transport is not None:
                request.transport.abort()
        return reply

    async def _make(self) -> None:
        self._frame = _event("state", await self._state())
        self._number += 1
        self._turn()

    def _turn(self) -> None:
        turned, self._next = self._next, asyncio.Event()
        turned.set()


async def _send(reply: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_LIMIT_S):
        await reply.write(data)


def _event(name: str, value: Any) -> bytes:
    # orjson writes no line ends, so that the value is one line whatever is in it.
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(value))
