"""The client's side of an exchange: whole requests in their order, replies in the same order.

Owns one client connection: pipelining, keep-alive, time limits and the orderly or visible end of a reply.
Each whole request goes to `handler(connection, request)`, which either replies at once or puts a
`relay.Relay` on `connection.relay`. Nothing is known here about where requests go.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from stickyroute.clock import monotonic
from stickyroute.errors import StickyrouteError
from stickyroute.http.limits import Limits
from stickyroute.http.message import Request, status_line
from stickyroute.http.reader import IDLE, RequestReader

if TYPE_CHECKING:
    from stickyroute.http.relay import Relay
    from stickyroute.http.server import Server

# How long a refused upload is still read, so that the client gets to see the reply before a reset.
_LINGER_S: Final = 5.0


class ClientConnection:
    """One client connection. `relay` is the exchange whose reply is due now, None between replies.

    An `asyncio.Protocol` by its methods, not by inheritance: so it can be compiled.
    """

    __slots__ = (
        "_advancing",
        "_early",
        "_forwarded",
        "_handler",
        "_idle_since_s",
        "_lingering_s",
        "_owes_continue",
        "_pending",
        "_reader",
        "_reading_paused",
        "_server",
        "_stalled_s",
        "_transport",
        "_tunnel_abort",
        "closing",
        "descriptor",
        "limits",
        "peer",
        "queued_bytes",
        "relay",
        "write",
    )

    def __init__(
        self, server: Server, limits: Limits, handler: Callable[[ClientConnection, Request], None]
    ) -> None:
        self._server = server
        self._handler = handler
        self._reader = RequestReader(self, limits, server.make_request_id)
        self._pending: deque[tuple[Request, StickyrouteError | None]] = deque()
        self._advancing = False
        self._reading_paused = False
        self._owes_continue = False
        self._idle_since_s = monotonic()
        self._stalled_s = 0.0
        self._lingering_s = 0.0
        self._early = b""
        self.descriptor = -1  # of the socket, for direct writes; -1 if there must be none
        self.queued_bytes: Callable[[], int] = int
        self._tunnel_abort: Callable[[], None] | None = None
        self.limits = limits
        self.relay: Relay | None = None
        self.closing = False  # the connection ends after the reply that is due
        self.peer = ""
        self.write: Callable[[bytes], None] = _nowhere

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self.queued_bytes = self._transport.get_write_buffer_size
        if not transport.get_extra_info("sslcontext"):
            self.descriptor = transport.get_extra_info("socket").fileno()
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else "unknown"
        proto = b"https" if transport.get_extra_info("sslcontext") else b"http"
        self._forwarded = b"%b\r\nX-Forwarded-Proto: %b\r\n" % (self.peer.encode("latin-1", "replace"), proto)
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self.closing = True
        self._pending.clear()
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.client_left()

    def eof_received(self) -> bool:
        return False  # a client that stops sending has left; engines read it the same way

    def pause_writing(self) -> None:
        self._stalled_s = monotonic()
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        self._stalled_s = 0.0
        if self.relay is not None:
            self.relay.resume()
        elif self._pending and not self._transport.is_closing():
            self._advance()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.upgraded:
            self._hold_early(data)
            return
        if reader.refused or self.closing:
            return  # read and thrown away, so that the reply is not lost to a reset
        rest = reader.feed(data)
        if rest:
            self._hold_early(rest)
        if self._pending:
            if len(self._pending) >= self.limits.pipelined and not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
            if self.relay is None:
                self._advance()

    def write_now(self, data: bytes) -> None:
        """Write a piece of a stream by the socket itself, if nothing waits before it.

        The transport would queue it until the end of the loop's turn, which costs a fifth of all that a
        streamed token costs. What the socket does not take, and every error, is left to the transport.
        """
        transport = self._transport
        if self.descriptor >= 0 and not transport.is_closing() and not transport.get_write_buffer_size():
            try:
                sent = os.write(self.descriptor, data)
            except OSError:
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    # From the reader

    def on_request(self, request: Request, problem: StickyrouteError | None) -> None:
        """Queue a whole request (or a refusal), to be served in its turn."""
        self._owes_continue = False
        self._pending.append((request, problem))

    def on_continue_owed(self) -> None:
        """`Expect: 100-continue` is answered here, as soon as no earlier reply is due."""
        self._owes_continue = True
        self._pay_continue()

    def _pay_continue(self) -> None:
        if self._owes_continue and self.relay is None and not self._pending and not self.closing:
            self._owes_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Serving

    def _advance(self) -> None:
        """Hand over pending requests, one at a time, each after the reply to the one before.

        None for a client that does not take what it was sent: its replies would be kept in memory.
        """
        if self._advancing:
            return
        self._advancing = True
        pending = self._pending
        while pending and self.relay is None and not self.closing and not self._stalled_s:
            request, problem = pending.popleft()
            if self._reading_paused and len(pending) < self.limits.pipelined:
                self._reading_paused = False
                self._transport.resume_reading()
            if not request.keep_alive or self._server.stopping:
                self.closing = True
            if problem is None:
                self._handler(self, request)
            else:
                self._server.refuse(self, request, problem)
                self._linger()
        self._advancing = False
        if self.relay is None:
            self._settle()

    def _settle(self) -> None:
        """No reply is due: close if that was agreed, else wait for what comes."""
        if not self.closing:
            self._pay_continue()
        elif not self._lingering_s:
            self._transport.close()

    def reply(self, request: Request, status: int, body: bytes, lines: bytes) -> None:
        """Send a reply of our own, whole. `lines` are complete header lines."""
        keep = request.keep_alive and not self.closing
        if not keep:
            lines += b"connection: close\r\n"
        elif not request.minor_version:
            lines += b"connection: keep-alive\r\n"
        if status != 204:
            lines += b"content-length: %d\r\n" % len(body)
        head = status_line(status, b"") + lines + b"\r\n"
        self.write(head if request.method == b"HEAD" or status == 204 else head + body)
        self.response_done(keep)

    def response_done(self, keep_alive: bool) -> None:
        """The reply that was due is written: go on with the next request, or close."""
        self.relay = None
        self._idle_since_s = monotonic()
        if not keep_alive:
            self.closing = True
        if self._reader.phase != IDLE:
            self._reader.restart_clock()  # it may have waited for this reply, or for our `100 Continue`
        if self._advancing:
            return
        if self._pending and not self.closing:
            self._advance()
        else:
            self._settle()

    def break_off(self, *, abruptly: bool) -> None:
        """End a reply that cannot be completed so that the client sees it was cut.

        An unfinished chunked or sized body shows it by itself; a body that ends with the connection
        (`abruptly`) needs a reset, since an orderly close would look like its end.
        """
        self.relay = None
        self.closing = True
        self._idle_since_s = monotonic()
        if abruptly:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def shut(self) -> None:
        """Graceful shutdown: close now if nothing is due or under way, else after the reply that is.

        A tunnel may go on until the limit: whether it is idle only its ends know.
        """
        if self._tunnel_abort is not None:
            return
        if self.relay is not None or self._pending:
            self.closing = True
        elif self._reader.phase == IDLE:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._tunnel_abort is not None:
            self._tunnel_abort()
        else:
            self._transport.abort()

    def sweep(self, now_s: float) -> None:
        """Keep the time limits; see `limits.Limits`."""
        limits, relay = self.limits, self.relay
        if self._tunnel_abort is not None:
            return
        if self._lingering_s:
            if now_s > self._lingering_s:
                self._transport.abort()
        elif self._stalled_s and now_s - self._stalled_s > limits.client_write_s:
            self.relay = None
            if relay is not None:
                relay.client_left("client_stalled")
            self._transport.abort()
        elif relay is not None:
            relay.sweep(now_s)
        elif self._reader.phase != IDLE:
            if self._reader.overdue(now_s):
                self._advance()
        elif self._transport.is_closing():  # it still waits for the client to take the last bytes
            if now_s - self._idle_since_s > limits.client_write_s:
                self._transport.abort()
        elif now_s - self._idle_since_s > limits.client_idle_s and not self._stalled_s:
            self._idle_since_s = now_s
            self._transport.close()

    def forwarded_for(self, held: bytes | None) -> bytes:
        """The X-Forwarded-For and -Proto lines: what the client claimed, then its real address."""
        if held is None:
            return b"X-Forwarded-For: " + self._forwarded
        return b"X-Forwarded-For: " + held + b", " + self._forwarded

    def _linger(self) -> None:
        """Half-close and read on for a while: closing on unread bytes would reset the reply away."""
        self._lingering_s = monotonic() + _LINGER_S
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    # Upgrades

    def _hold_early(self, data: bytes) -> None:
        """Bytes of the new protocol that came before the backend agreed to it."""
        self._early += data
        if len(self._early) > self.limits.head_bytes and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """Give the transport to a tunnel, paused, with what the client has already sent."""
        if not self._reading_paused and not self._transport.is_closing():
            self._transport.pause_reading()
        early, self._early = self._early, b""
        return self._transport, early

    def on_tunnel(self, abort: Callable[[], None]) -> None:
        """A tunnel has taken the transport over; `abort` ends it."""
        self.relay = None
        self._tunnel_abort = abort

    def tunnel_over(self) -> None:
        """The tunnel is closed, and this connection with it."""
        self._tunnel_abort = None
        self.closing = True
        self._server.closed(self)


def _nowhere(data: bytes) -> None:
    """Where bytes go before there is a transport."""
