"""A prompt only grows: a conversation that goes on begins with what it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.prompt import normalize
from stickyroute.openai.routes import Shape
from tests.openai.prompts import LONG, chat, said, text
from tests.openai.test_request import JSON

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
