"""Error bodies in both dialects."""

from __future__ import annotations

import orjson
import pytest

from stickyroute.openai.errors import error_body
from stickyroute.openai.routes import Shape


@pytest.mark.parametrize("shape", [None, *(shape for shape in Shape if shape is not Shape.MESSAGES)])
def test_openai_shape(shape: Shape | None) -> None:
    body = error_body(shape, 404, "No `x`.", "invalid_request_error", "model_not_found", "model")
    error = {
        "message": "No `x`.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert orjson.loads(body) == {"error": error}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_anthropic_shape(status: int, kind: str) -> None:
    body = error_body(Shape.MESSAGES, status, "No.", "server_error", "some_code", None)
    assert orjson.loads(body) == {"type": "error", "error": {"type": kind, "message": "No."}}


@pytest.mark.parametrize("shape", [Shape.CHAT, Shape.MESSAGES])
def test_a_message_that_quotes_odd_text_is_still_json(shape: Shape) -> None:
    body = error_body(shape, 404, 'no "\ud800\x00\n日"', "t", "c", None)
    assert orjson.loads(body)["error"]["message"] == 'no "?\x00\n日"'
