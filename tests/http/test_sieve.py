"""A relay with a sieve, in the lane and out of it: however a stream is cut, the same bytes are taken out of it."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stickyroute.openai.ask_usage import UsageSieve
from tests.http.test_lane import HEAD, Decoded, relayed
from tests.support.examples import at_least

STREAM = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-type: text/event-stream\r\n\r\n")
TOKEN = b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@settings(max_examples=at_least(60))
@given(
    tokens=st.integers(0, 8),
    chunk_cuts=st.lists(st.integers(1, 900), max_size=6),
    read_cuts=st.lists(st.integers(0, 3000), max_size=12),
    at_chunks=st.booleans(),
    rand=st.randoms(use_true_random=False),
)
def test_the_event_is_taken_out_of_any_chunks_in_any_reads(
    tokens: int, chunk_cuts: list[int], read_cuts: list[int], at_chunks: bool, rand: random.Random
) -> None:
    events = [*(TOKEN % number for number in range(tokens)), USAGE, DONE]
    body = b"".join(events)
    edges = sorted({0, len(body), *(cut for cut in chunk_cuts if cut < len(body))})
    if at_chunks:  # as engines write them: one event a chunk
        edges = [0]
        for event in events:
            edges.append(edges[-1] + len(event))
    chunks = [body[a:b] for a, b in itertools.pairwise(edges)]
    parts = [STREAM, *(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks), b"0\r\n\r\n"]
    wire = b"".join(parts)
    reads, at = {0, len(wire)}, 0
    for part in parts:
        at += len(part)
        if rand.random() < 0.8:
            reads.add(at)
    sieve = UsageSieve()
    cuts = sorted(reads | {cut for cut in read_cuts if cut < len(wire)})
    got, exchange, ends, left = relayed(wire, cuts, rand, sieve)
    client = Decoded(got)
    assert client.body == body.replace(USAGE, b"")
    assert client.whole
    assert ends == ["complete"]
    assert exchange.bytes_out == len(client.body)
    assert sieve.told == {"prompt_tokens": 3, "completion_tokens": 2}
    assert left
