"""The normalized prompt: its order, that it only grows, its limit, and that nothing in a body can break it."""

from __future__ import annotations

import copy
import tracemalloc
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.prompt import Prompt, measure, normalize
from stickyroute.openai.prompt_json import MEDIA_BYTES, bounded_json, json_text
from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape
from tests.openai.test_request import JSON, READ

LIMIT = 1024
LONG = 1 << 22
IMAGE_A = "data:image/png;base64," + "A" * 5000 + "x"
IMAGE_B = "data:image/png;base64," + "A" * 5000 + "y"


def text(shape: Shape, body: dict[str, Any], limit: int = LONG) -> bytes:
    """The normalized prompt; whether the size of the body is known makes no difference to it."""
    made = normalize(shape, body, limit).text
    if limit == LONG:
        assert normalize(shape, body, limit, 1000).text == made
    return made


def chat(*messages: Any, **more: Any) -> bytes:
    return text(Shape.CHAT, {"model": "m", "messages": list(messages), **more})


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def completion(prompt: Any, limit: int = LONG) -> bytes:
    return text(Shape.COMPLETIONS, {"prompt": prompt}, limit)


# What belongs to the prompt.


def test_tools_come_first_then_the_messages_as_role_and_content() -> None:
    made = chat(
        said("system", "SYS"), said("user", "ASK"), said("assistant", "ANSWER"), tools=[{"name": "TOOL"}]
    )
    assert made == b'\x1dtools[{"name":"TOOL"}]\x1esystem\x1fSYS\x1euser\x1fASK\x1eassistant\x1fANSWER'


def test_every_part_makes_a_difference() -> None:
    prompts = [
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
        chat({**said("tool", "q"), "tool_call_id": "1"}),
        chat({**said("tool", "q"), "tool_call_id": "2"}),
        chat({**said("user", "q"), "name": "ann"}),
        chat({**said("assistant", "q"), "reasoning_content": "because"}),
        chat({**said("assistant", "q"), "function_call": {"name": "f"}}),
    ]
    assert len(set(prompts)) == len(prompts)


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


def test_parameters_that_do_not_change_the_prompt_change_nothing() -> None:
    assert chat(said("user", "q"), temperature=1, max_tokens=5, stream=True) == chat(said("user", "q"))


def test_the_three_dialects_put_system_text_before_the_user() -> None:
    responses = text(Shape.RESPONSES, {"instructions": "SYS", "input": [said("user", "ASK")]})
    anthropic = text(Shape.MESSAGES, {"system": "SYS", "messages": [said("user", "ASK")]})
    blocks = {"system": [{"type": "text", "text": "SYS"}], "messages": [said("user", "ASK")]}
    assert responses == anthropic == text(Shape.MESSAGES, blocks)
    assert anthropic == chat(said("system", "SYS"), said("user", "ASK"))


def test_responses_input_as_text_is_one_message_and_items_may_be_of_any_kind() -> None:
    assert text(Shape.RESPONSES, {"input": "hello"}) == chat(said("user", "hello"))
    items = [{"type": "function_call_output", "call_id": "c", "output": "42"}, said("user", "next")]
    made = text(Shape.RESPONSES, {"input": items})
    assert made.index(b"42") < made.index(b"next")
    parts = [{**items[0], "output": [{"type": "input_text", "text": "42"}]}, items[1]]
    assert text(Shape.RESPONSES, {"input": parts}) == made


def test_embeddings_are_read_like_prompts_or_like_messages() -> None:
    assert text(Shape.EMBEDDINGS, {"input": "words"}) == b"words"
    assert text(Shape.EMBEDDINGS, {"messages": [said("user", "q")]}) == chat(said("user", "q"))


def test_an_opaque_body_has_no_prompt() -> None:
    assert text(Shape.OPAQUE, {"prompt": "x", "messages": [said("user", "q")]}) == b""


def test_what_tools_were_asked_and_said_is_spelt_in_full() -> None:
    """It is most of an agent's prompt: a digest of it would weigh nothing."""
    long = "word " * 1000
    use = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": long}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": long}
    parts = {**result, "content": [{"type": "text", "text": long}]}
    body = {"messages": [said("assistant", [use]), said("user", [result])]}
    made = text(Shape.MESSAGES, body)
    assert made.count(long.encode()) == 2
    body["messages"][1]["content"] = [parts]
    assert text(Shape.MESSAGES, body) == made
    call = {"type": "function_call", "name": "read", "arguments": long, "call_id": "c"}
    items = [call, {"type": "function_call_output", "call_id": "c", "output": long}]
    assert text(Shape.RESPONSES, {"input": items}).count(long.encode()) == 2


