"""The fast lane of a streamed reply: a read that is exactly one chunk goes to the client as it came.

Engines write one token a chunk and one chunk a write, so nearly every read of a stream is a whole chunk:
decoding and framing it again would give the same bytes. A `Lane` takes the place of its `UpstreamConnection`
as the transport's protocol, passes such reads on with as few Python steps as can be, and gives everything
else (the head, split or several chunks, the end) to the connection, whose parser stays in step because only
whole chunks between whole chunks are kept from it. Must not know what is streamed or to whom.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stickyroute.http.relay import Relay
    from stickyroute.http.upstream import UpstreamConnection

_LONGEST = 4096
"""Reads from this length on are not looked at here, bytes: what matters is the cost of small ones."""


def _shapes() -> list[tuple[slice, bytes, int]]:
    """By the length of a whole chunk on the wire: where its size line is, what that is, what it carries."""
    shapes = [(slice(1), b"", 0)] * _LONGEST  # no read begins with nothing
    for size in range(1, _LONGEST):
        line = b"%x\r\n" % size
        length = len(line) + size + 2
        if length < _LONGEST:
            shapes[length] = slice(len(line)), line, size
    return shapes


_SHAPES = _shapes()
_CR, _LF = b"\r\n"
_ENDING = 64
"""What a stream says of itself at its end is longer, the mark of the end shorter than so many bytes."""
_write = os.write


class Lane:
    """A transport's protocol while a chunked reply is relayed as chunks. Made once a stream."""

    __slots__ = ("connection_lost", "data_received", "eof_received", "pause_writing", "resume_writing")

    def __init__(self, upstream: UpstreamConnection, relay: Relay) -> None:
        self.data_received = _splice(upstream, relay)
        self.connection_lost = upstream.connection_lost
        self.eof_received = upstream.eof_received
        self.pause_writing = upstream.pause_writing
        self.resume_writing = upstream.resume_writing


def _splice(upstream: UpstreamConnection, relay: Relay) -> Callable[[bytes], None]:
    # Per token the caches are cold, so what counts is how much is touched: what belongs to the stream are the
    # defaults of the function (one tuple), what is common to all streams are globals. The socket is written
    # to directly while nothing is queued before: with uvloop's write queue the same steps cost a fifth more.
    # The descriptor is the client's for as long as this runs: a transport closes it after `connection_lost`
    # returned, and that has by then aborted the upstream, which is read no more.
    client = relay.client
    queued = client.queued_bytes
    sieve = relay.sieve

    def may_go() -> bool:
        """Enter the lane: between two chunks, and all that went before has left the client's transport."""
        relay.direct = upstream.between_chunks and not queued() and (sieve is None or not sieve.holds)
        return relay.direct

    def data_received(
        data: bytes,
        relay: Relay = relay,
        descriptor: int = client.descriptor,
        slowly: Callable[[bytes], None] = upstream.data_received,
        may_go: Callable[[], bool] = may_go,
        later: Callable[[bytes], None] = client.write,
    ) -> None:
        length = len(data)
        try:
            line, begin, size = _SHAPES[length]
        except IndexError:  # too long for the table
            slowly(data)
            return
        # By slice and index: a method of bytes costs twice as much, most of it for unpacking its argument.
        if data[line] == begin and data[-1] == _LF and data[-2] == _CR and (relay.direct or may_go()):
            relay.bytes_out += size
            if size > _ENDING:
                relay.last = data
            try:
                sent = _write(descriptor, data)
            except OSError:  # full, or broken: the transport deals with either
                sent = 0
            if sent != length:
                relay.direct = False
                later(data[sent:])
        else:
            slowly(data)

    if sieve is None:
        return data_received
    tail = slice(-2 - len(sieve.ending), None)

    def data_received_unless_marked(
        data: bytes,
        relay: Relay = relay,
        descriptor: int = client.descriptor,
        slowly: Callable[[bytes], None] = upstream.data_received,
        may_go: Callable[[], bool] = may_go,
        later: Callable[[bytes], None] = client.write,
        mark: bytes = sieve.mark,
        dull: bytes = sieve.dull,
        ending: bytes = sieve.ending + b"\r\n",
        from_end: slice = tail,
    ) -> None:
        # The same for what the sieve would let pass as it is: it holds nothing, and a unit begins and ends with this
        # chunk. Written out again, since one more frame a token is a twentieth of what a token costs.
        length = len(data)
        try:
            line, begin, size = _SHAPES[length]
        except IndexError:
            slowly(data)
            return
        if (
            data[line] == begin
            and data[from_end] == ending
            and (data.rfind(mark) < 0 or data.count(mark) == data.count(dull))  # `in` takes twice as long
            and (relay.direct or may_go())
        ):
            relay.bytes_out += size
            if size > _ENDING:
                relay.last = data
            try:
                sent = _write(descriptor, data)
            except OSError:
                sent = 0
            if sent != length:
                relay.direct = False
                later(data[sent:])
        else:
            slowly(data)

    return data_received_unless_marked
