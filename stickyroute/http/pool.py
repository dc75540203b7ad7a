"""Connections to one backend: the idle ones, newest first, and the opening of further ones.

There is no cap on concurrency here: a cap is the fleet's business (`max_in_flight`) and is answered, not
queued. Idle connections are dropped before uvicorn-based engines drop theirs (5 s), which keeps the race of
a request with the closing of its connection rare; `upstream` and `proxy` make what is left of it harmless.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import Final, cast

from stickyroute.clock import monotonic
from stickyroute.http.limits import Limits
from stickyroute.http.relay import Relay
from stickyroute.http.upstream import UpstreamConnection

# Words for why no connection could be opened; they are metric labels, beside those of `upstream`.
CONNECT_REFUSED: Final = "refused"
CONNECT_TIMEOUT: Final = "connect_timeout"
CONNECT_FAILED: Final = "unreachable"
CONNECT_TLS: Final = "tls"
CONNECT_FAILURES: Final = frozenset({CONNECT_REFUSED, CONNECT_TIMEOUT, CONNECT_FAILED, CONNECT_TLS})
NO_SOCKET: Final = "no_socket"  # this machine has none to give: no fault of the backend

_OUR_WANT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class BackendPool:
    """Connections to `host`:`port`. `tls` is None for plain HTTP."""

    __slots__ = (
        "_host", "_idle", "_limits", "_loop", "_name", "_open", "_port", "_retired", "_tasks", "_tls"
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._loop = loop
        self._name = name
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits
        self._idle: dict[UpstreamConnection, None] = {}
        self._open: set[UpstreamConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired = False

    @property
    def idle(self) -> int:
        """How many connections wait for work."""
        return len(self._idle)

    def send(self, relay: Relay, head: bytes, body: bytes, *, fresh: bool = False) -> None:
        """Send a request over an idle connection, or over a new one (always, when `fresh`).

        Returns at once. A failure to connect reaches `relay.failed` with one of CONNECT_FAILURES, or
        NO_SOCKET.
        """
        idle = self._idle
        if idle and not fresh:
            oldest_s = monotonic() - self._limits.upstream_idle_s
            while idle:
                connection, _ = idle.popitem()
                if connection.usable and connection.idle_since_s > oldest_s:
                    connection.start(relay, head, body)
                    return
                connection.abort()
        task = self._loop.create_task(self._connect(relay, head, body), name=f"connect {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, relay: Relay, head: bytes, body: bytes) -> None:
        failure = ""
        try:
            async with asyncio.timeout(self._limits.connect_s):
                _, protocol = await self._loop.create_connection(
                    lambda: cast("asyncio.Protocol", UpstreamConnection(self)),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            failure = CONNECT_TIMEOUT
        except ConnectionRefusedError:
            failure = CONNECT_REFUSED
        except ssl.SSLError:
            failure = CONNECT_TLS
        except OSError as exc:  # unreachable, unresolvable
            failure = NO_SOCKET if exc.errno in _OUR_WANT else CONNECT_FAILED
        except UnicodeError:  # not a name at all
            failure = CONNECT_FAILED
        if failure:
            if not relay.over:
                relay.failed(failure)
            return
        connection = cast("UpstreamConnection", protocol)
        if not connection.usable:  # lost already, and if so without a word to come
            connection.abort()
            if not relay.over:
                relay.failed(CONNECT_FAILED)
            return
        self._open.add(connection)
        if relay.over:  # the client left meanwhile
            self.give_back(connection)
        else:
            connection.start(relay, head, body)

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request."""
        if self._retired:
            connection.abort()
            return
        connection.fresh = False
        connection.idle_since_s = monotonic()
        self._idle[connection] = None

    def lost(self, connection: UpstreamConnection) -> None:
        """A connection is closed or was given away."""
        self._idle.pop(connection, None)
        self._open.discard(connection)

    def sweep(self, now_s: float) -> None:
        """Close connections that were idle for too long (the oldest come first)."""
        oldest_s = now_s - self._limits.upstream_idle_s
        expired = []
        for connection in self._idle:
            if connection.idle_since_s > oldest_s:
                break
            expired.append(connection)
        for connection in expired:
            del self._idle[connection]
            connection.abort()

    def close_idle(self) -> None:
        """Close what waits for work."""
        for connection in tuple(self._idle):
            connection.abort()
        self._idle.clear()

    def retire(self) -> None:
        """There will be no next request: what runs ends in peace, and its connection with it."""
        self._retired = True
        self.close_idle()

    @property
    def over(self) -> bool:
        """Whether nothing is open or being opened."""
        return not self._open and not self._tasks

    async def close(self) -> None:
        """Drop every connection and every attempt to open one."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in tuple(self._open):
            connection.abort()
        self._idle.clear()