# Claude Code's billing header: different on every request, at the very front, dropped by vLLM.


def billed(number: int) -> str:
    return f"x-anthropic-billing-header: cc_version=1; cch={number:05d};"


def test_the_billing_header_is_dropped() -> None:
    def head(system: Any) -> bytes:
        return text(Shape.MESSAGES, {"system": system, "messages": [said("user", "q")]})

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


def test_equal_token_ids_make_equal_prompts_up_to_where_they_part() -> None:
    ids = list(range(1000, 1400))
    assert completion(ids)[:1024] == completion([*ids[:256], 7, 8, 9])[:1024]
    assert completion(ids)[:1024] != completion([*ids[:255], 7, 8, 9])[:1024]
    assert len(completion(ids)) == 4 * len(ids)
    assert len(completion(ids, LIMIT)) == LIMIT


def test_the_four_shapes_of_a_prompt() -> None:
    assert completion("hi") == completion(["hi", "there"]) == b"hi"
    assert completion([1, 2, 3]) == completion([[1, 2, 3], [4]]) != b""
    assert completion([1, 2]) != completion([2, 1])
    assert completion([]) == completion("") == completion([[]]) == completion([""]) == b""


@pytest.mark.parametrize(
    ("prompt", "size_bytes", "tokens"),
    [
        ("hello", 5, None),
        (["hello", "you"], 8, None),
        ([1, 2, 3], 12, 3),
        ([[1, 2, 3], [4, 5]], 20, 5),
        ([], 0, None),
        ([[1, 2], "x"], 12, 3),
    ],
)
def test_token_ids_are_counted_exactly_and_batches_whole(
    prompt: Any, size_bytes: int, tokens: int | None
) -> None:
    for limit in (LONG, 4):
        made = normalize(Shape.COMPLETIONS, {"prompt": prompt}, limit)
        assert made.tokens == tokens
        if limit == LONG or tokens:
            assert made.size_bytes == size_bytes, "whatever of it is looked at"


@pytest.mark.parametrize(
    "prompt", [[1, "a"], [1.5], [2**40], [-1], [None], [True], [{"a": 1}], {"a": [1]}, 5]
)
def test_what_is_no_token_id_is_still_read(prompt: Any) -> None:
    assert completion(prompt) != b""
    assert completion(prompt) == completion(prompt)


def test_prompt_embeds_stand_as_a_digest() -> None:
    one = text(Shape.COMPLETIONS, {"prompt_embeds": "A" * 10_000})
    other = text(Shape.COMPLETIONS, {"prompt_embeds": "A" * 9_999 + "B"})
    assert one != other
    assert len(one) == MEDIA_BYTES


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
    assert len(head(IMAGE_A)) < MEDIA_BYTES + 200


def test_a_picture_weighs_what_its_tokens_would_and_many_are_bounded() -> None:
    picture = {"type": "image_url", "image_url": {"url": IMAGE_A}}
    one, two = (len(chat(said("user", [picture] * count))) for count in (1, 2))
    assert two - one == MEDIA_BYTES + 1
    tiny = {"messages": [said("user", [{"type": "image_url"}] * 100_000)]}
    assert normalize(Shape.CHAT, tiny, LONG, 3_000_000).size_bytes < 2 * LONG


