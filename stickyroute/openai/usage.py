"""What a reply says of its tokens, read from its last bytes; and which piece of a stream is the first token.

Owns the shapes of `usage` and of streamed events in every API that is routed, as vLLM, SGLang and llama.cpp
write them. Works on bytes that were cut anywhere, does a bounded amount of work and never raises: what cannot
be read is None. Knows nothing of connections or backends.

Text of the model cannot be taken for a field: inside a JSON string every quote is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from stickyroute.openai.routes import Shape

__all__ = [
    "TAIL_BYTES",
    "FirstContent",
    "Usage",
    "first_content",
    "read_fields",
    "read_tail",
    "usage_is_asked",
    "usage_is_told",
]

TAIL_BYTES = 4096
"""How much of a reply's end is enough: `usage` and what engines write after it is about 1 KB."""

_LOOKS = 4
"""How many places are looked at for a `usage`, from the end."""

_INNER = 16
"""How many objects a `usage` holds at most, itself included."""

_SEARCH_BYTES = 64 * 1024
"""A stream without a token in that many bytes (it may be compressed) has long begun all the same."""

_TOLD_BYTES = 2048
"""An engine that tells usage in every event has done so within that many bytes."""

_CARRY_BYTES = 96
"""What is kept of a piece, so that a field cut in two is found: more than the longest pattern matches."""


class Usage(NamedTuple):
    """Tokens of one request. `prompt_tokens` includes the cached ones and those newly written to the cache; None
    is unknown, not zero."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    written_tokens: int | None = None


_new: Final = tuple.__new__
"""Makes a Usage without the function that NamedTuple writes around this, at half the cost."""


# The end of a reply.

_USAGE = b'"usage"'
_META_INFO = b'"meta_info"'  # of SGLang's own /generate
_OBJECT = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(?=\{)")


_NUMBER = rb": ?([0-9]{1,9})(?![0-9.eE])"
_USUAL = re.compile(
    # As vLLM and SGLang write it for OpenAI's APIs. One match costs a fifth of reading it as JSON, where nothing is
    # in the processor's caches; whatever looks otherwise is read as JSON.
    rb'"usage": ?\{"prompt_tokens"' + _NUMBER
    + rb'(?:, ?"total_tokens": ?[0-9]{1,9})?, ?"completion_tokens"' + _NUMBER
    + rb'(?:, ?"total_tokens": ?[0-9]{1,9})?(?:\}|, ?"prompt_tokens_details": ?(?:null|\{"cached_tokens"' + _NUMBER
    + rb'(?:, ?"created_cache_tokens"' + _NUMBER + rb"|\})))"
)  # fmt: skip


def read_tail(shape: Shape, tail: bytes, streamed: bool) -> Usage | None:
    """The usage in the last bytes of a whole reply; None where there is none.

    `tail` may begin anywhere, `streamed` says that it is events rather than one JSON value. The last usage
    wins: engines that report all along repeat it. Cached tokens stay None where the engine does not say.
    """
    if len(tail) > TAIL_BYTES:
        tail = tail[-TAIL_BYTES:]
    name = _USAGE
    at = tail.rfind(name)
    if at < 0:
        name = _META_INFO
        at = tail.rfind(name)
    else:
        usual = _USUAL.match(tail, at)
        if usual is not None and (streamed or tail.find(name, 0, at) < 0):
            prompt, completion, cached, written = usual.groups()
            tokens = int(prompt)
            if cached is None:
                return _new(Usage, (tokens, None, int(completion), None))
            hits = _within(int(cached), tokens)
            fresh = None if written is None else _within(int(written), tokens)
            return _new(Usage, (tokens, hits, int(completion), fresh))
    if not streamed and at > 0 and tail.startswith(b"{") and tail.find(name, 0, at) >= 0:
        whole = _whole(shape, tail)  # two of them in one value: only the top one counts
        if whole is not None:
            return whole
    for _ in range(_LOOKS):
        if at < 0:
            break
        colon = _OBJECT.match(tail, at + len(name))
        fields = _object_at(tail, colon.end()) if colon is not None else None
        usage = read_fields(shape, fields) if fields is not None else None
        if usage is not None:
            return usage
        at = tail.rfind(name, 0, at)
    return None


def _whole(shape: Shape, body: bytes) -> Usage | None:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    usage = fields.get("usage") or fields.get("meta_info")
    return read_fields(shape, usage) if isinstance(usage, dict) else None


def _object_at(text: bytes, begin: int) -> dict[str, Any] | None:
    """The JSON object that begins at `begin`; None if it is cut, or too odd for a usage."""
    end = begin
    for _ in range(_INNER):
        end = text.find(b"}", end) + 1
        if not end:
            return None
        if text.count(b"{", begin, end) == text.count(b"}", begin, end):
            try:
                value = orjson.loads(text[begin:end])
            except orjson.JSONDecodeError:
                return None
            return value if isinstance(value, dict) else None
    return None


def read_fields(shape: Shape, fields: Mapping[str, Any]) -> Usage | None:
    """The same of a `usage` that was read as JSON."""
    prompt = _count(fields.get("prompt_tokens"))
    if prompt is None:
        return _input_usage(shape, fields)
    details = fields.get("prompt_tokens_details")
    written = None
    if details is None:
        cached = fields.get("cached_tokens")  # SGLang's own /generate
        if cached is None:
            return Usage(prompt, None, _count(fields.get("completion_tokens")))
    elif type(details) is dict:
        cached = details.get("cached_tokens")
        written = _count(details.get("created_cache_tokens"))  # vLLM from 0.32 on
    else:
        cached = None
    return Usage(
        prompt,
        _within(_count(cached), prompt),
        _count(fields.get("completion_tokens")),
        _within(written, prompt),
    )


def _input_usage(shape: Shape, fields: Mapping[str, Any]) -> Usage | None:
    """Anthropic's names, and those of the Responses API."""
    prompt = _count(fields.get("input_tokens"))
    if prompt is None:
        return None
    cached = _count(fields.get("cache_read_input_tokens"))
    created = _count(fields.get("cache_creation_input_tokens"))
    if cached is None:
        details = fields.get("input_tokens_details")
        if type(details) is dict:
            cached = _count(details.get("cached_tokens"))
            created = _count(details.get("cache_write_tokens"))
    elif shape is Shape.MESSAGES and (created is not None or cached > prompt):
        # Anthropic counts cached and newly cached tokens beside the input, as vLLM does where it writes both
        # (`_build_anthropic_usage` in its entrypoints/anthropic/serving.py). SGLang writes only what it read,
        # and counts it among the input.
        prompt += cached + (created or 0)
    return Usage(
        prompt, _within(cached, prompt), _count(fields.get("output_tokens")), _within(created, prompt)
    )


