"""What replies say of their tokens, on bytes of real engines and wherever those are cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.routes import Shape
from stickyroute.openai.usage import (
    TAIL_BYTES,
    FirstContent,
    Usage,
    first_content,
    read_tail,
    usage_is_asked,
    usage_is_told,
)

CAPTURES = Path(__file__).parents[1] / "data" / "captures"

STREAMS = [
    ("vllm-chat-stream-raw.txt", Shape.CHAT, Usage(12, 0, 6, 0), b'"content":"*."'),
    ("vllm-chat-continuous-usage.txt", Shape.CHAT, Usage(9, 0, 2, 0), b'"content":" >>>"'),
    ("vllm-chat-stream-nousage-raw.txt", Shape.CHAT, None, b'"content":"*."'),
    ("vllm-chat-n2-stream.txt", Shape.CHAT, None, b'"content":" be"'),
    ("vllm-completions-stream-raw.txt", Shape.COMPLETIONS, None, b'"text":" match"'),
    ("vllm-messages-stream.txt", Shape.MESSAGES, Usage(12, 0, 3, 0), b'"text":"*."'),
    ("vllm-responses-stream.txt", Shape.RESPONSES, Usage(12, 0, 3, 0), b'"delta":"*."'),
    ("sglang-chat-stream-raw.txt", Shape.CHAT, Usage(12, 1, 4), b'"content":"*."'),
    ("llamacpp-chat-stream-raw.txt", Shape.CHAT, Usage(12, 0, 3), b'"content":"*."'),
]
WHOLE = [
    ("vllm-chat-nonstream.txt", Shape.CHAT, Usage(12, 0, 12, 0)),
    ("vllm-chat-tokenids.txt", Shape.CHAT, Usage(9, 0, 2, 0)),
    ("sglang-chat-nonstream.txt", Shape.CHAT, Usage(12, 11, 12)),
    ("llamacpp-chat-nonstream.txt", Shape.CHAT, Usage(12, 11, 12)),
    ("vllm-messages-nonstream.txt", Shape.MESSAGES, Usage(12, 0, 6, 0)),
    ("vllm-responses-nonstream.txt", Shape.RESPONSES, Usage(12, 0, 6, 0)),
]
shapes = st.sampled_from([Shape.CHAT, Shape.COMPLETIONS, Shape.MESSAGES, Shape.RESPONSES, Shape.OPAQUE])


def body_of(name):
    """A captured body. Captures of streams show chunks by lines; events in them end in an empty one."""
    head, _, rest = (CAPTURES / name).read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")
    if b"chunked" not in head.lower():
        return rest
    lines = rest.split(b"\n")
    keep = [line for line in lines if line.startswith((b"data:", b"event:"))]
    return b"".join(line + (b"\n\n" if line.startswith(b"data:") else b"\n") for line in keep)


def events_of(body):
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


@pytest.mark.parametrize(("name", "shape", "usage", "_"), STREAMS)
def test_usage_of_a_real_stream(name, shape, usage, _):
    body = body_of(name)
    assert read_tail(shape, body[-TAIL_BYTES:], True) == usage


@pytest.mark.parametrize(("name", "shape", "usage"), WHOLE)
def test_usage_of_a_real_reply(name, shape, usage):
    body = body_of(name)
    assert read_tail(shape, body, False) == usage
    assert read_tail(shape, body[-600:], False) == usage  # its beginning is gone


def test_a_long_prompt_that_was_cached():
    body = (CAPTURES / "vllm-longprompt-2.json").read_bytes().partition(b" time=")[0]
    assert read_tail(Shape.CHAT, body, False) == Usage(2165, 2144, 8, 0)


@pytest.mark.parametrize(("name", "shape", "_", "token"), STREAMS)
def test_the_first_token_of_a_real_stream(name, shape, _, token):
    events = events_of(body_of(name))
    first = next(i for i, event in enumerate(events) if token in event)
    assert [first_content(shape, event) for event in events[: first + 1]] == [False] * first + [True]


@pytest.mark.parametrize(("name", "shape", "_", "token"), STREAMS)
@given(data=st.data())
def test_the_first_token_is_found_wherever_a_stream_is_cut(name, shape, _, token, data):
    body = body_of(name)
    event_begin = body.rfind(b"\n\n", 0, body.index(token)) + 1
    event_end = body.index(b"\n\n", body.index(token))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(body) - 1), unique=True, max_size=12)))
    look = FirstContent(shape)
    at = 0
    for end in [*cuts, len(body)]:
        if look.feed(body[at:end]):
            break
        at = end
    # not before the token's event begins, and at the latest with the piece in which it ends
    assert at < event_end
    assert end > event_begin


@pytest.mark.parametrize(("name", "shape", "usage", "_"), STREAMS)
@given(st.data())
def test_a_cut_tail_is_right_or_unknown(name, shape, usage, _, data):
    body = body_of(name)
    begin = data.draw(st.integers(0, len(body)))
    found = read_tail(shape, body[begin:], True)
    assert found in (usage, None)
    if usage is not None and begin <= body.rindex(b'"usage"'):
        assert found == usage


@given(shapes, st.binary(max_size=300), st.booleans())
def test_garbage_is_unknown_and_never_raises(shape, tail, streamed):
    assert read_tail(shape, tail, streamed) is None
    first_content(shape, tail)
    FirstContent(shape).feed(tail)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "prompt_tokens completion_tokens cached_tokens prompt_tokens_details input_tokens output_tokens "
    "input_tokens_details cache_read_input_tokens cache_creation_input_tokens "
    "created_cache_tokens cache_write_tokens"
)
FIELDS = st.sampled_from(NAMES.split())


@given(shapes, st.dictionaries(FIELDS, VALUES | st.integers(0, 9)), st.booleans())
def test_fields_of_any_kind_never_raise(shape, fields, streamed):
    text = json.dumps({"usage": fields}).encode()
    found = read_tail(shape, b"data: " + text if streamed else text, streamed)
    if found is not None:
        assert found.prompt_tokens >= 0
        for part in (found.cached_tokens, found.written_tokens):
            assert part is None or 0 <= part <= found.prompt_tokens


COUNT = st.integers(0, 2**40)


@given(
    prompt=COUNT,
    completion=COUNT,
    total=st.none() | COUNT,
    total_last=st.booleans(),
    details=st.none() | st.just({}) | st.fixed_dictionaries({"cached_tokens": st.none() | COUNT}, optional={
        "created_cache_tokens": st.none() | COUNT, "multimodal_tokens": st.none()}),
    more=st.sampled_from([{}, {"prompt_tokens_details": None}, {"reasoning_tokens": 0}]),
    space=st.booleans(),
    streamed=st.booleans(),
)  # fmt: skip
def test_the_usual_form_is_read_as_any_other_is(
    prompt, completion, total, total_last, details, more, space, streamed
):
    between = {} if total is None else {"total_tokens": total}
    first, last = ({}, between) if total_last else (between, {})
    fields = {"prompt_tokens": prompt, **first, "completion_tokens": completion, **last}
    if details is not None:
        fields["prompt_tokens_details"] = details
    fields = {**fields, **{key: value for key, value in more.items() if key not in fields}}
    told = json.dumps({"choices": [], "usage": fields}, separators=None if space else (",", ":")).encode()
    reordered = {"usage": dict(reversed(fields.items()))}
    expected = read_tail(Shape.CHAT, json.dumps(reordered).encode(), False)
    assert read_tail(Shape.CHAT, b"data: " + told if streamed else told, streamed) == expected


def test_text_of_the_model_is_no_usage():
    said = json.dumps('}, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}').encode()
    event = b'data: {"choices":[{"delta":{"content":' + said + b"}}]}\n\n"
    assert read_tail(Shape.CHAT, event, True) is None
    assert read_tail(Shape.CHAT, b'{"choices":[{"message":{"content":' + said + b"}}]}", False) is None


def test_the_top_usage_of_a_whole_reply_counts():
    tool = {"type": "tool_use", "input": {"usage": {"input_tokens": 99}}}
    reply = {"usage": {"input_tokens": 7, "output_tokens": 2}, "content": [tool]}
    assert read_tail(Shape.MESSAGES, json.dumps(reply).encode(), False) == Usage(7, None, 2)


def test_what_engines_count_among_the_input():
    def told(**fields):
        return read_tail(Shape.MESSAGES, json.dumps({"usage": fields}).encode(), False)

    # vLLM: input, read and newly cached are three parts of the prompt.
    assert told(
        input_tokens=20, cache_read_input_tokens=2080, cache_creation_input_tokens=32, output_tokens=8
    ) == Usage(2132, 2080, 8, 32)
    # SGLang tells the whole prompt and how much of it was cached.
    assert told(input_tokens=2100, cache_read_input_tokens=2080, output_tokens=8) == Usage(2100, 2080, 8)


def test_old_engines_leave_the_details_out():
    for details in ({}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": None}}):
        usage = {"prompt_tokens": 5, "completion_tokens": 1, **details}
        assert read_tail(Shape.CHAT, json.dumps({"usage": usage}).encode(), False) == Usage(5, None, 1)


def test_more_cached_than_asked_is_unknown():
    usage = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}
    assert read_tail(Shape.CHAT, json.dumps({"usage": usage}).encode(), False) == Usage(5, None, None)


def test_sglang_generate_tells_it_in_meta_info():
    event = {
        "text": " x",
        "meta_info": {"id": "1", "prompt_tokens": 40, "completion_tokens": 3, "cached_tokens": 32},
    }
    tail = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
    assert read_tail(Shape.OPAQUE, tail, True) == Usage(40, 32, 3)


@pytest.mark.parametrize(
    ("shape", "event", "is_token"),
    [
        (Shape.CHAT, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        (Shape.CHAT, {"choices": [{"delta": {"role": "assistant", "content": None}}]}, False),
        (Shape.CHAT, {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]}, False),
        (Shape.CHAT, {"choices": [], "usage": {"prompt_tokens": 3}}, False),
        (Shape.CHAT, {"choices": [{"delta": {"tool_calls": []}}]}, False),
        (Shape.CHAT, {"choices": [{"delta": {"reasoning_content": "hm"}}]}, True),
        (Shape.CHAT, {"choices": [{"delta": {"reasoning": "hm"}}]}, True),
        (Shape.CHAT, {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        (Shape.CHAT, {"choices": [{"delta": {"content": '"'}}]}, True),
        (Shape.CHAT, {"choices": [{"delta": {}, "finish_reason": "abort"}]}, True),
        (Shape.COMPLETIONS, {"choices": [{"text": ""}]}, False),
        (Shape.COMPLETIONS, {"choices": [{"text": " a"}]}, True),
        (Shape.MESSAGES, {"type": "ping"}, False),
        (Shape.MESSAGES, {"type": "content_block_start", "content_block": {"type": "text"}}, False),
        (Shape.MESSAGES, {"type": "content_block_start", "content_block": {"type": "tool_use"}}, True),
        (Shape.MESSAGES, {"type": "content_block_delta", "delta": {"type": "thinking_delta"}}, True),
        (Shape.RESPONSES, {"type": "response.in_progress"}, False),
        (Shape.RESPONSES, {"type": "response.output_item.added"}, False),
        (Shape.RESPONSES, {"type": "response.reasoning_text.delta", "delta": "hm"}, True),
        (Shape.RESPONSES, {"type": "response.function_call_arguments.delta", "delta": "{"}, True),
    ],
)
def test_what_is_a_token(shape, event, is_token):
    for separators in ((",", ":"), (", ", ": ")):
        text = b"data: " + json.dumps(event, separators=separators).encode() + b"\n\n"
        assert first_content(shape, text) is is_token


def test_a_keep_alive_is_no_token():
    assert not first_content(Shape.CHAT, b": keep-alive\n\n")


def test_a_stream_nobody_can_read_has_begun_in_the_end():
    look = FirstContent(Shape.CHAT)
    pieces = [look.feed(b"\x1f\x8b" * 4096) for _ in range(9)]
    assert pieces == [False] * 8 + [True]


def test_events_of_an_unknown_kind_count_from_the_first():
    assert FirstContent(Shape.OPAQUE).feed(b"data: x\n\n")


@pytest.mark.parametrize(
    ("shape", "body", "asked"),
    [
        (Shape.CHAT, {"stream_options": {"include_usage": True}}, True),
        (Shape.COMPLETIONS, {"stream_options": {"include_usage": True}}, True),
        (Shape.CHAT, {"stream_options": {"include_usage": False}}, False),
        (Shape.CHAT, {"stream_options": {"include_usage": "yes"}}, False),
        (Shape.CHAT, {"stream_options": ["include_usage"]}, False),
        (Shape.CHAT, {}, False),
        (Shape.CHAT, None, False),
        (Shape.MESSAGES, {}, True),
        (Shape.RESPONSES, {}, True),
    ],
)
def test_where_a_stream_will_end_with_usage(shape, body, asked):
    assert usage_is_asked(shape, body) is asked


@pytest.mark.parametrize(
    ("piece", "told"),
    [
        (b'data: {"choices":[],"usage":{"prompt_tokens":9}}', True),
        (b'data: {"choices":[],"usage":null}', False),
        (b'data: {"text":"x","meta_info":{"id":"1"}}', True),
        (b"", False),
    ],
)
def test_an_engine_that_tells_usage_unasked_does_from_the_first_token(piece, told):
    assert usage_is_told(piece) is told
