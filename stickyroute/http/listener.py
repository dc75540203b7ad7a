"""The client's side: an HTTP/1.1 server protocol on httptools that hands over whole requests.

Owns one client connection: parsing, limits on size and time, pipelining, keep-alive, the order of replies.
Each whole request goes to `handler(connection, request)`, which either replies at once or puts a
`relay.Relay` on `connection.relay`. Nothing is known here about where requests go.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools

from stickyroute.clock import monotonic
from stickyroute.errors import BadRequest, StickyrouteError, TooLarge
from stickyroute.http.limits import Limits
from stickyroute.http.message import (
    REQUEST_OWN,
    Request,
    nominated,
    origin_form,
    sane_id,
    status_line,
    without,
)

if TYPE_CHECKING:
    from stickyroute.http.relay import Relay
    from stickyroute.http.server import Server

# A body must average this much once `client_body_s` has passed, else a patient attacker could hold a
# connection with one byte every few seconds (the rate Apache's mod_reqtimeout ships with).
_MIN_BODY_BYTES_PER_S = 500
# How long a refused upload is still read, so that the client gets to see the reply before a reset.
_LINGER_S = 5.0

_IDLE, _HEAD, _BODY = range(3)


class ClientConnection(asyncio.Protocol):
    """One client connection. `relay` is the exchange whose reply is due now, None between replies."""

    __slots__ = (
        "_advancing",
        "_body_bytes",
        "_body_since_s",
        "_early",
        "_forwarded",
        "_handler",
        "_head_bytes",
        "_head_raw",
        "_hosts",
        "_lingering_s",
        "_make_id",
        "_moved_s",
        "_owed_continue",
        "_parser",
        "_pending",
        "_phase",
        "_pieces",
        "_plain_again",
        "_reading_paused",
        "_refused",
        "_replaying",
        "_request",
        "_server",
        "_stalled_s",
        "_target",
        "_transport",
        "_tunnel_abort",
        "_upgraded",
        "_wire_bytes",
        "closing",
        "limits",
        "peer",
        "relay",
        "write",
    )

    def __init__(
        self, server: Server, limits: Limits, handler: Callable[[ClientConnection, Request], None]
    ) -> None:
        self._server = server
        self._handler = handler
        self.limits = limits
        self.relay: Relay | None = None
        self.closing = False  # the connection ends after the reply that is due
        self.peer = ""
        self.write: Callable[[bytes], None] = _nowhere
        self._make_id = server.make_request_id
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[tuple[Request, StickyrouteError | None]] = deque()
        self._request = Request()
        self._pieces: list[bytes] = []
        self._target = b""
        self._body_bytes = self._head_bytes = self._head_raw = self._wire_bytes = self._hosts = 0
        self._phase = _IDLE
        self._moved_s = monotonic()  # when the phase began, or the body last moved
        self._body_since_s = 0.0
        self._stalled_s = 0.0
        self._lingering_s = 0.0
        self._advancing = self._refused = self._reading_paused = False
        self._owed_continue = False
        self._upgraded = self._plain_again = self._replaying = False
        self._early = b""
        self._tunnel_abort: Callable[[], None] | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
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

    def data_received(self, data: bytes) -> None:
        if self._upgraded:
            self._hold_early(data)
            return
        if self._refused or self.closing:
            return  # read and thrown away, so that the reply is not lost to a reset
        seen = self._body_bytes
        if self._phase == _IDLE:
            self._moved_s = monotonic()
            self._phase = _HEAD
            self._head_raw = 0
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._on_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as exc:
            # What follows a request that said `Connection: close` is not a request.
            if not (self._pending and not self._pending[-1][0].keep_alive) and not (
                self.relay is not None and not self.relay.request.keep_alive
            ):
                self._refuse(BadRequest(f"malformed HTTP request: {exc}", code="malformed_http"))
        if self._phase == _HEAD:
            self._head_raw += len(data)  # the parser shows a field only when it is whole
            if self._head_raw > self.limits.head_bytes:
                self._refuse(_head_too_large(self.limits.head_bytes))
        elif self._phase == _BODY and self._body_bytes != seen:
            self._moved_s = monotonic()
        if self._pending:
            if len(self._pending) >= self.limits.pipelined and not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
            if self.relay is None:
                self._advance()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._request = Request()
        self._target = b""
        self._hosts = 0
        self._head_bytes = 0
        if self._phase != _HEAD:  # pipelined behind another request in the same read
            self._phase = _HEAD
            self._moved_s = monotonic()

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._target += url
            self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase != _HEAD or self._replaying:  # trailers must not change what was decided on the head
            return
        self._head_bytes += len(name) + len(value) + 4
        request = self._request
        lower = name.lower()
        if lower not in REQUEST_OWN:
            request.lines.append(b"%b: %b\r\n" % (name, value))
            request.headers.setdefault(lower, value)
        elif lower == b"host":
            self._hosts += 1
            request.headers[lower] = value
        else:
            held = request.headers.get(lower)
            request.headers[lower] = value if held is None else held + b", " + value

    def on_headers_complete(self) -> None:
        if self._replaying:
            self._replaying = False
            return
        request, parser = self._request, self._parser
        self._phase = _BODY
        self._pieces.clear()
        self._body_bytes = 0
        self._body_since_s = request.started_s = now_s = monotonic()
        self._moved_s = now_s
        request.method = parser.get_method()
        request.target = target = origin_form(self._target)
        query = target.find(b"?")
        request.path = target if query < 0 else target[:query]
        headers = request.headers
        client_id = headers.get(b"x-request-id")
        request.request_id = client_id if client_id is not None and sane_id(client_id) else self._make_id()
        version = parser.get_http_version()
        request.minor_version = 0 if version == "1.0" else 1
        connection = headers.get(b"connection")
        if connection is not None and (names := nominated(connection)):
            request.lines = without(request.lines, names)
            for name in names & headers.keys():
                if name not in REQUEST_OWN:
                    del headers[name]
        problem = self._check_head(version)
        if problem is not None:
            self._refuse(problem)

    def _check_head(self, version: str) -> StickyrouteError | None:
        request, headers = self._request, self._request.headers
        if version not in ("1.1", "1.0"):
            return BadRequest("only HTTP/1.1 and HTTP/1.0 are spoken here", status=505, code="http_version")
        if self._hosts != 1 and (self._hosts or request.minor_version):
            return BadRequest("exactly one Host field is required", code="malformed_http")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or not request.minor_version):
            return BadRequest(
                "only `Transfer-Encoding: chunked` is accepted", status=501, code="transfer_coding"
            )
        if self._head_bytes > self.limits.head_bytes:
            return _head_too_large(self.limits.head_bytes)
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.limits.body_bytes:
            return _body_too_large(self.limits.body_bytes)
        expect = headers.get(b"expect")
        if expect is not None and request.minor_version:
            if expect.lower() != b"100-continue":
                return BadRequest("unknown expectation", status=417, code="expectation_failed")
            if coding is not None or (length is not None and int(length)):
                self._owed_continue = True
                self._maybe_continue()
        return None

    def on_body(self, data: bytes) -> None:
        if self._refused:
            return
        self._body_bytes += len(data)
        self._owed_continue = False
        if self._body_bytes > self.limits.body_bytes:
            self._refuse(_body_too_large(self.limits.body_bytes))
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._refused:
            return
        request, pieces = self._request, self._pieces
        if self._parser.should_upgrade():
            protocol = request.headers.get(b"upgrade", b"").strip().lower()
            if protocol == b"websocket":
                request.upgrade = protocol
            elif request.method != b"CONNECT":
                self._plain_again = True  # e.g. h2c: an offer we decline; the body is still to come
                return
        self._owed_continue = False
        request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        request.keep_alive = self._parser.should_keep_alive()
        request.wire_bytes, self._wire_bytes = self._wire_bytes, 0
        self._phase = _IDLE
        self._moved_s = monotonic()
        self._pending.append((request, None))

    # Serving

    def _advance(self) -> None:
        """Hand over pending requests, one at a time, each after the reply to the one before."""
        if self._advancing:
            return
        self._advancing = True
        pending = self._pending
        while pending and self.relay is None and not self.closing:
            request, problem = pending.popleft()
            if self._reading_paused and len(pending) < self.limits.pipelined:
                self._reading_paused = False
                self._transport.resume_reading()
            if not request.keep_alive or self._server.stopping:
                self.closing = True
            if problem is None:
                self._handler(self, request)
            else:
                self.closing = True
                self._server.reply_refused(self, request, problem)
                self._linger()
        self._advancing = False
        if self.closing and self.relay is None and not self._lingering_s:
            self._transport.close()
        elif self._owed_continue:
            self._maybe_continue()

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
        self._moved_s = monotonic()
        if not keep_alive or self._upgraded:
            self.closing = True
        if self._advancing:
            return
        if self._pending and not self.closing:
            self._advance()
        elif self.closing:
            self._transport.close()
        elif self._owed_continue:
            self._maybe_continue()

    def break_off(self, *, abruptly: bool) -> None:
        """End a reply that cannot be completed so that the client sees it was cut.

        An unfinished chunked or sized body shows it by itself; a body that ends with the connection
        (`abruptly`) needs a reset, since an orderly close would look like its end.
        """
        self.relay = None
        self.closing = True
        if abruptly:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def shut(self) -> None:
        """Graceful shutdown: close now if nothing is due, else after the reply that is."""
        if self.relay is None and not self._pending and self._phase == _IDLE:
            self._transport.close()
        else:
            self.closing = self.closing or self.relay is not None or bool(self._pending)

    def abort(self) -> None:
        """Drop the connection now."""
        self._transport.abort()
        if self._tunnel_abort is not None:
            self._tunnel_abort()

    def sweep(self, now_s: float) -> None:
        """Keep the time limits; see `limits.Limits`."""
        limits = self.limits
        if self._lingering_s:
            if now_s > self._lingering_s:
                self._transport.abort()
            return
        relay = self.relay
        if self._stalled_s and now_s - self._stalled_s > limits.client_write_s:
            self.relay = None
            if relay is not None:
                relay.client_left("client_stalled")
            self._transport.abort()
            return
        if relay is not None:
            relay.sweep(now_s)
            return
        if self._tunnel_abort is not None or self._pending:
            return
        waited_s = now_s - self._moved_s
        if self._phase == _IDLE:
            if waited_s > limits.client_idle_s:
                self._transport.close()
        elif self._phase == _HEAD:
            if waited_s > limits.client_head_s:
                self._time_out("the request head took too long")
        elif waited_s > limits.client_body_s or (
            now_s - self._body_since_s > limits.client_body_s + self._body_bytes / _MIN_BODY_BYTES_PER_S
        ):
            self._time_out("the request body took too long")

    def forwarded_for(self, held: bytes | None) -> bytes:
        """The X-Forwarded-For and -Proto lines: what the client claimed, then its real address."""
        if held is None:
            return b"X-Forwarded-For: " + self._forwarded
        return b"X-Forwarded-For: " + held + b", " + self._forwarded

    # Refusals

    def _refuse(self, problem: StickyrouteError) -> None:
        """Reply to the current request with an error, in its turn, and read no further request."""
        if self._refused:
            return
        self._refused = True
        self._owed_continue = False
        self._phase = _IDLE
        self._pieces.clear()
        request = self._request
        request.keep_alive = False
        request.request_id = request.request_id or self._make_id()
        request.started_s = request.started_s or monotonic()
        self._pending.append((request, problem))
        if self.relay is None and not self._advancing:
            self._advance()

    def _time_out(self, message: str) -> None:
        self._refuse(BadRequest(message, status=408, code="request_timeout"))

    def _linger(self) -> None:
        """Half-close and read on for a while: closing on unread bytes would reset the reply away."""
        self._lingering_s = monotonic() + _LINGER_S
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _maybe_continue(self) -> None:
        """Answer `Expect: 100-continue`, unless an earlier reply has yet to be finished."""
        if self.relay is None and not self._pending and not self.closing:
            self._owed_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Upgrades

    def _on_upgrade(self, rest: bytes) -> None:
        if not self._plain_again:
            self._upgraded = True
            self._hold_early(rest)
            return
        # An upgrade that we do not offer: parse on as if it had not been asked for. A fresh parser is given
        # just the framing, then what followed the head.
        self._plain_again = False
        headers = self._request.headers
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        framing = (
            b"Transfer-Encoding: chunked\r\n" if coding else b"Content-Length: %b\r\n" % (length or b"0")
        )
        keep = b"" if self._request.minor_version else b"Connection: close\r\n"
        request, target = self._request, self._target
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        phase = self._phase
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + keep + framing)
        self._request, self._target, self._phase = request, target, phase
        self._parser.feed_data(b"\r\n" + rest)

    def _hold_early(self, data: bytes) -> None:
        """Bytes of the new protocol that came before the backend agreed to it."""
        self._early += data
        if len(self._early) > self.limits.head_bytes:
            self._transport.pause_reading()

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """Give the transport to a tunnel, paused, with what the client has already sent."""
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


def _head_too_large(limit: int) -> StickyrouteError:
    return BadRequest(f"the request head is over {limit} bytes", status=431, code="request_head_too_large")


def _body_too_large(limit: int) -> StickyrouteError:
    return TooLarge(f"the request body is over the limit of {limit} bytes (`limits.body_bytes`)")
