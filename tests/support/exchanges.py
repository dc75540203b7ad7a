"""One exchange between a client and a backend whose transports are ours: all else is real, so that it also runs
compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from stickyroute.fleet import Fleet
from stickyroute.http.limits import Limits
from stickyroute.http.listener import ClientConnection
from stickyroute.http.message import Request
from stickyroute.http.pool import BackendPool
from stickyroute.http.server import Server
from stickyroute.http.sweeper import Sweeper
from stickyroute.http.upstream import UpstreamConnection
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Route, Shape
from stickyroute.proxy.exchange import Exchange
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from tests.fleet.leased import everybody, fleet

LIMITS = Limits(1 << 20, 1 << 16, None, 8, 1.0, None, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0)
ROUTE = Route(Shape.CHAT, "/v1/chat/completions")


@dataclass
class Wire:
    """A transport: `descriptor` is the socket's, `queued` how much of what was written it has yet to send."""

    descriptor: int = -1
    queued: Callable[[], int] = int
    heard: Callable[[bytes], None] = id  # type: ignore[assignment]
    protocol: Any = None
    aborted: bool = False

    def write(self, data: bytes) -> None:
        self.heard(data)

    def get_write_buffer_size(self) -> int:
        return self.queued()

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.aborted

    def fileno(self) -> int:
        return self.descriptor

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self, "peername": ("127.0.0.1", 1)}.get(name)

    def resume_reading(self) -> None:
        """Nothing here pauses."""

    def abort(self) -> None:
        self.aborted = True


@dataclass
class Core:
    """A proxy that relays whatever comes; `ends` are the words that exchanges ended with."""

    ends: list[str] = field(default_factory=list)

    @property
    def blame(self) -> Core:
        return self

    def answered(self, exchange: Exchange) -> None:
        """The first byte."""

    def waited(self, exchange: Exchange, now_s: float) -> None:
        """None yet."""

    def wants(self, exchange: Exchange, status: int) -> bool:
        return True

    def relays(self, exchange: Exchange, status: int) -> None:
        """It does."""

    def excused(self, exchange: Exchange, failure: str) -> bool:
        raise AssertionError(failure)

    def attempt_failed(self, exchange: Exchange, failure: str) -> None:
        raise AssertionError(failure)

    def account(self, exchange: Exchange, end: str) -> None:
        self.ends.append(end)

    def begun(self, exchange: Exchange) -> None:
        """The first token."""

    def gave(self, exchange: Exchange, name: bytes) -> None:
        raise AssertionError(name)

    def reply_lines(self, exchange: Exchange) -> bytes:
        return b""


def client_of(transport: Wire) -> ClientConnection:
    loop = cast("asyncio.AbstractEventLoop", None)  # nothing here waits

    def nobody(*_: Any) -> None:
        raise AssertionError("nothing is asked")

    server = Server(loop, LIMITS, Sweeper(loop, 1.0), nobody, nobody)
    client = ClientConnection(server, LIMITS, nobody)
    client.connection_made(cast("asyncio.Transport", transport))
    return client


def exchange_of(
    client: ClientConnection, core: Core, keys: RequestKeys = NO_KEYS, of: Fleet | None = None
) -> Exchange:
    """A POST for a chat, of the only pool of `of`."""
    request = Request()
    request.method, request.request_id, request.wire_bytes = b"POST", b"r", 10
    asked = Asked("m", False, None)
    exchange = Exchange(core, client, request, ROUTE, asked, everybody(of or fleet()), keys)
    client.relay = exchange
    return exchange


def backend_of(transport: Wire) -> UpstreamConnection:
    loop = cast("asyncio.AbstractEventLoop", None)
    connection = UpstreamConnection(BackendPool(loop, "a", "127.0.0.1", 1, None, LIMITS))
    transport.protocol = connection
    connection.connection_made(cast("asyncio.Transport", transport))
    return connection