def test_a_mark_that_moves_to_the_newest_message_is_not_part_of_the_prompt() -> None:
    """Anthropic's clients move cache_control from turn to turn."""
    mark = {"cache_control": {"type": "ephemeral"}}
    for part in (
        {"type": "text", "text": "q"},
        {"type": "tool_result", "tool_use_id": "t", "content": "42"},
        {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        {"type": "image", "source": {"type": "url", "url": "u"}},
        {"type": "something_new", "a": 1},
    ):
        assert chat(said("user", [{**part, **mark}])) == chat(said("user", [part]))


# It only grows.

WORDS = st.text(max_size=12)
SAID: st.SearchStrategy[Any] = (
    WORDS
    | st.none()
    | st.lists(
        WORDS
        | st.builds(lambda words: {"type": "text", "text": words}, WORDS)
        | st.builds(lambda words: {"type": "tool_result", "tool_use_id": "t", "content": words}, WORDS)
        | st.builds(lambda words: {"type": "tool_use", "id": "t", "input": {"b": words, "a": 1}}, WORDS)
        | st.builds(lambda words: {"type": "image_url", "image_url": {"url": words}}, WORDS),
        max_size=3,
    )
)
MESSAGE = st.builds(
    lambda role, content, more: {"role": role, "content": content, **more},
    st.sampled_from(["system", "developer", "user", "assistant", "tool", "critic"]),
    SAID,
    st.dictionaries(st.sampled_from(["name", "tool_calls", "reasoning_content", "tool_call_id"]), JSON),
)
ITEM = MESSAGE | st.dictionaries(
    st.sampled_from(["type", "call_id", "output", "name", "arguments", "id"]), SAID | JSON
)
FRONT = st.dictionaries(
    st.sampled_from(["tools", "system", "instructions", "documents", "chat_template_kwargs"]), JSON
)


@given(front=FRONT, items=st.lists(ITEM | JSON, max_size=8), data=st.data())
def test_a_conversation_that_goes_on_begins_with_what_it_was(
    front: dict[str, Any], items: list[Any], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(items)))
    for shape, field in (
        (Shape.CHAT, "messages"),
        (Shape.MESSAGES, "messages"),
        (Shape.RESPONSES, "input"),
        (Shape.EMBEDDINGS, "messages"),
    ):
        before = text(shape, {**front, field: items[:cut]})
        assert text(shape, {**front, field: items}).startswith(before)


@given(ids=st.lists(st.integers(0, 200_000)), more=st.lists(st.integers(0, 200_000)), words=WORDS, on=WORDS)
def test_a_bare_prompt_that_goes_on_begins_with_what_it_was(
    ids: list[int], more: list[int], words: str, on: str
) -> None:
    for shape, field in ((Shape.COMPLETIONS, "prompt"), (Shape.EMBEDDINGS, "input")):
        assert text(shape, {field: ids + more}).startswith(text(shape, {field: ids}))
        assert text(shape, {field: words + on}).startswith(text(shape, {field: words}))


def test_a_responses_conversation_goes_on_from_a_text() -> None:
    first = text(Shape.RESPONSES, {"instructions": "SYS", "input": "hello"})
    answer = {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi"}],
    }
    items = [said("user", "hello"), answer, said("user", "and now?")]
    made = normalize(Shape.RESPONSES, {"instructions": "SYS", "input": items}, LONG)
    assert made.text.startswith(first)
    assert made.turns == (len(first),)


ASKED_AND_ANSWERED = st.lists(
    st.tuples(WORDS, st.lists(SAID, min_size=1, max_size=2)), min_size=1, max_size=7
)


@given(turns=ASKED_AND_ANSWERED, system=WORDS, known=st.booleans())
def test_the_last_turns_are_told_last_first(
    turns: list[tuple[str, list[Any]]], system: str, known: bool
) -> None:
    """Each is the size of the prompt that an answer was given to."""
    messages = [said("system", system)]
    sizes = []
    for asked, answers in turns:
        messages.append(said("user", asked))
        sizes.append(len(chat(*messages)))
        messages += [said("assistant", answer) for answer in answers]
    made = normalize(Shape.CHAT, {"messages": messages}, LONG, 1 if known else None)
    assert made.turns == tuple(sizes[:-5:-1])


def test_calls_and_thoughts_of_a_model_begin_a_turn_too() -> None:
    items = [
        said("user", "q"),
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "function_call", "name": "g", "arguments": "{}", "call_id": "d"},
    ]
    made = normalize(Shape.RESPONSES, {"input": items}, LONG)
    sizes = [len(text(Shape.RESPONSES, {"input": items[:count]})) for count in (4, 1)]
    assert list(made.turns) == sizes


# The limit.


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


@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON | MESSAGES, max_size=3),
    shape=st.sampled_from(READ),
    limit=st.integers(1, 64),
)
def test_a_lower_limit_gives_the_beginning_of_the_same(body: Any, shape: Shape, limit: int) -> None:
    """Whatever JSON is in whatever field; so a prompt is never longer than its limit, and always the same."""
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
