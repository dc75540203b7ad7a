"""The backend's side of an exchange: an HTTP/1.1 client protocol on httptools, one request at a time.

Owns one connection and the parsing of replies on it. Knows its pool (to give itself back) and its relay (to
hand over what arrives); it must not know why it was chosen.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import httptools

from stickyroute.http.lane import Lane, lane

if TYPE_CHECKING:
    from stickyroute.http.pool import BackendPool
    from stickyroute.http.relay import Relay

from stickyroute.http.message import RESPONSE_OWN

# Words for what can go wrong with an attempt; they are metric labels.
STALE: Final = "stale"  # a pooled connection closed before a byte of the reply, most likely unseen
DROPPED: Final = "dropped"  # a fresh connection closed before a byte of the reply
BROKEN: Final = "broken"  # closed inside the head or the body of the reply
GARBAGE: Final = "garbage"  # not HTTP

_LF: Final = 10

# What a backend may send before the head of its reply is complete, 1xx replies included: it stays in memory.
_HEAD_BYTES: Final = 256 * 1024


class UpstreamConnection:
    """One connection to a backend. `own`: the reply's fields that we handle, `lines`: those copied.

    An `asyncio.Protocol` by its methods, not by inheritance: so it can be compiled.
    """

    __slots__ = (
        "_done",
        "_eof_ends_body",
        "_error",
        "_extra",
        "_final",
        "_head_ready",
        "_in_body",
        "_keep",
        "_lane",
        "_open",
        "_parser",
        "_pieces",
        "_pool",
        "_relay",
        "_rest",
        "_switched",
        "_transport",
        "between_chunks",
        "fresh",
        "heard",
        "idle_since_s",
        "lines",
        "on_body",
        "on_chunk_complete",
        "on_chunk_header",
        "own",
        "reason",
        "status",
    )

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool
        self._relay: Relay | None = None
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        # Called by the parser for each piece of a body: a C function, so a piece costs no Python frame.
        self.on_body = self._pieces.append
        # Likewise in C: not empty while the parser is inside a chunk (the last, empty one included).
        self._open: list[bool] = []
        self.on_chunk_header = partial(self._open.append, True)
        self.on_chunk_complete = self._open.clear
        self._parser = httptools.HttpResponseParser(self)
        self.fresh = True
        self.idle_since_s = 0.0
        self.heard = 0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.reason = b""
        self.lines: list[bytes] = []
        self.own: dict[bytes, bytes] = {}
        self._head_ready = False
        self._in_body = False
        self._done = False
        self._extra = False
        self._final = 0
        self._keep = False
        self._switched = False
        self._eof_ends_body = False
        self._error = False
        self._lane = False
        self.between_chunks = False
        self._open.clear()
        self._rest = b""
        self.heard = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        relay = self._relay
        if relay is None:  # nobody asked: an idle connection must stay silent
            self.abort()
            return
        self.heard += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._rest = data[upgrade.args[0] :]
        except httptools.HttpParserError:
            if self._done:  # what follows a reply answers nobody
                self._extra = True
            else:
                self._error = True
        if self._head_ready:
            self._head_ready = False
            relay.on_head(self, self._done or (self._in_body and bool(self._pieces)))
            if self._relay is not relay:
                return
            if self._switched:
                self._relay = None
                relay.on_switched(self)
                return
        pieces = self._pieces
        if not self._in_body:
            pieces.clear()
        if self._extra:  # bytes after the reply's end answer nobody
            del pieces[self._final :]
        if pieces:
            relay.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces), self._done)
            if self._relay is not relay:  # by the beginning of its body this reply was none
                return
            pieces.clear()
        if self._done:
            self._finish(relay)
        elif relay.chunked and not self._eof_ends_body and not self._error:
            # A chunk's line or end ends in a line feed; with no chunk open it was an end (or the head's).
            self.between_chunks = not self._open and data[-1] == _LF
            relay.direct = False
            if (
                not self._lane
                and relay.bytes_out
                and not relay.looking
                and relay.client.descriptor >= 0
                and b"content-length" not in self.own  # with a sieve chunks may be ours alone
            ):
                self._lane = True
                self._use(lane(self, relay))
        elif self._error or (not self._in_body and self.heard > _HEAD_BYTES):
            self._relay = None
            self._close()
            relay.on_dropped(GARBAGE)

    def eof_received(self) -> bool:
        return False  # the transport closes itself, connection_lost tells the rest

    def pause_writing(self) -> None:
        """A request goes out as the backend takes it."""

    def resume_writing(self) -> None:
        """The same."""

    def connection_lost(self, exc: Exception | None) -> None:
        relay, self._relay = self._relay, None
        self._pool.lost(self)
        if relay is None:
            return
        if self._eof_ends_body and exc is None:
            relay.on_end()
        elif self.heard:
            relay.on_dropped(BROKEN)
        else:
            relay.on_dropped(DROPPED if self.fresh else STALE)

    # httptools callbacks: they only record, so that nothing can raise inside the parser.

    def on_message_begin(self) -> None:
        self._extra = self._done

    def on_status(self, reason: bytes) -> None:
        if not self._extra:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body or self._extra:  # trailers: none of ours, and they could contradict the head
            return
        lower = name.lower()
        if lower in RESPONSE_OWN:
            held = self.own.get(lower)
            self.own[lower] = value if held is None else held + b", " + value
        else:
            self.lines.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        relay = self._relay
        if relay is None or self._extra or self._error:
            return
        status = self.status = self._parser.get_status_code()
        if status == 101 and relay.request.upgrade:
            self._switched = self._head_ready = self._in_body = True
        elif status >= 200:
            self._head_ready = self._in_body = True
            own = self.own
            if relay.request.method == b"HEAD":
                self._done = self._extra = True  # llhttp cannot know; whatever follows belongs to no one
            elif b"content-length" not in own and status not in (204, 304):
                coding = own.get(b"transfer-encoding")
                self._eof_ends_body = coding is None or not coding.lower().endswith(b"chunked")
        elif status == 101 or status < 100 or self._announces_a_body:
            self._error = True  # an interim reply can't have one (RFC 9110 section 15.2)

    def on_message_complete(self) -> None:
        if self._extra or self._error:
            return
        if self._in_body:
            if not self._done and not self._switched:
                self._done = True
                self._final = len(self._pieces)
                self._keep = self._parser.should_keep_alive()
            return
        relay = self._relay
        if relay is not None and self.status not in (100, 101):
            relay.on_interim(self.status, self.lines)
        self.status = 0
        self.reason = b""
        self.lines = []
        self.own = {}

    @property
    def _announces_a_body(self) -> bool:
        return b"transfer-encoding" in self.own or self.own.get(b"content-length", b"0") != b"0"

    # Used by the pool and the relay.

    @property
    def usable(self) -> bool:
        """Open, silent and free."""
        return self._transport is not None and not self._transport.is_closing() and self._relay is None

    def start(self, relay: Relay, head: bytes, body: bytes) -> None:
        """Send a whole request and direct its reply to `relay`."""
        transport = self._transport
        assert transport is not None
        self._reset()
        self._relay = relay
        relay.upstream = self
        if len(body) < 65536:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        if relay.paused:
            self.pause()

    def pause(self) -> None:
        """Stop reading; TCP then stalls the backend."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Forget the exchange and drop the connection now."""
        self._relay = None
        if self._transport is not None:
            self._transport.abort()

    def discard(self) -> None:
        """The reply is not wanted: keep the connection if it has already been read whole, else drop it."""
        relay = self._relay
        if relay is None:
            return
        self._pieces.clear()
        if self._done:
            relay.upstream = None
            self._relay = None
            self._release()
        else:
            self.abort()

    def hand_over(self) -> tuple[asyncio.Transport, bytes]:
        """Give the transport away (to a tunnel) with the bytes that came after the head."""
        transport = self._transport
        assert transport is not None
        self._transport = None
        self._pool.lost(self)
        return transport, self._rest

    def _use(self, protocol: Lane | UpstreamConnection) -> None:
        if self._transport is not None:
            self._transport.set_protocol(cast("asyncio.BaseProtocol", protocol))

    def _finish(self, relay: Relay) -> None:
        self._relay = None
        if self._lane:
            self._use(self)
        self._release()
        relay.on_end()

    def _release(self) -> None:
        transport = self._transport
        if transport is None:
            return
        # A reply that came before the request was fully sent leaves bytes that nobody will want.
        if (
            self._keep
            and not self._extra
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            transport.resume_reading()  # a client that stalled at the end of its reply had it paused
            self._pool.give_back(self)
        else:
            transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
