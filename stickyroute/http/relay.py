"""One request's life on the wire: attempts towards backends, then the splice of one reply to the client.

Owns the single end of an exchange: `_end` runs exactly once, whoever ends it. What to do about a busy answer
or a failed attempt is decided by the subclass (`proxy.Exchange`); this module only knows what is still
possible.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from stickyroute.clock import monotonic
from stickyroute.http.handler import RelayHandler
from stickyroute.http.message import CHUNK_HEADS, SHORT_CHUNK, Request, nominated, status_line, without
from stickyroute.http.sieve import Sieve
from stickyroute.http.tunnel import Tunnel
from stickyroute.http.words import (
    CLIENT_LEFT,
    COMPLETE,
    HEAD_HELD_S,
    HEAD_ONLY,
    HEADER_TIMEOUT,
    REFUSED,
    UPSTREAM_DIED,
    UPSTREAM_SILENT,
)

if TYPE_CHECKING:
    from stickyroute.http.listener import ClientConnection
    from stickyroute.http.upstream import UpstreamConnection

_TAIL_PIECES: Final = 8  # the end of a reply as it is kept, and of each piece so many bytes
_TAIL_PIECE_BYTES: Final = 4096
_ENDING: Final = 64  # what a stream says of itself at its end is longer; as in `lane`
_BODILESS: Final = frozenset({204, 304})


class Relay(RelayHandler):
    """Base of an exchange. `head_sent` marks the point of no return: after it, no further attempt is made."""

    __slots__ = (
        "_before",
        "_doubt",
        "_doubt_s",
        "_ended",
        "_fed_before_s",
        "_head",
        "_heard",
        "_keep_alive",
        "_kept",
        "bytes_out",
        "chunked",
        "client",
        "direct",
        "first_byte_s",
        "head_sent",
        "last",
        "looking",
        "over",
        "paused",
        "request",
        "sent_s",
        "sieve",
        "status",
        "streams",
        "tail",
        "unwanted",
        "upstream",
    )

    def __init__(self, client: ClientConnection, request: Request) -> None:
        self.client = client
        self.request = request
        self.upstream: UpstreamConnection | None = None
        self.head_sent = False
        self.over = False
        self.status = 0
        self.streams = False
        self.unwanted: frozenset[bytes] = frozenset()  # response fields (lower case) that are not passed on
        self.bytes_out = 0
        self.first_byte_s = 0.0
        self.sent_s = 0.0
        self.chunked = False
        self.direct = False  # belongs to the lane: nothing of this reply waits in the client's transport
        self._head = b""  # of the reply, while it waits for the first piece of the body
        self._ended = False  # what ends a chunked body has been written
        self._keep_alive = request.keep_alive
        self.looking = False  # whether the subclass still looks at pieces of the body, by `has_begun`
        self.tail: deque[bytes] | None = None  # the last pieces of the body, where the subclass wants them
        self.last = b""  # the last piece of some length: of the lane in its framing, else only without a tail
        self._before = b""  # the one before it, if that did not go through the lane
        self._doubt: tuple[int, bytes, dict[bytes, bytes], list[bytes]] | None = None  # head that may be none
        self._doubt_s = 0.0  # since when
        self._kept = b""  # what came of its body
        self.sieve: Sieve | None = None  # what takes bytes out of the body, of an uncoded stream only
        self.paused = False
        self._heard = -1
        self._fed_before_s = 0.0

    def keep_tail(self) -> None:
        """Keep the end of the body: the last pieces in `tail`, of each no more than 4 KB."""
        self.tail = deque(maxlen=_TAIL_PIECES)

    def end_of_body(self) -> bytes:
        """What was kept, in order. What went through the lane is in its framing, and without the shortest
        chunks."""
        tail = self.tail
        if tail is None:
            return b""
        if self.last:
            tail.append(self.last)
            self.last = b""
        return b"".join(tail)

    def ending(self) -> bytes:
        """The last pieces of a stream, for what it says of its end; at least two of more than 64 bytes."""
        return self._before + self.last if self.tail is None else self.end_of_body()

    # Called by the upstream connection.

    def on_interim(self, status: int, lines: list[bytes]) -> None:
        """A 1xx reply other than 100 and 101: passed on to clients that can read it."""
        if self.request.minor_version and not self.head_sent:
            self.client.write(status_line(status, b"") + b"".join(lines) + b"\r\n")

    def on_head(self, upstream: UpstreamConnection, followed: bool) -> None:
        """The head of a reply arrived: relay it, drop it for another attempt, or wait for what follows it.

        `followed`: `on_body` or `on_end` is called next, with what came in the same read; then it all leaves
        in one write, which is a quarter of what a short reply costs.
        """
        status, own = upstream.status, upstream.own
        if not self.accept(status):
            return
        if self.doubts(status, own):
            self._doubt = status, upstream.reason, own, upstream.lines
            self._doubt_s = monotonic()
        else:
            self._take_head(status, upstream.reason, own, upstream.lines)
            if not followed:
                self._write_head()

    def _take_head(self, status: int, reason: bytes, own: dict[bytes, bytes], lines: list[bytes]) -> None:
        """Make the client's head of this reply, with exactly one framing. No further attempt from here on."""
        self.relaying(status)
        self.head_sent = True
        self.request.body = b""  # it can not be sent again, and a generation can be long
        self.status = status
        if self.unwanted:
            lines = without(lines, self.unwanted)
        if own:
            connection = own.get(b"connection")
            if connection is not None and (names := nominated(connection)):
                lines = without(lines, names)
        out = [status_line(status, reason), *lines]
        content_type = own.get(b"content-type")
        cache_control = own.get(b"cache-control")
        buffering = own.get(b"x-accel-buffering")
        if content_type is not None:
            out.append(b"content-type: %b\r\n" % content_type)
            if content_type.startswith(b"text/event-stream"):
                # Proxies in front of us (nginx by default) hold streams back unless told not to.
                self.streams = True
                cache_control = cache_control or b"no-cache"
                buffering = buffering or b"no"
        if self.sieve is not None:
            self._fit_sieve(lines)
        if cache_control is not None:
            out.append(b"cache-control: %b\r\n" % cache_control)
        if buffering is not None:
            out.append(b"x-accel-buffering: %b\r\n" % buffering)
        if status == 101:
            out.append(b"connection: upgrade\r\nupgrade: %b\r\n" % own.get(b"upgrade", b""))
        else:
            self._frame(own.get(b"content-length"), out)
        out.append(self.extra_lines())
        out.append(b"\r\n")
        self._head = b"".join(out)

    def _settle_doubt(self, data: bytes, last: bool) -> bytes:
        """More of the body of a reply in doubt: what of it is to be relayed now, nothing while that is open."""
        doubt = self._doubt
        assert doubt is not None
        opening = self._kept + data
        good = self.judge(doubt[0], opening, last)
        self._kept = opening if good is None else b""
        if good is not None:
            self._doubt = None
        if not good:
            return b""
        self._take_head(*doubt)
        return opening

    def _let_go(self) -> None:
        """Pass on what was held back of a reply in doubt."""
        doubt, kept = self._doubt, self._kept
        self._doubt, self._kept = None, b""
        if doubt is not None:
            self._take_head(*doubt)
            if kept:
                self.on_body(kept, False)
            else:
                self._write_head()

    def _fit_sieve(self, lines: list[bytes]) -> None:
        """Keep the sieve only where it can read what goes through it."""
        coded = any(line[:17].lower() == b"content-encoding:" for line in lines)
        if self.streams and not coded and 200 <= self.status < 300:
            self.tail = None
        else:
            self.sieve = None

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        self.client.write(head)

    def _frame(self, length: bytes | None, out: list[bytes]) -> None:
        """Choose the one framing of the reply and whether the client's connection outlives it."""
        request = self.request
        keep = self._keep_alive and not self.client.closing
        if self.status == 204:
            pass
        elif length is not None and self.sieve is None:
            out.append(b"content-length: %b\r\n" % length)
        elif self.status in _BODILESS or request.method == b"HEAD":
            pass
        elif request.minor_version:
            self.chunked = True
            out.append(b"transfer-encoding: chunked\r\n")
        else:
            keep = False  # HTTP/1.0 knows only the end of the connection as the end of such a body
        if not keep:
            out.append(b"connection: close\r\n")
        elif not request.minor_version:
            out.append(b"connection: keep-alive\r\n")
        self._keep_alive = keep

    def on_body(self, data: bytes, last: bool) -> None:
        """A piece of the reply's body, decoded from its framing, never empty; `last` if `on_end` follows."""
        if self._doubt is not None:
            data = self._settle_doubt(data, last)
            if not data:
                return
        if not self.bytes_out:
            self.first_byte_s = monotonic()
            self.answering()
        if self.looking:
            self.looking = not self.has_begun(data)
        tail = self.tail
        if tail is not None:
            if self.last:
                tail.append(self.last)
                self.last = b""
            tail.append(data if len(data) <= _TAIL_PIECE_BYTES else data[-_TAIL_PIECE_BYTES:])
        elif self.streams and len(data) > _ENDING:
            self._before = self.last
            self.last = data if len(data) <= _TAIL_PIECE_BYTES else data[-_TAIL_PIECE_BYTES:]
        if self.sieve is not None:
            data = self.sieve.feed(data)
            if not data:
                if self._head:
                    self._write_head()
                return
            if last and self.sieve.holds:
                data += self.sieve.rest()
        size = len(data)
        self.bytes_out += size
        head, self._head = self._head, b""
        if self.chunked:
            end = b"\r\n"
            if last:
                end = b"\r\n0\r\n\r\n"
                self._ended = True
            if size < SHORT_CHUNK:
                data = b"".join((head, CHUNK_HEADS[size], data, end))
            else:
                data = b"%b%x\r\n%b%b" % (head, size, data, end)
        elif head:
            data = head + data
        if last:
            self.client.write(data)
        else:
            self.client.write_now(data)

    def on_end(self) -> None:
        """The reply is complete, the upstream connection is already free again."""
        self.upstream = None
        if self._doubt is not None:
            data = self._settle_doubt(b"", True)
            if not self.head_sent or self.over:
                return  # this reply was none
            if data:
                self.on_body(data, True)
        if self.sieve is not None:
            self._write_rest(self.sieve)
        if self._head:
            self._write_head()
        if self.chunked and not self._ended:
            self.client.write(b"0\r\n\r\n")
        self._end(COMPLETE)
        self.client.response_done(self._keep_alive)

    def _write_rest(self, sieve: Sieve) -> None:
        """Let go what a sieve held back, when nothing more comes."""
        self.sieve = None
        data = sieve.rest()
        if data:
            self.on_body(data, False)

    def on_dropped(self, failure: str) -> None:
        """The upstream connection failed in the middle of this exchange."""
        self.upstream = None
        if self._doubt is not None:
            self._doubt, self._kept = None, b""
            failure = HEAD_ONLY
        if not self.head_sent:
            self.failed(failure)
            return
        if self.sieve is not None:
            self._write_rest(self.sieve)
        # The client must see a broken transfer: no final chunk, no `[DONE]`, no second answer.
        self.client.break_off(abruptly=not self.chunked and not self.request.minor_version)
        self._end(UPSTREAM_DIED)

    def on_switched(self, upstream: UpstreamConnection) -> None:
        """The backend agreed to switch protocols (101 is already on its way): from here on only bytes."""
        self.upstream = None
        Tunnel.join(self.client, upstream, self)

    # Called by the client connection.

    def client_left(self, end: str = CLIENT_LEFT) -> None:
        """The client is gone: close the upstream at once, so that the engine aborts."""
        if self.over:
            return
        if self.upstream is not None:
            self.upstream.abort()
            self.upstream = None
        self._end(end)

    def pause(self) -> None:
        """The client reads slowly: stall this request's upstream, and only it."""
        self.paused = True
        if self.upstream is not None:
            self.upstream.pause()

    def resume(self) -> None:
        """The client reads again."""
        self.paused = False
        if self.upstream is not None:
            self.upstream.resume()

    def sweep(self, now_s: float) -> None:
        """Cut a reply that fell silent. A stalled client's upstream is not silent, it is held back by us."""
        upstream, limits = self.upstream, self.client.limits
        if upstream is None:
            return
        if (
            not upstream.heard
        ):  # silence before the first byte is an engine at work, unless configured otherwise
            if limits.response_header_s is not None and now_s - self.sent_s > limits.response_header_s:
                self.upstream = None
                upstream.abort()
                self.failed(HEADER_TIMEOUT)
            return
        if self._doubt is not None and now_s - self._doubt_s > HEAD_HELD_S:
            self._let_go()
        heard = upstream.heard + self.bytes_out  # a lane counts only what it passed on
        if self.paused or heard != self._heard:
            self._heard = heard
            self._fed_before_s = now_s
        elif now_s - self._fed_before_s > limits.stream_idle_s:
            self.upstream = None
            upstream.abort()
            if not self.head_sent:
                self._doubt, self._kept = None, b""
                self.failed(HEADER_TIMEOUT)
                return
            self.client.break_off(abruptly=not self.chunked and not self.request.minor_version)
            self._end(UPSTREAM_SILENT)

    # Endings.

    def answer(self, status: int, body: bytes, lines: bytes = b"") -> None:
        """End the exchange with a reply of our own; nothing was sent yet."""
        self.head_sent = True
        self.status = status
        self.bytes_out = len(body)
        self._end(REFUSED)
        self.client.reply(self.request, status, body, lines + self.extra_lines())

    def tunnel_closed(self) -> None:
        """Either side of a tunnel ended it."""
        self._end(COMPLETE)

    def _end(self, end: str) -> None:
        if not self.over:
            self.over = True
            self.finished(end)
