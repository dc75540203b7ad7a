"""The head of the normalized prompt: the text an engine's prefix cache sees first, as templates render it.

Owns that order: tools (canonical JSON), what changes the template, system, then messages up to and including
the first from a user. A conversation keeps its head as it grows. Text parts are flattened, images and other
media stand as a digest of their reference, token ids as ids. Nothing is normalized inside text: NFC and NFD
of a word are different bytes to the engine, and so they are here. Every JSON type may stand anywhere: a
strange body gets a strange head, never an error.

Work is bounded by the limit, not by the body: text is cut before it is encoded and lists are left when the
head is full. Only a media reference is read to its end, by one digest.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Any

from xxhash import xxh3_64_digest

from stickyroute.openai.routes import Shape

__all__ = ["prompt_head"]

_BILLING = "x-anthropic-billing-header"
_REFERENCE_CHARS = 128  # longer strings inside media parts are data: digested, not cut
_DEPTH = 32
_KEYS = 1024  # of an object, sorted: what has more is no tool
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_RENDERING = (
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "documents",
)


def prompt_head(shape: Shape, body: Mapping[str, Any], limit: int) -> bytes:
    """The first `limit` bytes of the normalized prompt; empty for an OPAQUE body, or one that holds none."""
    head = _Head(limit)
    if shape is Shape.CHAT:
        head.tools(body)
        head.messages(body.get("messages"))
    elif shape is Shape.MESSAGES:
        head.tools(body)
        head.system(body.get("system"))
        head.messages(body.get("messages"))
    elif shape is Shape.RESPONSES:
        head.tools(body)
        head.system(body.get("instructions"))
        items = body.get("input")
        if isinstance(items, list):
            head.messages(items)
        else:
            head.prompt(items)
    elif shape is Shape.COMPLETIONS:
        head.prompt(body.get("prompt"))
        if head.room == limit:
            head.media(body.get("prompt_embeds"))
    elif shape is Shape.EMBEDDINGS:
        if "messages" in body:
            head.messages(body["messages"])
        else:
            head.prompt(body.get("input"))
    return b"".join(head.parts)[:limit]


class _Head:
    """Collects pieces until `room` (bytes) is used up. A control byte before each keeps neighbours apart."""

    __slots__ = ("parts", "room")

    def __init__(self, limit: int) -> None:
        self.parts: list[bytes] = []
        self.room = limit

    def raw(self, piece: bytes) -> None:
        self.parts.append(piece)
        self.room -= len(piece)

    def text(self, text: str) -> None:
        if self.room <= 0:
            return
        # A character has at least one byte, so this never cuts short.
        piece = text[: self.room].encode("utf-8", "surrogatepass")
        self.parts.append(piece)
        self.room -= len(piece)

    def tools(self, body: Mapping[str, Any]) -> None:
        """What stands before or around every message, if the body has any of it."""
        tools = body.get("tools") or body.get("functions")
        if tools:
            self.raw(b"\x1dtools")
            self.json(tools)
        for name in _RENDERING:
            if name in body and body[name] is not None and self.room > 0:
                self.raw(b"\x1d" + name.encode())
                self.json(body[name])

    def system(self, content: object) -> None:
        if content:
            self.raw(b"\x1esystem")
            self.content(content, billed=True)

    def messages(self, messages: object) -> None:
        if not isinstance(messages, list):
            self.prompt(messages)
            return
        for message in messages:
            if self.room <= 0:
                return
            if not isinstance(message, dict):
                self.raw(b"\x1e")
                self.json(message)
                continue
            role = message.get("role")
            if not isinstance(role, str):  # an item of another kind, such as a function call's output
                self.raw(b"\x1e")
                self.json(message, media=True)
                continue
            self.raw(b"\x1e")
            self.text(role)
            self.content(message.get("content"), billed=role == "system")
            if role == "user":
                return
            calls = message.get("tool_calls")
            if calls and self.room > 0:
                self.json(calls)

    def content(self, content: object, billed: bool) -> None:
        """A message's content, text or parts. `billed`: may open with Claude Code's billing line."""
        if self.room <= 0:
            return
        if isinstance(content, str):
            if billed and content.startswith(_BILLING):
                end = content.find("\n") + 1
                content = content[end : end + self.room] if end else ""
            self.raw(b"\x1f")
            self.text(content)
        elif isinstance(content, list):
            for part in islice(content, self.room):  # a dropped part takes no room: don't walk them all
                if self.room <= 0:
                    return
                self.part(part, billed)
        elif content is not None:
            self.raw(b"\x1f")
            self.json(content, media=True)

    def part(self, part: object, billed: bool) -> None:
        text = part
        if isinstance(part, dict):
            kind = part.get("type")
            # A type that is not a string can't be looked up: it may not be hashable.
            text = part.get("text") if isinstance(kind, str) and kind in _TEXT_TYPES else None
        if isinstance(text, str):
            # vLLM drops such a block: it differs on every request and stands at the very front.
            if not (billed and text.startswith(_BILLING)):
                self.raw(b"\x1f")
                self.text(text)
        else:
            self.raw(b"\x1f")
            self.json(part, media=True)

    def prompt(self, prompt: object) -> None:
        """A prompt without roles: text, token ids, or a batch of either, of which the first counts."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            self.text(prompt)
        elif isinstance(prompt, list):
            self.token_ids(prompt)
        elif prompt is not None:
            self.json(prompt, media=True)

    def token_ids(self, ids: list[Any]) -> None:
        """Four bytes each, so that equal ids make equal heads whatever came after the cut."""
        first = ids[: self.room // 4 + 1]
        try:
            self.raw(array("i", first).tobytes())
        except (TypeError, OverflowError):  # not token ids at all
            self.json(first)

    def media(self, reference: object) -> None:
        if reference is not None:
            self.json(reference, media=True)

    def json(self, value: object, media: bool = False, depth: int = 0) -> None:
        """`value` with keys sorted. `media`: long strings stand as their digest."""
        if self.room <= 0:
            return
        if isinstance(value, str):
            if media and len(value) > _REFERENCE_CHARS:
                self.raw(xxh3_64_digest(value.encode("utf-8", "surrogatepass")))
            else:
                self.raw(b'"')
                self.text(value)
        elif isinstance(value, dict) and depth < _DEPTH:
            self.raw(b"{")
            for key in sorted(islice(value, _KEYS)):
                if self.room <= 0:
                    return
                self.text(key)
                self.raw(b":")
                self.json(value[key], media, depth + 1)
            self.raw(b"}")
        elif isinstance(value, list) and depth < _DEPTH:
            self.raw(b"[")
            for item in value:
                if self.room <= 0:
                    return
                self.json(item, media, depth + 1)
                self.raw(b",")
            self.raw(b"]")
        elif isinstance(value, dict | list):
            self.raw(b"...")
        else:
            self.text(repr(value))
