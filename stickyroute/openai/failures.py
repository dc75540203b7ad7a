"""How engines say that they failed: error events inside a stream whose transport is fine, and errors of draining.

Owns what these look like in vLLM and SGLang. Pure; looks at the beginning and the end of a reply, never at what
lies between. What follows from a failure is the proxy's to decide.

- SGLang tells inside a 200 stream that its queue is full: an error event (0.5.23), or a chunk that ends with
  finish reason `abort` and has no text (0.5.3 to 0.5.9); serving_chat.py.
- vLLM whose engine core died ends its streams with an error event, `[DONE]` and a clean end, and answers new
  requests with 500.
- vLLM that drains (--shutdown-timeout) answers new requests with 500 while its health is green.
- Either ends running streams with finish reason `abort` when it is told to stop.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

__all__ = ["ABORTED", "BUSY", "DEAD", "FAILED", "GOOD", "MORE", "of_body", "of_end", "of_opening"]

GOOD = ""
"""Nothing failed, or it is the client's fault."""
MORE = "more"
"""Not known before more of the stream has come."""
BUSY = "busy"
"""The engine takes no more now, and has not begun."""
DEAD = "dead"
"""The engine takes no requests any more: its core is gone, or it shuts down."""
FAILED = "error"
"""The engine failed at this request."""
ABORTED = "aborted"
"""The engine ended the answer before its time."""

LOOK_BYTES = 8192
"""No error event is longer; what is not whole by then is passed on."""
_FIRST_BYTES = (
    1024  # of a stream: its first event or two, which is where an engine says that it has not begun
)
_LAST_BYTES = 2048  # of a stream: its last events, usage and `[DONE]` included

_NAME = rb'data:[ ]?\{[ ]?"(?:error"|object"[ ]?:[ ]?"error"|type"[ ]?:[ ]?"error")'
_ERROR_BEGINS = re.compile(rb"\s*(?:event:[ ]?error\r?\n)?" + _NAME)
_BEGINNINGS = (b'data: {"error"', b'data:{"error"', b'data: {"object":"error"', b'event: error\ndata: {"')
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))
_ERROR_WITHIN = re.compile(
    rb"(?:\A|[\r\n])" + _NAME + rb'|(?:\A|[\r\n])data:[ ]?\{"type"[ ]?:[ ]?"response\.failed"'
)
# Inside a JSON string a quote has a backslash before it, so that no text of an answer looks like this.
_ABORT = re.compile(rb'"finish_reason"[ ]?:[ ]?(?:\{[ ]?"type"[ ]?:[ ]?)?"abort"')
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_GONE = ("enginecore", "enginedead", "engine core", "after shutdown")
_FULL = ("503", "429", "service_unavailable", "service unavailable", "overloaded_error")


def of_opening(piece: bytes, last: bool) -> str:
    """What the stream that begins with `piece` says of the engine; `last`: it is all of it.

    MORE only while the piece can be the beginning of an error event, so that no good stream is held up.
    """
    if _ERROR_BEGINS.match(piece) is not None:
        if not last and len(piece) < LOOK_BYTES and _EVENT_END.search(piece) is None:
            return MORE
        return _of_events(piece)
    if len(piece) < _LONGEST_BEGINNING and not last and any(text.startswith(piece) for text in _BEGINNINGS):
        return MORE
    return _of_events(piece) if piece.find(b'"abort"', 0, _FIRST_BYTES) >= 0 else GOOD


def of_end(tail: bytes) -> str:
    """What the last bytes of a stream that ended in order say; they may begin anywhere, chunk lines included."""
    tail = tail[-_LAST_BYTES:]
    # Looks that cost a tenth of what follows, and from the end half of that.
    if tail.rfind(b'"error"') >= 0 or tail.rfind(b"response.failed") >= 0:
        found = _ERROR_WITHIN.search(tail)
        if found is not None:
            return DEAD if _is_gone(tail[found.start() :].decode("utf-8", "replace")) else FAILED
    return ABORTED if tail.rfind(b'"abort"') >= 0 and _ABORT.search(tail) is not None else GOOD


def of_body(body: bytes) -> str:
    """What the body of a 500 says: DEAD if the engine takes no requests any more, else FAILED."""
    return DEAD if _is_gone(body[:LOOK_BYTES].decode("utf-8", "replace")) else FAILED


def _of_events(piece: bytes) -> str:
    """The first event that tells something: text, an error, or an end without any text."""
    for event in _EVENT_END.split(piece):
        begin = event.find(b"data:")
        if begin < 0:
            continue
        try:
            value = orjson.loads(event[begin + 5 :])
        except orjson.JSONDecodeError:
            return GOOD
        if not isinstance(value, dict):
            return GOOD
        if value.get("error") or "error" in (value.get("object"), value.get("type")):
            return _of_error(value.get("error") or value)
        if _has_text(value):
            return GOOD
        if _ABORT.search(event) is not None:
            return BUSY
    return GOOD


def _of_error(error: object) -> str:
    if not isinstance(error, dict):
        return DEAD if _is_gone(_spelt(error)) else FAILED
    if _is_gone(_spelt(error.get("message", ""))):
        return DEAD
    code, kind = _spelt(error.get("code", "")).lower(), _spelt(error.get("type", "")).lower()
    if code in _FULL or kind in _FULL:
        return BUSY
    return GOOD if len(code) == 3 and code.startswith("4") else FAILED


def _spelt(value: object) -> str:
    try:
        return str(value)
    except RecursionError:  # nested as deep as JSON may be, which no engine means
        return ""


def _has_text(value: dict[str, Any]) -> bool:
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            return True
        delta = choice.get("delta")
        if choice.get("text") or (isinstance(delta, dict) and any(delta.get(name) for name in _TEXTS)):
            return True
    return bool(value.get("text"))


_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


def _is_gone(message: str) -> bool:
    lower = message.lower()
    return any(word in lower for word in _GONE)
