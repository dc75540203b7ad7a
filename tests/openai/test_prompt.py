"""The head of the normalized prompt: its order, its limit, and that nothing in a body can break it."""

from __future__ import annotations

import tracemalloc
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.prompt import prompt_head
from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape
from tests.openai.test_request import JSON, READ

LIMIT = 1024
IMAGE_A = "data:image/png;base64," + "A" * 5000 + "x"
IMAGE_B = "data:image/png;base64," + "A" * 5000 + "y"


def chat(*messages: Any, **more: Any) -> bytes:
    return prompt_head(Shape.CHAT, {"model": "m", "messages": list(messages), **more}, LIMIT)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def completion(prompt: Any, limit: int = LIMIT) -> bytes:
    return prompt_head(Shape.COMPLETIONS, {"prompt": prompt}, limit)


# What belongs to the head.


def test_a_conversation_keeps_its_head_as_it_grows() -> None:
    turns = [said("system", "be brief"), said("user", "hello")]
    first = chat(*turns)
    turns += [said("assistant", "hi"), said("user", "and now?")]
    assert chat(*turns) == first


def test_tools_come_first_then_system_then_the_first_user_message() -> None:
    head = chat(said("system", "SYS"), said("user", "ASK"), said("user", "LATER"), tools=[{"name": "TOOL"}])
    assert head.index(b"TOOL") < head.index(b"SYS") < head.index(b"ASK")
    assert b"LATER" not in head


def test_every_part_of_the_head_makes_a_difference() -> None:
    heads = [
        chat(said("user", "q")),
        chat(said("user", "r")),
        chat(said("system", "q")),
        chat(said("system", "s"), said("user", "q")),
        chat(said("developer", "s"), said("user", "q")),
        chat(said("user", "q"), tools=[{"name": "a"}]),
        chat(said("user", "q"), tools=[{"name": "b"}]),
        chat(said("user", "q"), functions=[{"name": "c"}]),
        chat(said("user", "q"), chat_template_kwargs={"enable_thinking": True}),
        chat(said("user", "q"), chat_template_kwargs={"enable_thinking": False}),
        chat(said("user", "q"), reasoning_effort="high"),
        chat(said("user", "q"), documents=[{"text": "d"}]),
        chat(said("assistant", "a"), said("user", "q")),
        chat(said("assistant", "aq")),
        chat(
            said("assistant", "a"), {**said("assistant", None), "tool_calls": [{"id": 1}]}, said("user", "q")
        ),
        chat(
            said("assistant", "a"), {**said("assistant", None), "tool_calls": [{"id": 2}]}, said("user", "q")
        ),
        chat(said("user", "")),
    ]
    assert len(set(heads)) == len(heads)


def test_tools_are_canonical() -> None:
    one = chat(said("user", "q"), tools=[{"name": "t", "parameters": {"a": 1, "b": 2}}])
    other = chat(said("user", "q"), tools=[{"parameters": {"b": 2, "a": 1}, "name": "t"}])
    assert one == other


def test_absent_null_and_empty_tools_are_alike() -> None:
    assert chat(said("user", "q"), tools=None) == chat(said("user", "q"), tools=[]) == chat(said("user", "q"))


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_a_text_part_is_its_text(kind: str) -> None:
    assert chat(said("user", [{"type": kind, "text": "hello"}])) == chat(said("user", "hello"))
    assert chat(said("user", ["hello"])) == chat(said("user", "hello"))


def test_parameters_that_do_not_change_the_prompt_do_not_change_the_head() -> None:
    assert chat(said("user", "q"), temperature=1, max_tokens=5, stream=True) == chat(said("user", "q"))


def test_the_three_dialects_put_system_text_before_the_user() -> None:
    responses = prompt_head(Shape.RESPONSES, {"instructions": "SYS", "input": [said("user", "ASK")]}, LIMIT)
    anthropic = prompt_head(Shape.MESSAGES, {"system": "SYS", "messages": [said("user", "ASK")]}, LIMIT)
    blocks = {"system": [{"type": "text", "text": "SYS"}], "messages": [said("user", "ASK")]}
    assert responses == anthropic == prompt_head(Shape.MESSAGES, blocks, LIMIT)
    assert anthropic == chat(said("system", "SYS"), said("user", "ASK"))


def test_responses_input_as_text_and_as_items_of_any_kind() -> None:
    head = prompt_head(Shape.RESPONSES, {"input": "hello"}, LIMIT)
    assert head == b"hello"
    items = [{"type": "function_call_output", "call_id": "c", "output": "42"}, said("user", "next")]
    head = prompt_head(Shape.RESPONSES, {"input": items}, LIMIT)
    assert head.index(b"42") < head.index(b"next")


def test_embeddings_are_read_like_prompts_or_like_messages() -> None:
    assert prompt_head(Shape.EMBEDDINGS, {"input": "text"}, LIMIT) == b"text"
    assert prompt_head(Shape.EMBEDDINGS, {"messages": [said("user", "q")]}, LIMIT) == chat(said("user", "q"))


def test_an_opaque_body_has_no_head() -> None:
    assert prompt_head(Shape.OPAQUE, {"prompt": "x", "messages": [said("user", "q")]}, LIMIT) == b""


# Claude Code's billing header: different on every request, at the very front, dropped by vLLM.


def billed(number: int) -> str:
    return f"x-anthropic-billing-header: cc_version=1; cch={number:05d};"


