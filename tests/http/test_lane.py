"""The fast lane: however a chunked reply is cut into reads, the client decodes the same body."""

from __future__ import annotations

import random
import socket
from itertools import pairwise

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from stickyroute.http.sieve import Sieve
from stickyroute.proxy.exchange import Exchange
from tests.support.examples import at_least
from tests.support.exchanges import Core, Wire, backend_of, client_of, exchange_of

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
TRICKY = [b"\n", b"\r\n", b"5\r\nab", b"0\r\n\r\n", b"data: x\n\n", b"a" * 4090]


class Client:
    """What a client reads of a socket, and of what its transport was given besides."""

    def __init__(self, reader: socket.socket) -> None:
        self.got = bytearray()
        self._reader = reader

    def take(self) -> None:
        """What was written to the socket directly came before what is written next."""
        try:
            self.got += self._reader.recv(1 << 20)
        except BlockingIOError:
            return

    def hear(self, data: bytes) -> None:
        self.take()
        self.got += data


class Decoded:
    """What an HTTP client makes of the bytes."""

    def __init__(self, wire: bytes) -> None:
        self.body = b""
        self.whole = False
        httptools.HttpResponseParser(self).feed_data(wire)

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.whole = True


def relayed(
    wire: bytes, cuts: list[int], rand: random.Random, sieve: Sieve | None = None
) -> tuple[bytes, Exchange, list[str], bool]:
    """What the client gets of `wire` read in pieces; the exchange and how it ended; whether the lane was left. The
    client's transport sometimes has something queued."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        client, core, transport = Client(theirs), Core(), Wire()
        exchange = exchange_of(
            client_of(Wire(ours.fileno(), lambda: int(rand.random() < 0.3), client.hear)), core
        )
        exchange.sieve = sieve
        connection = backend_of(transport)
        connection.start(exchange, b"", b"")
        for start, end in pairwise(cuts):
            transport.protocol.data_received(wire[start:end])
        client.take()
        return bytes(client.got), exchange, core.ends, transport.protocol is connection


@settings(max_examples=at_least(50))
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300) | st.sampled_from(TRICKY), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 3000), max_size=30),
    upper=st.booleans(),
    rand=st.randoms(use_true_random=False),
)
def test_any_cut_of_any_chunks_gives_the_same_body(
    chunks: list[bytes], cuts: list[int], upper: bool, rand: random.Random
) -> None:
    form = b"%X\r\n%b\r\n" if upper else b"%x\r\n%b\r\n"
    parts = [HEAD, *(form % (len(chunk), chunk) for chunk in chunks), b"0\r\n\r\n"]
    wire = b"".join(parts)
    edges, at = {0, len(wire)}, 0
    for part in parts:  # mostly cut where chunks end, as engines write them
        at += len(part)
        if rand.random() < 0.8:
            edges.add(at)
    got, exchange, ends, left = relayed(wire, sorted(edges | {cut for cut in cuts if cut < len(wire)}), rand)
    client = Decoded(got)
    assert client.body == b"".join(chunks)
    assert client.whole
    assert ends == ["complete"]
    assert exchange.bytes_out == len(client.body)
    assert left


def test_whole_chunks_go_as_they_came_once_the_stream_has_begun() -> None:
    tokens = [b"%x\r\n%b\r\n" % (len(text), text) for text in (b"data: %d\n\n" % n for n in range(20))]
    parts = [HEAD, *tokens, b"0\r\n\r\n"]
    cuts = [0]
    for part in parts:
        cuts.append(cuts[-1] + len(part))

    class Never(random.Random):
        def random(self) -> float:
            return 1.0

    got, _, ends, _ = relayed(b"".join(parts), cuts, Never())
    assert got.partition(b"\r\n\r\n")[2] == b"".join(parts[1:])
    assert ends == ["complete"]
