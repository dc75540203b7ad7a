"""The normalized prompt: its order, what belongs to it, token ids and media."""

from __future__ import annotations

from typing import Any

import pytest

from stickyroute.openai.prompt import normalize
from stickyroute.openai.prompt_json import MEDIA_BYTES
from stickyroute.openai.routes import Shape
from tests.openai.prompts import LIMIT, LONG, billed, chat, completion, said, text

IMAGE_A = "data:image/png;base64," + "A" * 5000 + "x"


IMAGE_B = "data:image/png;base64," + "A" * 5000 + "y"


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
