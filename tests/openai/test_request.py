"""Reading a body: what is asked, and a clean 400 for everything that can't be read."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.errors import BadRequest
from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape

READ = [Shape.CHAT, Shape.COMPLETIONS, Shape.RESPONSES, Shape.MESSAGES, Shape.EMBEDDINGS, Shape.OPAQUE]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def refused(body: bytes, shape: Shape = Shape.CHAT) -> BadRequest:
    """The refusal of a strict reading; a lenient one must not raise."""
    with pytest.raises(BadRequest) as caught:
        parse(shape, body, strict=True)
    parse(shape, body, strict=False)
    return caught.value


@pytest.mark.parametrize("shape", READ)
def test_model_stream_and_fields_are_read(shape: Shape) -> None:
    asked = parse(shape, b' {"model": "llama", "stream": true, "user": "ann"}\n', strict=True)
    assert (asked.model, asked.stream) == ("llama", True)
    assert asked.body == {"model": "llama", "stream": True, "user": "ann"}


@pytest.mark.parametrize("stream", [False, None, 0, 1, "true", [], {}, [True]])
def test_only_true_is_a_stream(stream: Any) -> None:
    body = orjson.dumps({"model": "llama", "stream": stream})
    assert parse(Shape.CHAT, body, strict=True).stream is False


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"  \n", id="blank"),
        pytest.param(b"{", id="cut"),
        pytest.param(b'{"model": "m"} x', id="more after it"),
        pytest.param(b'{"model": "m", "n": NaN}', id="NaN"),
        pytest.param(b'{"model": "m", "n": -Infinity}', id="Infinity"),
        pytest.param(b'\xef\xbb\xbf{"model": "m"}', id="byte order mark"),
        pytest.param(b'{"model": "\xff\xfe"}', id="not UTF-8"),
        pytest.param('{"model": "m"}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b'{"model": "m", "x": "\\ud800"}', id="lone surrogate"),
        pytest.param(b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="too deep"),
        pytest.param(b'{"model": "m", "x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, id="too deep"),
        pytest.param(b"{'model': 'm'}", id="single quotes"),
        pytest.param(b'{"model": "m",}', id="comma at the end"),
        pytest.param(b"\x00" * 100, id="zeros"),
        pytest.param(b"--boundary\r\n", id="multipart"),
    ],
)
def test_what_is_not_json_is_a_400_that_says_so(body: bytes) -> None:
    error = refused(body)
    assert (error.status, error.code, error.param) == (400, "invalid_json", None)
    assert parse(Shape.CHAT, body, strict=False).body is None


@pytest.mark.parametrize("body", [b"null", b"true", b"1", b'"text"', b"[]", b'[{"model": "m"}]'])
def test_json_that_is_no_object_is_a_400(body: bytes) -> None:
    assert refused(body).code == "invalid_json"
    assert parse(Shape.CHAT, body, strict=False).body is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_model"),
        ({"model": None}, "missing_model"),
        ({"model": ""}, "missing_model"),
        ({"model": 5}, "invalid_model"),
        ({"model": 0}, "invalid_model"),
        ({"model": True}, "invalid_model"),
        ({"model": []}, "invalid_model"),
        ({"model": ["llama"]}, "invalid_model"),
        ({"model": {}}, "invalid_model"),
        ({"Model": "llama"}, "missing_model"),
    ],
)
def test_a_model_that_is_no_name_is_a_400_that_names_the_field(body: dict[str, Any], code: str) -> None:
    error = refused(orjson.dumps(body))
    assert (error.status, error.code, error.param) == (400, code, "model")
    lenient = parse(Shape.CHAT, orjson.dumps(body), strict=False)
    assert (lenient.model, lenient.body) == (None, body)


def test_of_a_key_that_stands_twice_the_last_counts_as_in_the_engines() -> None:
    assert parse(Shape.CHAT, b'{"model": "a", "model": "b"}', strict=True).model == "b"


def test_text_that_looks_like_a_field_is_text() -> None:
    body = orjson.dumps(
        {"model": "a", "messages": [{"role": "user", "content": '"model": "b", "user": "eve"'}]}
    )
    asked = parse(Shape.CHAT, body, strict=True)
    assert asked.model == "a"
    assert asked.body is not None
    assert "user" not in asked.body


@given(body=st.binary(max_size=200) | JSON.map(orjson.dumps), shape=st.sampled_from(READ))
def test_any_bytes_are_read_or_refused(body: bytes, shape: Shape) -> None:
    lenient = parse(shape, body, strict=False)
    try:
        strict = parse(shape, body, strict=True)
    except BadRequest as error:
        assert error.status == 400
        assert lenient.model is None
    else:
        assert strict.model == lenient.model != ""
