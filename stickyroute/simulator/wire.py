"""HTTP/1.1 as uvicorn speaks it, as thin as can be: a simulated fleet answers tens of thousands of tokens a
second.

Owns parsing, framing, keep-alive and the ways a connection can end. Knows no engine and no dialect: a
complete request goes to the handler it was made with, which answers through `respond`, or `start_stream` and
`write`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Final, Protocol, cast

import httptools

JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream; charset=utf-8"
END_OF_CHUNKS: Final = b"0\r\n\r\n"

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    422: b"Unprocessable Entity",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


class Exchange(Protocol):
    """Who answers a request that takes time."""

    def left(self) -> None:
        """The client went away."""


class Request:
    """One complete request. `headers` are lower-cased; of a repeated one, the last counts."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "query")

    def __init__(
        self, method: str, target: bytes, headers: dict[bytes, bytes], body: bytes, keep_alive: bool
    ) -> None:
        self.method = method
        path, _, query = target.partition(b"?")
        self.path = path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Date:
    """The Date header, formatted once a second; one for all connections."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def __call__(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


class Connection(asyncio.Protocol):
    """One client connection. Requests are answered one at a time, in order; further ones wait."""

    def __init__(
        self, handler: Callable[[Connection, Request], None], connections: set[Connection], date: Date
    ) -> None:
        self.exchange: Exchange | None = None
        self.behind = b""
        """Header lines that come after all others in the reply to the request at hand."""
        self.idle_since_s = time.monotonic()
        self._handler = handler
        self._connections = connections
        self._date = date
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Request] = deque()
        self._answering = False
        self._taking = False
        self._close_after = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's isn't one by inheritance
        transport.set_write_buffer_limits(
            high=1 << 30
        )  # an engine generates on, however slowly its client reads
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._queue.clear()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.left()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._bad_request()
        except httptools.HttpParserError:
            self._bad_request()

    def eof_received(self) -> bool | None:
        return None  # a half-closed client is a client that left: the transport closes

    # httptools

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = {}
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("latin-1")
        body = b"".join(self._body)
        keep_alive = self._parser.should_keep_alive()
        self._queue.append(Request(method, self._target, self._headers, body, keep_alive))
        self._next()

    # answers

    @property
    def lost(self) -> bool:
        return self._transport is None

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes | None = JSON,
        headers: bytes = b"",
        vary: bool = True,
    ) -> None:
        """A whole reply. `headers` are further header lines, each with its CRLF."""
        kind = b"content-type: %b\r\n" % content_type if content_type is not None else b""
        self.write(
            b"HTTP/1.1 %d %b\r\ndate: %b\r\nserver: uvicorn\r\n%bcontent-length: %d\r\n%b%b%b%b\r\n%b"
            % (
                status,
                _REASONS[status],
                self._date(),
                headers,
                len(body),
                kind,
                b"vary: Origin\r\n" if vary else b"",
                self.behind,
                b"connection: close\r\n" if self._close_after else b"",
                body,
            )
        )
        self.finished()

    def start_stream(self) -> None:
        """The head of a chunked event stream; `write` chunks, then `END_OF_CHUNKS`, then call `finished`."""
        self.write(
            b"HTTP/1.1 200 OK\r\ndate: %b\r\nserver: uvicorn\r\ncontent-type: %b\r\nvary: Origin\r\n%b%b"
            b"transfer-encoding: chunked\r\n\r\n"
            % (self._date(), EVENTS, self.behind, b"connection: close\r\n" if self._close_after else b"")
        )

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self) -> None:
        """The reply is complete: the next request's turn."""
        self.exchange = None
        self._answering = False
        self.idle_since_s = time.monotonic()
        if self._close_after:
            self.close()
        elif self._queue and not self._taking:
            # Not at once: whoever finished may have more to deliver before a new request may change anything.
            asyncio.get_running_loop().call_soon(self._next)

    def close(self) -> None:
        """An orderly end, after what was written."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """An RST, as from a process that died."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def idle_s(self) -> float:
        """How long nothing has been asked here; 0 while a request is being answered."""
        return 0.0 if self._answering else time.monotonic() - self.idle_since_s

    def _next(self) -> None:
        if self._taking:
            return
        self._taking = True
        while self._queue and not self._answering and self._transport is not None:
            self._answering = True
            self.behind = b""
            request = self._queue.popleft()
            self._close_after = not request.keep_alive
            self._handler(self, request)
        self._taking = False

    def _bad_request(self) -> None:
        self._close_after = True
        if self._answering:
            self.close()
        else:
            self.respond(400, b"Invalid HTTP request received.", b"text/plain; charset=utf-8", vary=False)
