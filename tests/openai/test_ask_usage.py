"""Asking for usage on a client's behalf, and taking the event out again: on bytes of real engines, cut anywhere."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.ask_usage import UsageSieve, ask_for_usage
from stickyroute.openai.routes import Shape
from stickyroute.openai.usage import Usage, read_fields
from tests.openai.prompts import nested
from tests.openai.test_usage import body_of, events_of

ASKED = [
    ("vllm-chat-stream-raw.txt", Usage(12, 0, 6, 0)),
    ("sglang-chat-stream-raw.txt", Usage(12, 1, 4)),
    ("llamacpp-chat-stream-raw.txt", Usage(12, 0, 3)),
]
UNTOUCHED = [
    "vllm-chat-stream-nousage-raw.txt",
    "vllm-chat-n2-stream.txt",
    "vllm-completions-stream-raw.txt",
    "vllm-chat-continuous-usage.txt",  # the engine was started so: its clients get it asked or not
]


def without_usage(body: bytes) -> bytes:
    """The body as the client is to get it."""
    return b"".join(event for event in events_of(body) if b'"choices":[]' not in event)


def through(*pieces: bytes) -> tuple[bytes, UsageSieve]:
    sieve = UsageSieve()
    return b"".join([*map(sieve.feed, pieces), sieve.rest()]), sieve


# The request.


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model":"m","stream":true}',
        b'{"stream":true, "model" : "m" , "messages":[{"content":"a } \\" {"}]}',
        b' {"stream":true,"x":1e2,"u":"\\u00e9"\n}\r\n ',
        b'{"stream":true,"stream_options":null}',
        b'{"stream_options":{"include_usage":false,"other":[1,{}]},"stream":true}',
        b'{"stream":true,"stream_options":{}}',
    ],
)
@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.COMPLETIONS])
def test_the_option_is_added_and_nothing_else_changes(shape: Shape, sent: bytes) -> None:
    fields = json.loads(sent)
    asked = ask_for_usage(shape, sent, fields)
    assert asked is not None
    options = {**(fields.get("stream_options") or {}), "include_usage": True}
    assert json.loads(asked) == {**fields, "stream_options": options}
    end = sent.rindex(b"}")
    assert asked.startswith(sent[:end] + b',"stream_options":')
    assert asked.endswith(b"}" + sent[end:])


@pytest.mark.parametrize(
    ("shape", "sent"),
    [
        (Shape.CHAT, {"stream": False}),
        (Shape.CHAT, {}),
        (Shape.CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
        (Shape.CHAT, {"stream": True, "stream_options": {"continuous_usage_stats": True}}),
        (Shape.CHAT, {"stream": True, "stream_options": "odd"}),
        (Shape.MESSAGES, {"stream": True}),
        (Shape.RESPONSES, {"stream": True}),
        (Shape.OPAQUE, {"stream": True}),
    ],
)
def test_nothing_is_asked_where_it_is_told_anyway_or_cannot_be_taken_out(shape: Shape, sent: Any) -> None:
    assert ask_for_usage(shape, json.dumps(sent).encode(), sent) is None


def test_options_nested_too_deep_to_be_written_again_are_left() -> None:
    fields = {"stream": True, "stream_options": {"odd": nested(1000)}}
    assert ask_for_usage(Shape.CHAT, b"{}", fields) is None


def test_a_body_that_was_not_read_stays_as_it_is() -> None:
    assert ask_for_usage(Shape.CHAT, b"{", None) is None


# The reply.


@pytest.mark.parametrize(("name", "usage"), ASKED)
def test_the_usage_of_a_real_stream_is_taken_out_wherever_it_is_cut_in_two(name: str, usage: Usage) -> None:
    body = body_of(name)
    wanted = without_usage(body)
    assert len(wanted) < len(body)
    for cut in range(len(body) + 1):
        got, sieve = through(body[:cut], body[cut:])
        assert got == wanted
        assert read_fields(Shape.CHAT, sieve.told or {}) == usage


@pytest.mark.parametrize(("name", "_"), ASKED)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_it_is_taken_out_of_crumbs(name: str, _: Usage, size: int) -> None:
    body = body_of(name)
    assert through(*(body[at : at + size] for at in range(0, len(body), size)))[0] == without_usage(body)


@pytest.mark.parametrize("name", UNTOUCHED)
@given(cuts=st.sets(st.integers(0, 600), max_size=6))
def test_other_real_streams_go_on_byte_for_byte(name: str, cuts: set[int]) -> None:
    body = body_of(name)
    at = [0, *sorted(cuts), len(body)]
    assert through(*(body[a:b] for a, b in pairwise(at)))[0] == body


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("space", [b"", b" "])
@given(data=st.data())
def test_every_way_to_end_events_and_to_space_json(end: bytes, space: bytes, data: st.DataObject) -> None:
    token = b'data:%b{"choices":%b[{"delta":{"content":"\\"usage\\": {}"}}]}' % (space, space)
    long = b'data: {"choices":[{"delta":{"content":"%b"}}]}' % (b"x" * 9000)
    usage = b'data:%b{"choices":%b[],"usage":%b{"prompt_tokens":3}}' % (space, space, space)
    before = data.draw(st.lists(st.sampled_from([token, long, b": ping", b"event: x"]), max_size=5))
    begin, after = end.join([*before, b""]), b"data: [DONE]" + end
    body = begin + usage + end + after
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=10)))
    at = [0, *cuts, len(body)]
    got, sieve = through(*(body[a:b] for a, b in pairwise(at)))
    assert got == begin + after
    assert not sieve.holds


@given(cuts=st.sets(st.integers(0, 700), max_size=8), tells=st.booleans())
def test_an_engine_that_names_usage_in_every_event(cuts: set[int], tells: bool) -> None:
    """OpenAI's way, which older SGLang has too: null in all but the last."""
    said = b'{"prompt_tokens":3,"completion_tokens":1}'
    token = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":%b}\n\n' % (said if tells else b"null")
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    done = b"data: [DONE]\n\n"
    body = token * 4 + usage + done
    at = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    got, sieve = through(*(body[a:b] for a, b in pairwise(at)))
    assert got == (body if tells else token * 4 + done)
    assert sieve.told == {"prompt_tokens": 3, "completion_tokens": 2}


