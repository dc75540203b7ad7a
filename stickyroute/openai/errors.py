"""Error bodies in the dialect of the API that was asked.

Owns the two shapes. Knows nothing of why something failed.
"""

from __future__ import annotations

import orjson

from stickyroute.openai.routes import Shape

__all__ = ["error_body"]

# Anthropic's own word for each status.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(
    shape: Shape | None,
    status: int,
    message: str,
    type: str,  # noqa: A002 - named after the field it fills
    code: str | None,
    param: str | None,
) -> bytes:
    """The JSON body of an error: Anthropic's shape for MESSAGES, else OpenAI's.

    `type`, `code` and `param` (the request field at fault) are OpenAI's; Anthropic's type follows the status.
    """
    if shape is Shape.MESSAGES:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return _dumps({"type": "error", "error": {"type": kind, "message": message}})
    return _dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


def _dumps(body: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # a message that quotes text with lone surrogates
        error = body["error"]
        assert isinstance(error, dict)
        return orjson.dumps({**body, "error": {key: _printable(value) for key, value in error.items()}})


def _printable(value: object) -> object:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
