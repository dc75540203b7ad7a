"""The limit of a prompt: what is past it is neither read nor copied, and makes no difference."""

from __future__ import annotations

import copy
import tracemalloc
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stickyroute.openai.prompt import Prompt, measure, normalize
from stickyroute.openai.prompt_json import bounded_json, json_text
from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape
from tests.openai.prompts import LIMIT, LONG, billed, completion, said, text
from tests.openai.test_request import JSON, READ


@pytest.mark.parametrize("words", ["日本語" * 400, "👩‍👩‍👧‍👦" * 100, "é" * 900, "e\u0301" * 700, "a" * 2000])
@pytest.mark.parametrize("limit", [*range(1020, 1029), 1, 2, 16])
def test_prompts_equal_up_to_the_cut_are_equal(words: str, limit: int) -> None:
    whole = completion(words, limit)
    assert whole == words.encode()[:limit]
    assert completion(words + " and more", limit) == whole


def test_unicode_forms_of_one_word_are_different_prompts_as_they_are_to_the_engine() -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    assert completion(composed) != completion(decomposed)


class Counting(list[Any]):
    """A long list that counts how far it is read."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.read += 1
            yield item


@pytest.mark.interpreted  # compiled code reads a list past what a kind of list says
@pytest.mark.parametrize(
    "build",
    [
        lambda items: {"messages": items},
        lambda items: {"messages": [said("system", items)]},
        lambda items: {"tools": items, "messages": []},
        lambda items: {"documents": [{"a": items}], "messages": []},
    ],
)
@pytest.mark.parametrize(
    "item", [None, "", {}, [], said("system", ""), {"type": "text", "text": billed(1)}, {"type": "image"}]
)
def test_lists_are_left_when_the_limit_is_reached(build: Any, item: Any) -> None:
    for body_bytes in (None, 100 * LIMIT):
        items = Counting([item] * 5000)
        assert len(normalize(Shape.CHAT, build(items), LIMIT, body_bytes).text) <= LIMIT
        assert 0 < items.read <= LIMIT + 17


@pytest.mark.parametrize("limit", [1, 5, 7, 8, 9, 15])
def test_a_limit_met_inside_a_marker_cuts_there(limit: int) -> None:
    """The markers alone fill the prompt: no text is taken in, however long it is."""
    body = {
        "system": "x" * 100_000,
        "messages": [said("user", "y" * 100_000)],
        "tools": [{"n": "z" * 100_000}],
    }
    assert len(text(Shape.MESSAGES, body, limit)) == limit


@pytest.mark.parametrize("limit", [1, 5, 8, 9, 10, 16])
@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Shape.CHAT, {"messages": [said("s" * 1_000_000, "x")]}),
        (Shape.CHAT, {"messages": [said("user", "x" * 1_000_000)]}),
        (Shape.CHAT, {"messages": [said("system", billed(1) + "\n" + "x" * 1_000_000)]}),
        (Shape.CHAT, {"messages": ["x" * 1_000_000]}),
        (Shape.CHAT, {"messages": [], "tools": [{"k" * 1_000_000: 1}]}),
        (Shape.MESSAGES, {"system": "x" * 1_000_000, "messages": [said("user", "y" * 1_000_000)]}),
        (Shape.RESPONSES, {"instructions": "x" * 10, "input": "y" * 1_000_000}),
        (Shape.RESPONSES, {"instructions": "x" * 10, "input": [1] * 1_000_000}),
        (Shape.COMPLETIONS, {"prompt": "x" * 1_000_000}),
        (Shape.COMPLETIONS, {"prompt": [1] * 1_000_000}),
    ],
)
def test_long_texts_are_cut_before_they_are_copied(shape: Shape, body: dict[str, Any], limit: int) -> None:
    tracemalloc.start()
    try:
        normalize(shape, body, limit, 10**7)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_deep_nesting_is_left_where_it_gets_absurd() -> None:
    lists, objects = b"[" * 1000 + b"]" * 1000, b'{"a":' * 1000 + b"1" + b"}" * 1000
    for field in (b"tools", b"messages", b"documents"):
        for deep in (lists, objects):
            asked = parse(Shape.CHAT, b'{"model": "m", "%b": %b}' % (field, deep), strict=True)
            assert asked.body is not None
            head = text(Shape.CHAT, asked.body, 10_000)
            assert 30 <= head.count(b"[") + head.count(b"{") <= 33


FIELDS = ["messages", "system", "tools", "instructions", "input", "prompt", "documents", "prompt_embeds"]
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_calls"]), JSON, max_size=3),
    max_size=3,
)


def half_ids(prompt: Any) -> bool:
    """Token ids, and later in the list what is none: past the limit nobody looks."""
    ids = prompt[0] if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else prompt
    return isinstance(ids, list) and len({isinstance(one, int) and abs(one) < 1 << 31 for one in ids}) > 1


@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON | MESSAGES, max_size=3),
    shape=st.sampled_from(READ),
    limit=st.integers(1, 64),
)
def test_a_lower_limit_gives_the_beginning_of_the_same(body: Any, shape: Shape, limit: int) -> None:
    """Whatever JSON is in whatever field; so a prompt is never longer than its limit, and always the same."""
    assume(not any(half_ids(body.get(name)) for name in ("prompt", "input")))
    before = copy.deepcopy(body)
    whole = text(shape, body)
    for cut in (limit, 8, 16, 40):
        assert text(shape, body, cut) == whole[:cut]
        made = normalize(shape, body, cut, 1)
        assert made.text == whole[:cut]
        assert all(0 < turn <= cut for turn in made.turns)
    assert body == before
    made = normalize(shape, body, 10_000)
    assert isinstance(made, Prompt)
    assert measure(shape, body, 10_000) == (made.size_bytes, made.tokens)


@given(value=JSON | MESSAGES, room=st.integers(1, 60))
def test_json_cut_short_is_the_beginning_of_json(value: Any, room: int) -> None:
    assert bounded_json(value, 10_000) == json_text(value)
    assert json_text(value).startswith(bounded_json(value, room))
    assert len(bounded_json(value, room)) == min(room, len(json_text(value)))


@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES])
@pytest.mark.parametrize("levels", [2, 500])
def test_results_of_tools_inside_one_another_are_spelt_no_deeper_than_anything(
    shape: Shape, levels: int
) -> None:
    """Each level is an object and a list: 500 is about what the parser lets through, and more than our stack held."""
    part: dict[str, Any] = {"type": "text", "text": "innermost"}
    for _ in range(levels):
        part = {"type": "tool_result", "tool_use_id": "t", "content": [part]}
    body = {"messages": [said("user", [part])], "input": [{"type": "function_call_output", "output": [part]}]}
    found = text(shape, body)
    assert found.startswith(b"\x1e")
    assert (b"innermost" in found) == (levels == 2)
    assert measure(shape, body, LONG) == (len(found), None)