def test_whole_events_are_not_held_and_parts_of_long_ones_neither() -> None:
    sieve = UsageSieve()
    assert sieve.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert not sieve.holds
    assert sieve.feed(b"data: 2\n\ndata: ") == b"data: 2\n\n"
    assert sieve.holds
    assert sieve.feed(b"x" * 9000) == b"data: " + b"x" * 9000
    assert sieve.feed(b"y") == b"y"
    assert sieve.holds
    assert sieve.feed(b"\n\n") == b"\n\n"
    assert not sieve.holds


def test_a_stream_that_breaks_off_inside_an_event_keeps_what_there_was() -> None:
    assert through(b'data: {"choices":[],"usa')[0] == b'data: {"choices":[],"usa'
    assert through(b'data: {"choices":[],"usage":{"prompt_tokens":1}}')[0] == b""


@given(st.lists(st.binary(max_size=30)))
def test_what_is_no_stream_of_events_goes_on_as_it_is(pieces: list[bytes]) -> None:
    assert through(*pieces)[0] == b"".join(pieces)


def test_a_piece_that_need_not_be_shown_comes_back_as_it_is() -> None:
    """The law that the fast lane of http rests on."""
    dull = [b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n']
    for event in events_of(body_of("vllm-chat-stream-raw.txt")) + dull:
        sieve = UsageSieve()
        if event.count(sieve.mark) == event.count(sieve.dull) and event.endswith(sieve.ending):
            assert sieve.feed(event) == event
            assert not sieve.holds