def _count(value: object) -> int | None:
    """A number of tokens, or None for anything else (true is an int to Python)."""
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _within(cached: int | None, prompt: int) -> int | None:
    return cached if cached is not None and cached <= prompt else None


# The beginning of a stream.


def usage_is_asked(shape: Shape, body: Mapping[str, Any] | None) -> bool:
    """Whether a stream will end with its usage by the request's `body`.

    Anthropic's and the Responses API always do, the others where the client asks for it.
    """
    if shape is Shape.MESSAGES or shape is Shape.RESPONSES:
        return True
    options = body.get("stream_options") if body is not None else None
    return isinstance(options, dict) and options.get("include_usage") is True


def usage_is_told(piece: bytes) -> bool:
    """Whether a stream will end with its usage by the piece with its first token: engines that are set to
    tell it unasked do so in every event."""
    # From the end: of what is not there that is known in half the time.
    return piece.rfind(b'"usage":{', 0, _TOLD_BYTES) >= 0 or piece.rfind(_META_INFO, 0, _TOLD_BYTES) >= 0


_SPACE = rb"[ \t]{0,4}:[ \t]{0,4}"
_CHOICE = re.compile(
    # text that is not empty, a tool call, or an end without any text
    rb'"(?:content|reasoning_content|reasoning|text|refusal|arguments|finish_reason)"'
    + _SPACE
    + rb'"[^"]|"(?:tool_calls|content)"'
    + _SPACE
    + rb"\[[ \t]{0,4}[^\]\s]"
)
_BLOCK = re.compile(rb'"type"' + _SPACE + rb'"(?:content_block_delta|content_block_stop|tool_use)"')
_RESPONSE = re.compile(rb'"type"' + _SPACE + rb'"response\.[a-z_.]{1,48}\.(?:delta|done)"')
_PATTERNS = {
    Shape.CHAT: _CHOICE,
    Shape.COMPLETIONS: _CHOICE,
    Shape.MESSAGES: _BLOCK,
    Shape.RESPONSES: _RESPONSE,
}


def first_content(shape: Shape, piece: bytes) -> bool:
    """Whether a piece of a stream carries a real token; whole events are what it can be sure of.

    An empty role delta, `message_start`, `response.created`, comments and empty blocks are none. Of a route
    whose events are not known any piece counts.
    """
    pattern = _PATTERNS.get(shape)
    return pattern is None or pattern.search(piece) is not None


class FirstContent:
    """Looks for the first real token in the pieces of one stream, wherever they are cut."""

    __slots__ = ("_carry", "_pattern", "_seen_bytes")

    def __init__(self, shape: Shape) -> None:
        self._pattern = _PATTERNS.get(shape)
        self._carry = b""
        self._seen_bytes = 0

    def feed(self, piece: bytes) -> bool:
        """Whether the first token lies in the pieces so far; after True it is done."""
        if self._pattern is None:
            return True
        text = self._carry + piece if self._carry else piece
        self._seen_bytes += len(piece)
        if self._pattern.search(text) is not None or self._seen_bytes > _SEARCH_BYTES:
            return True
        self._carry = text[-_CARRY_BYTES:]
        return False
