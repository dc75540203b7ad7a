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


_SECONDS: Final = "%.6f"
"""Times keep their microseconds as digits: 9.8e-05 is nothing for grep, awk or eyes. By `%`, since a format string with
a width costs twice as much, and four times compiled."""


def _as_json(line: Line) -> str:
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    if model is not None and len(model) > MAX_TEXT:
        model = model[:MAX_TEXT]
    before, between, after = _json_frame(
        method, route, model, pool, key is None, key_source, backend, reason, attempts, status, end
    )
    return (
        f'{{"ts":"{_time(ts)}","request_id":{_json_text(request_id)},"peer":{_kept_json(peer)}{before}'
        f"{'' if key is None else _hex(key)}{between}"
        f'{"null" if ttft_s is None else _SECONDS % ttft_s},"duration_s":{_SECONDS % duration_s},'
        f'"bytes_in":{bytes_in},"bytes_out":{bytes_out},'
        f'"prompt_tokens":{"null" if prompt_tokens is None else prompt_tokens},'
        f'"cached_tokens":{"null" if cached_tokens is None else cached_tokens},'
        f'"expected_tokens":{"null" if expected_tokens is None else round(expected_tokens)},'
        f'"answer_tokens":{"null" if answer_tokens is None else answer_tokens}{after}'
    )


def _as_text(line: Line) -> str:
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    if model is not None and len(model) > MAX_TEXT:
        model = model[:MAX_TEXT]
    before, between, after = _text_frame(
        method, route, model, pool, key_source, backend, reason, attempts, status, end
    )
    return (
        f"ts={_time(ts)} request_id={_plain_text(request_id)} peer={_kept_plain(peer)}{before}"
        f"{'-' if key is None else _hex(key)}{between}"
        f"{'-' if ttft_s is None else _SECONDS % ttft_s} duration_s={_SECONDS % duration_s} "
        f"bytes_in={bytes_in} bytes_out={bytes_out} "
        f"prompt_tokens={'-' if prompt_tokens is None else prompt_tokens} "
        f"cached_tokens={'-' if cached_tokens is None else cached_tokens} "
        f"expected_tokens={'-' if expected_tokens is None else round(expected_tokens)} "
        f"answer_tokens={'-' if answer_tokens is None else answer_tokens}{after}"
    )


# Most lines differ from others in their numbers alone: what stands between those is made once.
@lru_cache(maxsize=512)
def _json_frame(
    method: Text, route: Text, model: Text, pool: Text, keyless: bool, source: Text, backend: Text, reason: Text,
    attempts: int, status: int, end: Text,
) -> tuple[str, str, str]:  # fmt: skip
    def words(**named: Text) -> str:
        return "".join(f',"{name}":{_json_text(text)}' for name, text in named.items())

    before = words(method=method, route=route, model=model, pool=pool) + ',"key":'
    between = words(key_source=source, backend=backend, reason=reason)
    between += f',"attempts":{attempts},"status":{status},"ttft_s":'
    after = f',"end":{_json_text(end)}}}\n'
    return (before + "null", between, after) if keyless else (before + '"', '"' + between, after)


@lru_cache(maxsize=512)
def _text_frame(
    method: Text, route: Text, model: Text, pool: Text, source: Text, backend: Text, reason: Text,
    attempts: int, status: int, end: Text,
) -> tuple[str, str, str]:  # fmt: skip
    def words(**named: Text) -> str:
        return "".join(f" {name}={_plain_text(text)}" for name, text in named.items())

    before = words(method=method, route=route, model=model, pool=pool) + " key="
    between = words(key_source=source, backend=backend, reason=reason)
    return before, f"{between} attempts={attempts} status={status} ttft_s=", f" end={_plain_text(end)}\n"


FORMATS = {"text": _as_text, "json": _as_json}


def _time(ts: float) -> str:
    second = int(ts)
    return f"{_second(second)}.{str(1000 + int((ts - second) * 1000))[1:]}Z"


def _hex(key: int) -> str:
    """A key is 64 bits."""
    return key.to_bytes(8, "big").hex()


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
    if text.isalnum() and text.isascii() and len(text) <= MAX_TEXT:  # an id of ours, and most others
        return f'"{text}"' if isinstance(text, str) else f'"{text.decode()}"'
    capped = _capped(text)
    return f'"{capped}"' if _PLAIN.fullmatch(capped) else json.dumps(capped).replace("\x7f", "\\u007f")


def _plain_text(text: Text) -> str:
    """As it stands where that is clear, else as a JSON string; "-" alone stands for an absent value."""
    if not text:
        return "-"
    if text.isalnum() and text.isascii() and len(text) <= MAX_TEXT:
        return text if isinstance(text, str) else text.decode()
    capped = _capped(text)
    if _PLAIN.fullmatch(capped) and capped != "-":
        return capped
    return json.dumps(capped).replace("\x7f", "\\u007f")


# Clients are few beside their requests.
_kept_json = lru_cache(maxsize=512)(_json_text)
_kept_plain = lru_cache(maxsize=512)(_plain_text)
