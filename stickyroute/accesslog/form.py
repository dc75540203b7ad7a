"""How a line of the access log looks: its fields, as JSON and as text.

Owns both forms and what may stand in them: text that came from a client is escaped and capped. Runs in the log's
thread; what most lines have in common is written once, since a line's CPU is the data plane's loss.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from time import gmtime, strftime
from typing import Final

import orjson

__all__ = ["END", "FIELDS", "FORMATS", "MAX_TEXT", "STATUS", "Line", "Text"]

MAX_TEXT = 256
"""Longest text value of a line, in characters."""

_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")
"""Printable ASCII without space, quote, equals sign and backslash: needs no quoting in the text form."""

Text = str | bytes | None
# fmt: off
Line = tuple[
    float, Text, Text, Text, Text, Text, Text, int | None, Text, Text, Text,
    int, int, float | None, float, int, int, int | None, int | None, float | None, int | None, Text,
]
# fmt: on
"""A line's values in the order of `FIELDS`: a plain tuple is the cheapest the hot path can make."""

FIELDS = (
    "ts", "request_id", "peer", "method", "route", "model", "pool", "key", "key_source", "backend", "reason",
    "attempts", "status", "ttft_s", "duration_s", "bytes_in", "bytes_out", "prompt_tokens", "cached_tokens",
    "expected_tokens", "answer_tokens", "end",
)  # fmt: skip
STATUS: Final = 12  # the places of two of them
END: Final = 21


def _as_json(line: Line) -> str:
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    short = model is None or len(model) <= MAX_TEXT
    if short and type(request_id) is bytes and type(method) is bytes and len(request_id) <= MAX_TEXT:
        try:
            out = orjson.dumps(
                {
                    "ts": _time(ts),
                    "request_id": request_id.decode("latin-1") or None,
                    "peer": peer or None,
                    "method": method.decode("latin-1") or None,
                    "route": route or None,
                    "model": model or None,
                    "pool": pool or None,
                    "key": None if key is None else f"{key:016x}",
                    "key_source": key_source or None,
                    "backend": backend or None,
                    "reason": reason or None,
                    "attempts": attempts,
                    "status": status,
                    "ttft_s": None if ttft_s is None else round(ttft_s, 6),
                    "duration_s": round(duration_s, 6),
                    "bytes_in": bytes_in,
                    "bytes_out": bytes_out,
                    "prompt_tokens": prompt_tokens,
                    "cached_tokens": cached_tokens,
                    "expected_tokens": None if expected_tokens is None else round(expected_tokens),
                    "answer_tokens": answer_tokens,
                    "end": end,
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
        except TypeError:  # a lone surrogate, or bytes where text is usual
            return _odd_as_json(line)
        # orjson leaves DEL, C1 controls and line separators as they are: terminals and log readers act on them.
        if out.isascii() and b"\x7f" not in out:
            return out.decode()
    return _odd_as_json(line)


def _odd_as_json(line: Line) -> str:
    """The same for whatever a client may have put in it."""
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    return _JSON % (
        _time(ts), _json_text(request_id), _json_word(peer), _json_word(method), _json_word(route), _json_word(model),
        _json_word(pool), "null" if key is None else f'"{key:016x}"', _json_word(key_source), _json_word(backend),
        _json_word(reason), attempts, status, "null" if ttft_s is None else f"{ttft_s:.6f}", f"{duration_s:.6f}",
        bytes_in, bytes_out, "null" if prompt_tokens is None else prompt_tokens,
        "null" if cached_tokens is None else cached_tokens,
        "null" if expected_tokens is None else round(expected_tokens),
        "null" if answer_tokens is None else answer_tokens, _json_word(end),
    )  # fmt: skip


def _as_text(line: Line) -> str:
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    # Times keep their microseconds as digits: 9.8e-05 is nothing for grep, awk or eyes.
    return _TEXT % (
        _time(ts), _plain_text(request_id), _plain_word(peer), _plain_word(method), _plain_word(route),
        _plain_word(model), _plain_word(pool), "-" if key is None else f"{key:016x}", _plain_word(key_source),
        _plain_word(backend), _plain_word(reason), attempts, status, "-" if ttft_s is None else f"{ttft_s:.6f}",
        f"{duration_s:.6f}", bytes_in, bytes_out, "-" if prompt_tokens is None else prompt_tokens,
        "-" if cached_tokens is None else cached_tokens,
        "-" if expected_tokens is None else round(expected_tokens),
        "-" if answer_tokens is None else answer_tokens, _plain_word(end),
    )  # fmt: skip


FORMATS = {"text": _as_text, "json": _as_json}
_TEXT = " ".join(f"{name}=%s" for name in FIELDS) + "\n"
_JSON = (
    "{"
    + ",".join(f'"{name}":{"%s" if name != "ts" else chr(34) + "%s" + chr(34)}' for name in FIELDS)
    + "}\n"
)


def _time(ts: float) -> str:
    whole = int(ts)
    return f"{_second(whole)}.{int((ts - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(whole: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(whole))


def _capped(text: str | bytes) -> str:
    """At most MAX_TEXT characters."""
    if isinstance(text, bytes):
        return text[:MAX_TEXT].decode("latin-1")
    return text[:MAX_TEXT]


def _json_text(text: Text) -> str:
    """A JSON string in ASCII: terminals and log readers act on control characters and line separators."""
    if not text:
        return "null"
    capped = _capped(text)
    return f'"{capped}"' if _PLAIN.fullmatch(capped) else json.dumps(capped).replace("\x7f", "\\u007f")


def _plain_text(text: Text) -> str:
    """As it stands where that is clear, else as a JSON string; "-" alone stands for an absent value."""
    if not text:
        return "-"
    capped = _capped(text)
    if _PLAIN.fullmatch(capped) and capped != "-":
        return capped
    return json.dumps(capped).replace("\x7f", "\\u007f")


# Most texts of a line are among few. What is kept is capped before.
def _json_word(text: Text) -> str:
    return _kept_json(text if text is None or len(text) <= MAX_TEXT else text[:MAX_TEXT])


def _plain_word(text: Text) -> str:
    return _kept_plain(text if text is None or len(text) <= MAX_TEXT else text[:MAX_TEXT])


_kept_json = lru_cache(maxsize=512)(_json_text)
_kept_plain = lru_cache(maxsize=512)(_plain_text)
