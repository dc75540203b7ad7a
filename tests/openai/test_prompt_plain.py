"""The short way for plain chats: the same prompt, to the byte, as the way that looks at everything."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.prompt import normalize
from stickyroute.openai.routes import Shape

WORDS = st.sampled_from(
    ["", "hi", "è", "\N{CJK UNIFIED IDEOGRAPH-4F60}好", "x-anthropic-billing-header: a\nb", "a " * 400]
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "assistant", "tool", "other", 5, None])
MESSAGE = st.fixed_dictionaries(
    {
        "role": ROLES,
        "content": WORDS | st.none() | st.lists(st.just({"type": "text", "text": "t"}), max_size=2),
    },
    optional={"name": WORDS},
)
AROUND = st.sampled_from([{}, {}, {"tools": [{"a": 1}]}, {"functions": []}, {"reasoning_effort": "low"}])


@given(messages=st.lists(MESSAGE, max_size=8), around=AROUND)
def test_it_makes_no_difference(messages: list[Any], around: dict[str, Any]) -> None:
    body = {"model": "m", "messages": messages, **around}
    short, whole = (
        normalize(Shape.CHAT, body, 1 << 20, len(orjson.dumps(body))),
        normalize(Shape.CHAT, body, 1 << 20),
    )
    assert short == whole


@given(contents=st.lists(WORDS, min_size=1, max_size=8), answers=st.booleans())
def test_nor_where_all_is_plain(contents: list[str], answers: bool) -> None:
    roles = ["user", "assistant"] if answers else ["user"]
    messages = [
        {"role": roles[number % len(roles)], "content": content} for number, content in enumerate(contents)
    ]
    body = {"messages": messages}
    short, whole = (
        normalize(Shape.CHAT, body, 1 << 20, len(orjson.dumps(body))),
        normalize(Shape.CHAT, body, 1 << 20),
    )
    assert short == whole
    assert len(short.turns) == min(4, len(contents) // 2 if answers else 0)


def test_more_messages_than_are_read_are_not_read_this_way_either() -> None:
    body = {"messages": [{"role": "user", "content": ""}] * 3000}
    whole = normalize(Shape.CHAT, body, 1 << 20)
    assert normalize(Shape.CHAT, body, 1 << 20, len(orjson.dumps(body))) == whole
