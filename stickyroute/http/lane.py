"""The fast lane of a streamed reply: a read that is exactly one chunk goes to the client as it came.

Engines write one token a chunk and one chunk a write, so nearly every read of a stream is a whole chunk:
decoding and framing it again would give the same bytes. A `Lane` takes the place of its `UpstreamConnection`
as the transport's protocol, passes such reads on with as few Python steps as can be, and gives everything
else (the head, split or several chunks, the end) to the connection, whose parser stays in step because only
whole chunks between whole chunks are kept from it. Must not know what is streamed or to whom.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from stickyroute.http.sieve import Sieve

if TYPE_CHECKING:
    from stickyroute.http.relay import Relay
    from stickyroute.http.upstream import UpstreamConnection

_LONGEST: Final = 4096
"""Reads from this length on are not looked at here, bytes: what matters is the cost of small ones."""


def _shapes() -> list[tuple[bytes, int, int]]:
    """By the length of a whole chunk on the wire: its size line, how long that is, what the chunk carries."""
    shapes = [(b"", 1, 0)] * _LONGEST  # no read begins with nothing
    for size in range(1, _LONGEST):
        line = b"%x\r\n" % size
        length = len(line) + size + 2
        if length < _LONGEST:
            shapes[length] = line, len(line), size
    return shapes


_SHAPES: Final = _shapes()
_CR: Final = 13
_LF: Final = 10
_ENDING: Final = 64
"""What a stream says of itself at its end is longer, the mark of the end shorter than so many bytes."""
_write: Final = os.write


def lane(upstream: UpstreamConnection, relay: Relay) -> Lane:
    """The one for this stream."""
    return Lane(upstream, relay) if relay.sieve is None else SievedLane(upstream, relay, relay.sieve)


class Lane:
    """A transport's protocol while a chunked reply is relayed as chunks. Made once a stream."""

    # Per token the caches are cold, so what counts is how much is touched. The socket is written to directly while
    # nothing is queued before: with uvloop's write queue the same steps cost a fifth more. The descriptor is the
    # client's for as long as this runs: a transport closes it after `connection_lost` returned, and that has by then
    # aborted the upstream, which is read no more.

    __slots__ = (
        "_descriptor",
        "_later",
        "_queued",
        "_relay",
        "_upstream",
        "connection_lost",
        "eof_received",
        "pause_writing",
        "resume_writing",
    )

    def __init__(self, upstream: UpstreamConnection, relay: Relay) -> None:
        client = relay.client
        self._upstream = upstream
        self._relay = relay
        self._descriptor = client.descriptor
        self._queued = client.queued_bytes
        self._later = client.write
        self.connection_lost = upstream.connection_lost
        self.eof_received = upstream.eof_received
        self.pause_writing = upstream.pause_writing
        self.resume_writing = upstream.resume_writing

    def may_go(self) -> bool:
        """Enter the lane: between two chunks, and all that went before has left the client's transport."""
        self._relay.direct = self._upstream.between_chunks and not self._queued()
        return self._relay.direct

    def data_received(self, data: bytes) -> None:
        length = len(data)
        if length < _LONGEST:
            relay = self._relay
            line, begin, size = _SHAPES[length]
            # By slice and index: a method of bytes costs twice as much, most of it for unpacking its argument.
            if (
                data[:begin] == line
                and data[-1] == _LF
                and data[-2] == _CR
                and (relay.direct or self.may_go())
            ):
                relay.bytes_out += size
                if size > _ENDING:
                    relay.last = data
                try:
                    sent = _write(self._descriptor, data)
                except OSError:  # full, or broken: the transport deals with either
                    sent = 0
                if sent != length:
                    relay.direct = False
                    self._later(data[sent:])
                return
        self._upstream.data_received(data)


class SievedLane(Lane):
    """The same for what the sieve lets pass as it is: it holds nothing, and a unit begins and ends with a chunk."""

    __slots__ = ("_dull", "_end", "_ending", "_mark", "_sieve")

    def __init__(self, upstream: UpstreamConnection, relay: Relay, sieve: Sieve) -> None:
        super().__init__(upstream, relay)
        self._sieve = sieve
        self._mark = sieve.mark
        self._dull = sieve.dull
        self._ending = sieve.ending + b"\r\n"
        self._end = -len(self._ending)

    def may_go(self) -> bool:
        self._relay.direct = not self._sieve.holds and self._upstream.between_chunks and not self._queued()
        return self._relay.direct

    def data_received(self, data: bytes) -> None:
        # Written out again, since one more frame a token is a twentieth of what a token costs.
        length = len(data)
        if length < _LONGEST:
            relay = self._relay
            line, begin, size = _SHAPES[length]
            if (
                data[:begin] == line
                and data[self._end :] == self._ending
                # `in` takes twice as long.
                and (data.rfind(self._mark) < 0 or data.count(self._mark) == data.count(self._dull))
                and (relay.direct or self.may_go())
            ):
                relay.bytes_out += size
                if size > _ENDING:
                    relay.last = data
                try:
                    sent = _write(self._descriptor, data)
                except OSError:
                    sent = 0
                if sent != length:
                    relay.direct = False
                    self._later(data[sent:])
                return
        self._upstream.data_received(data)