def test_the_billing_header_is_dropped() -> None:
    def head(system: Any) -> bytes:
        return prompt_head(Shape.MESSAGES, {"system": system, "messages": [said("user", "q")]}, LIMIT)

    rest = {"type": "text", "text": "You are Claude Code."}
    blocks = [head([{"type": "text", "text": billed(i)}, rest]) for i in range(3)]
    assert blocks == [head([rest])] * 3
    lines = [head(billed(i) + "\nYou are Claude Code.") for i in range(3)]
    assert lines == [head("You are Claude Code.")] * 3
    assert head(billed(1)) == head(billed(2))
    assert chat(said("system", billed(1) + "\nhi")) == chat(said("system", "hi"))


def test_a_user_who_writes_of_the_billing_header_is_read_as_written() -> None:
    assert chat(said("user", billed(1))) != chat(said("user", billed(2)))


# Token ids.


def test_equal_token_ids_make_equal_heads_up_to_the_cut() -> None:
    ids = list(range(1000, 1400))
    assert completion(ids) == completion([*ids[:256], 7, 8, 9])
    assert completion(ids) != completion([*ids[:255], 7, 8, 9])
    assert len(completion(ids)) == LIMIT


def test_the_four_shapes_of_a_prompt() -> None:
    assert completion("hi") == completion(["hi", "there"]) == b"hi"
    assert completion([1, 2, 3]) == completion([[1, 2, 3], [4]]) != b""
    assert completion([1, 2]) != completion([2, 1])
    assert completion([]) == completion("") == completion([[]]) == completion([""]) == b""


@pytest.mark.parametrize(
    "prompt", [[1, "a"], [1.5], [2**40], [-1], [None], [True], [{"a": 1}], {"a": [1]}, 5]
)
def test_what_is_no_token_id_is_still_read(prompt: Any) -> None:
    assert completion(prompt) != b""
    assert completion(prompt) == completion(prompt)


def test_prompt_embeds_stand_as_a_digest() -> None:
    one = prompt_head(Shape.COMPLETIONS, {"prompt_embeds": "A" * 10_000}, LIMIT)
    other = prompt_head(Shape.COMPLETIONS, {"prompt_embeds": "A" * 9_999 + "B"}, LIMIT)
    assert one != other
    assert len(one) == 8


# Media.


@pytest.mark.parametrize(
    "part",
    [
        lambda url: {"type": "image_url", "image_url": {"url": url}},
        lambda url: {"type": "image_url", "image_url": url},
        lambda url: {"type": "input_image", "image_url": url},
        lambda url: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url}},
        lambda url: {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        lambda url: {"type": "video_url", "video_url": {"url": url}},
        lambda url: {"type": "something_new", "payload": {"deep": [url]}},
    ],
)
def test_media_are_told_apart_by_their_whole_reference(part: Any) -> None:
    def head(url: str) -> bytes:
        return chat(said("user", [{"type": "text", "text": "what is it?"}, part(url)]))

    assert head(IMAGE_A) == head(IMAGE_A)
    assert head(IMAGE_A) != head(IMAGE_B), "they differ in the last character only"
    assert len(head(IMAGE_A)) < 200


# The limit.


@pytest.mark.parametrize("text", ["日本語" * 400, "👩‍👩‍👧‍👦" * 100, "é" * 900, "e\u0301" * 700, "a" * 2000])
@pytest.mark.parametrize("limit", [*range(1020, 1029), 1, 2, 16])
def test_prompts_equal_up_to_the_cut_have_one_head(text: str, limit: int) -> None:
    whole = completion(text, limit)
    assert whole == text.encode()[:limit]
    assert completion(text + " and more", limit) == whole


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
def test_lists_are_left_when_the_head_is_full(build: Any, item: Any) -> None:
    items = Counting([item] * 5000)
    assert len(prompt_head(Shape.CHAT, build(items), LIMIT)) <= LIMIT
    assert 0 < items.read <= LIMIT + 1


@pytest.mark.parametrize("limit", [1, 5, 7, 8, 9, 15])
def test_a_limit_met_inside_a_marker_cuts_there(limit: int) -> None:
    """The markers alone fill the head: no text is taken in, however long it is."""
    body = {
        "system": "x" * 100_000,
        "messages": [said("user", "y" * 100_000)],
        "tools": [{"n": "z" * 100_000}],
    }
    assert len(prompt_head(Shape.MESSAGES, body, limit)) == limit


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
        prompt_head(shape, body, limit)
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
            head = prompt_head(Shape.CHAT, asked.body, 10_000)
            assert 30 <= head.count(b"[") + head.count(b"{") <= 33


FIELDS = ["messages", "system", "tools", "instructions", "input", "prompt", "documents", "prompt_embeds"]
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_calls"]), JSON, max_size=3),
    max_size=3,
)


@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON | MESSAGES, max_size=3),
    shape=st.sampled_from(READ),
    limit=st.integers(1, 64),
)
def test_a_shorter_head_is_the_beginning_of_a_longer_one(body: Any, shape: Shape, limit: int) -> None:
    """Whatever JSON is in whatever field; so a head is never longer than its limit, and always the same."""
    whole = prompt_head(shape, body, 10_000)
    for cut in (limit, 8, 16, 40):
        assert prompt_head(shape, body, cut) == whole[:cut]
