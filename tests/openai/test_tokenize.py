"""What engines are asked for token ids with, and what counts as an answer."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.routes import Shape
from stickyroute.openai.tokenize import cache_salt, question, read_answer, token_ids
from tests.openai.prompts import nested

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
MESSAGES = [{"role": "user", "content": "Hi"}]


def captured(name: str) -> bytes:
    return (CAPTURES / name).read_bytes().partition(b"\r\n\r\n")[2] or (CAPTURES / name).read_bytes()


def test_a_chat_is_asked_about_with_what_shapes_its_prompt() -> None:
    body = {
        "model": "m",
        "messages": [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]}],
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 1,
        "stream": True,
        "user": "me",
        "chat_template": None,
    }
    asked = question(Shape.CHAT, body)
    assert asked is not None
    wanted = {name: body[name] for name in ("model", "messages", "tools", "chat_template_kwargs")}
    assert json.loads(asked) == {**wanted, "return_token_strs": True}


def test_a_prompt_of_text_is_asked_about_and_one_of_ids_is_read() -> None:
    asked = question(Shape.COMPLETIONS, {"model": "m", "prompt": "Hi", "max_tokens": 3})
    assert asked is not None
    assert json.loads(asked) == {"model": "m", "prompt": "Hi", "return_token_strs": True}
    assert token_ids(Shape.COMPLETIONS, {"prompt": [1, 2, 3]}) == array("I", [1, 2, 3])
    assert question(Shape.COMPLETIONS, {"prompt": [1, 2, 3]}) is None


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Shape.CHAT, {}),
        (Shape.CHAT, {"messages": "Hi"}),
        (Shape.CHAT, {"messages": ["Hi"]}),
        (Shape.CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        (Shape.CHAT, {"messages": [{"role": "user", "content": ["Hi"]}]}),
        (Shape.CHAT, {"messages": [{"role": "user", "content": 7}]}),
        (Shape.CHAT, {"messages": MESSAGES, "documents": [{"text": "x"}]}),
        (Shape.CHAT, {"messages": MESSAGES, "reasoning_effort": "low"}),
        (Shape.COMPLETIONS, {"prompt": ["one", "two"]}),
        (Shape.COMPLETIONS, {}),
        (Shape.MESSAGES, {"messages": MESSAGES}),
        (Shape.RESPONSES, {"input": "Hi"}),
        (Shape.EMBEDDINGS, {"input": "Hi"}),
    ],
)
def test_what_the_route_cannot_render_is_not_asked_about(shape: Shape, body: dict[str, Any]) -> None:
    assert question(shape, body) is None


@pytest.mark.parametrize("prompt", ["text", ["one"], [[1, 2]], [-1], [2**32], [1.5], None, {}])
def test_what_is_no_list_of_ids(prompt: object) -> None:
    assert token_ids(Shape.COMPLETIONS, {"prompt": prompt}) is None


def test_what_is_nested_too_deep_to_be_written_is_not_asked_about() -> None:
    assert question(Shape.CHAT, {"messages": MESSAGES, "tools": nested(1000)}) is None


def test_the_salt() -> None:
    assert cache_salt({"cache_salt": "s"}) == "s"
    assert cache_salt({}) == cache_salt({"cache_salt": 7}) == ""


def test_vllms_answers_as_recorded() -> None:
    tokens, texts = read_answer(captured("vllm-tokenize-chat.txt"))  # type: ignore[misc]
    assert list(tokens) == [0, 4, 206, 47, 76, 83, 329, 891, 7, 206, 5, 206]
    assert list(texts)[3:7] == ["H", "e", "l", "lo"]
    tokens, texts = read_answer(captured("vllm-tokenize-prompt.txt"))  # type: ignore[misc]
    assert (list(tokens), texts) == ([47, 76, 83, 329, 891], None)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"tokens": "x"}',
        b'{"tokens": [-1]}',
        b'{"tokens": null}',
        b'{"detail": "Not Found"}',
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    assert read_answer(answer) is None


def test_odd_spellings_are_left_out() -> None:
    assert read_answer(b'{"tokens": [1], "token_strs": [7]}') == (array("I", [1]), None)
    assert read_answer(b'{"tokens": [1], "token_strs": "a"}') == (array("I", [1]), None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(Shape), st.dictionaries(st.sampled_from(["model", "messages", "prompt", "tools"]), JSON)
)
def test_any_body_is_asked_about_or_not(shape: Shape, body: dict[str, Any]) -> None:
    token_ids(shape, body)
    asked = question(shape, body)
    assert asked is None or isinstance(orjson.loads(asked), dict)


@given(JSON)
def test_any_answer_is_one_or_not(value: object) -> None:
    found = read_answer(orjson.dumps({"tokens": value}))
    assert found is None or isinstance(value, list)
