"""The listening socket and the set of client connections on it: accept, refuse, shut down in good order."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from stickyroute.errors import StickyrouteError
from stickyroute.http.limits import Limits
from stickyroute.http.listener import ClientConnection
from stickyroute.http.message import Request
from stickyroute.http.sweeper import Sweeper

_BACKLOG = 4096  # the kernel caps it at net.core.somaxconn
_ABORT_S = 1.0  # TLS tells the end of a connection a few turns of the loop later
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)


class Server:
    """Accepts clients for `handler`; `on_refused` words the reply to a request that never became whole."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        sweeper: Sweeper,
        handler: Callable[[ClientConnection, Request], None],
        on_refused: Callable[[ClientConnection, Request, StickyrouteError], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._sweeper = sweeper
        self._handler = handler
        self.refuse = on_refused
        self.connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._id_prefix = secrets.token_hex(5).encode()
        self._ids = 0
        self.stopping = False

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Start to accept; returns the port (0 lets the system choose one). Raises OSError."""
        server: Any = await self._loop.create_server(
            lambda: cast("asyncio.Protocol", ClientConnection(self, self._limits, self._handler)),
            host,
            port,
            ssl=tls,
            backlog=_BACKLOG,
            family=socket.AF_INET6 if ":" in host else socket.AF_UNSPEC,
        )
        self._server = server
        return int(server.sockets[0].getsockname()[1])  # any: uvloop has a list where asyncio has a tuple

    def make_request_id(self) -> bytes:
        """A request id unique to this process and, but for a 40-bit collision, among all processes."""
        self._ids += 1
        return b"%b%010x" % (self._id_prefix, self._ids)

    def opened(self, connection: ClientConnection) -> None:
        """A client connected. Past `max_connections` it is told so and closed.

        One that came in the last moment before the port closed is served: it could not know.
        """
        limit = self._limits.max_connections
        if limit is not None and len(self.connections) >= limit:
            connection.write(_FULL)
            connection.shut()
            return
        self.connections.add(connection)
        self._sweeper.add(connection)
        self._empty.clear()

    def closed(self, connection: ClientConnection) -> None:
        """A client connection is gone."""
        self.connections.discard(connection)
        self._sweeper.discard(connection)
        if not self.connections:
            self._empty.set()

    async def shut_down(self, grace_s: float) -> int:
        """Accept no more, finish what runs for `grace_s` seconds at most, drop the rest; returns how many."""
        self.stopping = True
        if self._server is not None:
            # Who waits to be accepted would be reset: two turns of the loop accept them all.
            for _ in range(2):
                await asyncio.sleep(0)
            self._server.close()
            await asyncio.sleep(0)
        for connection in tuple(self.connections):
            connection.shut()
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        left = tuple(self.connections)
        for connection in left:
            connection.abort()
        if left:
            try:
                async with asyncio.timeout(_ABORT_S):  # until each reported its end and is accounted for
                    await self._empty.wait()
            except TimeoutError:
                pass
        return len(left)
