"""Requests out of a client's bytes: parsing, size limits, and everything that makes a request unacceptable.

Owns the parser of one client connection and the request under construction. Whole requests and refusals go to
`sink` in the order of their arrival; nothing is ever half delivered. Knows nothing of replies or transports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import httptools

from stickyroute.clock import monotonic
from stickyroute.errors import BadRequest, StickyrouteError, TooLarge
from stickyroute.http.limits import Limits
from stickyroute.http.message import REQUEST_OWN, Request, nominated, origin_form, sane_id, without

# A body must average this much once `client_body_s` has passed, else a patient attacker could hold a
# connection with one byte every few seconds (the rate Apache's mod_reqtimeout ships with).
_MIN_BODY_BYTES_PER_S: Final = 500

# More pieces of a body than this in one read are joined: tiny chunks, each an object many times its size.
_PIECES: Final = 16

IDLE: Final = 0
HEAD: Final = 1
BODY: Final = 2


class Sink(Protocol):
    """Who takes what is read."""

    def on_request(self, request: Request, problem: StickyrouteError | None) -> None:
        """A whole request; with `problem`, one to be refused, after which nothing more is read."""

    def on_continue_owed(self) -> None:
        """The client waits for `100 Continue` before it sends the body."""


class RequestReader:
    """Feed it bytes. `phase`: IDLE between requests, HEAD or BODY within; `upgraded`: HTTP has ended here."""

    __slots__ = (
        "_body_bytes",
        "_body_since_s",
        "_head_bytes",
        "_head_raw",
        "_hosts",
        "_last_keeps_alive",
        "_limits",
        "_make_id",
        "_parser",
        "_pieces",
        "_plain_again",
        "_read_bytes",
        "_replaying",
        "_request",
        "_shared_bytes",
        "_sink",
        "_target",
        "_wire_bytes",
        "moved_s",
        "phase",
        "refused",
        "upgraded",
    )

    def __init__(self, sink: Sink, limits: Limits, make_id: Callable[[], bytes]) -> None:
        self._sink = sink
        self._limits = limits
        self._make_id = make_id
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._pieces: list[bytes] = []
        self._target = b""
        self._body_bytes = self._head_bytes = self._head_raw = self._wire_bytes = self._hosts = 0
        self._read_bytes = 0  # of the read at hand
        self._shared_bytes = 0  # the same, once an earlier request ended in it: no telling whose they are
        self._body_since_s = 0.0
        self._plain_again = self._replaying = False
        self._last_keeps_alive = True
        self.phase = IDLE
        self.moved_s = monotonic()  # when the phase began, or the body last moved
        self.refused = False
        self.upgraded = False

    def feed(self, data: bytes) -> bytes:
        """Read on. Returns what follows an upgrade request, which is no longer HTTP."""
        seen, held = self._body_bytes, len(self._pieces)
        self._read_bytes = len(data)
        self._shared_bytes = 0
        self._wire_bytes += len(data)
        rest = self._parse(data)
        if self.phase == IDLE:
            return rest
        if self.phase == BODY and self._body_bytes != seen:
            self.moved_s = monotonic()
            self._head_raw = 0
            if len(self._pieces) > held + _PIECES:
                self._pieces[held:] = [b"".join(self._pieces[held:])]
        else:
            # A head, or what a chunked body has beside its bytes (extensions, trailers): the parser holds a
            # field until it is whole.
            self._head_raw += len(data)
            if self._head_raw > self._limits.head_bytes:
                self.refuse(_head_too_large(self._limits.head_bytes))
        return rest

    def restart_clock(self) -> None:
        """The time until now was not the client's: count its slowness from here."""
        self.moved_s = self._body_since_s = monotonic()

    def _parse(self, data: bytes | memoryview) -> bytes:
        """Run the parser over `data`, past every upgrade we decline; returns what follows another one."""
        while True:
            try:
                self._parser.feed_data(data)
                return b""
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]  # not copied: a read may hold very many of them
                if not self._plain_again:
                    self.upgraded = True
                    return bytes(data)
                self._go_on_plainly()
            except httptools.HttpParserError as exc:
                # What follows a request that said `Connection: close` is not a request.
                if self._last_keeps_alive:
                    self.refuse(BadRequest(f"Malformed HTTP request: {exc}.", code="malformed_http"))
                return b""

    def overdue(self, now_s: float) -> bool:
        """Refuse a request that arrives too slowly; whether it did."""
        limits, waited_s = self._limits, now_s - self.moved_s
        if self.phase == HEAD and waited_s > limits.client_head_s:
            self.refuse(_timed_out("The request head took too long."))
        elif self.phase == BODY and (
            waited_s > limits.client_body_s
            or now_s - self._body_since_s > limits.client_body_s + self._body_bytes / _MIN_BODY_BYTES_PER_S
        ):
            self.refuse(_timed_out("The request body took too long."))
        return self.refused

    def refuse(self, problem: StickyrouteError) -> None:
        """Turn the request under construction into a refusal, and read no further one."""
        if self.refused:
            return
        self.refused = True
        self.phase = IDLE
        self._pieces.clear()
        request = self._request
        request.keep_alive = False
        request.request_id = request.request_id or self._make_id()
        request.started_s = request.started_s or monotonic()
        self._sink.on_request(request, problem)

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._request = Request()
        self._target = b""
        self._hosts = 0
        self._head_bytes = 0
        self._head_raw = -self._shared_bytes
        self.phase = HEAD
        self.moved_s = monotonic()

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._target += url
            self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase != HEAD:  # trailers must not change what was decided on the head
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
        self.phase = BODY
        self._pieces.clear()
        self._body_bytes = 0
        self.moved_s = self._body_since_s = request.started_s = monotonic()
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
            for name in names - REQUEST_OWN:
                headers.pop(name, None)
        problem = self._check_head(version)
        if problem is not None:
            self.refuse(problem)

    def _check_head(self, version: str) -> StickyrouteError | None:
        request, headers, limits = self._request, self._request.headers, self._limits
        if version not in ("1.1", "1.0"):
            return BadRequest("Only HTTP/1.1 and HTTP/1.0 are spoken here.", status=505, code="http_version")
        if self._hosts != 1 and (self._hosts or request.minor_version):
            return BadRequest("Exactly one Host field is required.", code="malformed_http")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or not request.minor_version):
            return BadRequest("`Transfer-Encoding` must be `chunked`.", status=501, code="transfer_coding")
        if self._head_bytes > limits.head_bytes:
            return _head_too_large(limits.head_bytes)
        length = headers.get(b"content-length")
        if length is not None and int(length) > limits.body_bytes:
            return _body_too_large(limits.body_bytes)
        expect = headers.get(b"expect")
        if expect is not None and request.minor_version:
            if expect.lower() != b"100-continue":
                return BadRequest(
                    "Unknown expectation: only `100-continue` is known.",
                    status=417,
                    code="expectation_failed",
                )
            if coding is not None or (length is not None and int(length)):
                self._sink.on_continue_owed()
        return None

    def on_body(self, data: bytes) -> None:
        if self.refused:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            self.refuse(_body_too_large(self._limits.body_bytes))
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.refused:
            return
        request, pieces = self._request, self._pieces
        request.keep_alive = self._parser.should_keep_alive()
        if self._parser.should_upgrade():
            protocol = request.headers.get(b"upgrade", b"").strip().lower()
            if protocol == b"websocket":
                request.upgrade = protocol
            elif request.method != b"CONNECT":
                self._plain_again = True  # e.g. h2c: an offer we decline; the body is still to come
                return
            request.keep_alive = False  # whatever comes of it, no further HTTP request can follow
        request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._last_keeps_alive = request.keep_alive
        request.wire_bytes, self._wire_bytes = self._wire_bytes, 0
        self._shared_bytes = self._read_bytes
        self.phase = IDLE
        self.moved_s = monotonic()
        self._sink.on_request(request, None)

    def _go_on_plainly(self) -> None:
        """As if no upgrade had been asked for: a fresh parser is told the framing, the body comes next."""
        self._plain_again = False
        headers = self._request.headers
        length = headers.get(b"content-length", b"0")
        framing = b"Content-Length: %b\r\n" % length
        if b"transfer-encoding" in headers:
            framing = b"Transfer-Encoding: chunked\r\n"
        keep = b"keep-alive" if self._request.keep_alive else b"close"
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\nConnection: %b\r\n%b\r\n" % (keep, framing))


def _head_too_large(limit: int) -> StickyrouteError:
    return BadRequest(f"The request head is over {limit} bytes.", status=431, code="request_head_too_large")


def _body_too_large(limit: int) -> StickyrouteError:
    return TooLarge(f"The request body is over the limit of {limit} bytes (`limits.body_bytes`).")


def _timed_out(message: str) -> StickyrouteError:
    return BadRequest(message, status=408, code="request_timeout")
