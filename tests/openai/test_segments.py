"""A body in parts, as templates render them: their order and numbers, and that every byte counts."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.routes import Shape
from stickyroute.openai.segments import MESSAGE, SYSTEM, TEMPLATE, TOOLS, segments

LIMIT = 1 << 20


def places(shape: Shape, body: dict[str, Any]) -> list[tuple[str, int]]:
    return [(part.place, part.number) for part in segments(shape, body, LIMIT)]


def test_a_chat_in_parts() -> None:
    body = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "system", "content": "A word in between."},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"thinking": True},
    }
    assert places(Shape.CHAT, body) == [
        (TOOLS, 0), (TEMPLATE, 0), (SYSTEM, 0), (SYSTEM, 1), (MESSAGE, 2), (MESSAGE, 3), (MESSAGE, 4),
    ]  # fmt: skip
    texts = [part.text for part in segments(Shape.CHAT, body, LIMIT)]
    assert texts[2] == b"Be kind."
    assert texts[4] == b"user\x1fHello"
    assert b'"id":"1"' in texts[6]


def test_the_other_shapes() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: 1"},
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
    ]
    assert [
        part.text for part in segments(Shape.MESSAGES, {"system": system, "messages": messages}, LIMIT)
    ] == [
        b"Be kind.",
        b"user\x1fHello",
    ]
    asked = {"instructions": "Be kind.", "input": "Hello"}
    assert [part.text for part in segments(Shape.RESPONSES, asked, LIMIT)] == [b"Be kind.", b"user\x1fHello"]
    assert [part.text for part in segments(Shape.COMPLETIONS, {"prompt": ["Hello", "x"]}, LIMIT)] == [
        b"Hello"
    ]
    assert segments(Shape.EMBEDDINGS, {"input": "Hello"}, LIMIT) == []
    assert segments(Shape.RESPONSES, {"previous_response_id": "resp_1", "input": "Hello"}, LIMIT) == []


def test_keys_stay_in_the_order_they_came() -> None:
    one, two = ({"tools": [json.loads(text)], "messages": []} for text in ('{"a":1,"b":2}', '{"b":2,"a":1}'))
    assert segments(Shape.CHAT, one, LIMIT)[0].text != segments(Shape.CHAT, two, LIMIT)[0].text


def test_a_picture_is_its_reference() -> None:
    data = "data:image/png;base64," + "A" * 100_000
    content = [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "What is it?"}]
    (part,) = segments(Shape.CHAT, {"messages": [{"role": "user", "content": content}]}, LIMIT)
    assert 1000 < len(part.text) < 2000


def test_no_more_than_the_limit_is_read() -> None:
    messages = [{"role": "user", "content": "x" * 100}] * 50
    parts = segments(Shape.CHAT, {"messages": messages}, 1000)
    assert sum(len(part.text) for part in parts) <= 1000
    assert len(parts) == 10


FIELDS = (
    "messages",
    "role",
    "content",
    "type",
    "text",
    "tools",
    "system",
    "input",
    "prompt",
    "tool_calls",
    "documents",
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(body=st.dictionaries(st.sampled_from(FIELDS), values), shape=st.sampled_from(list(Shape)))
def test_every_body_has_parts_or_none(body: dict[str, Any], shape: Shape) -> None:
    for part in segments(shape, body, LIMIT):
        assert part.place in (TOOLS, TEMPLATE, SYSTEM, MESSAGE)
        assert part.text == segments(shape, body, LIMIT)[segments(shape, body, LIMIT).index(part)].text
