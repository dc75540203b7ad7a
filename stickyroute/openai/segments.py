"""A request body as the parts that chat templates render one after the other: tools, system, each message.

Owns how a part is spelt when its every byte matters: unlike `prompt`, which spells equal things alike so that a
user stays in one place, here keys stay in the order the client wrote them and blanks stay blanks, since engines
render them so. Media stand as a digest of their reference. Every JSON type may stand anywhere. Bounded by `limit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from stickyroute.openai.prompt_json import MEDIA, bounded_json, media_text
from stickyroute.openai.routes import Shape

__all__ = ["MESSAGE", "SYSTEM", "TEMPLATE", "TOOLS", "Segment", "segments"]

TOOLS: Final = "tools"
TEMPLATE: Final = "template"
SYSTEM: Final = "system"
MESSAGE: Final = "message"

_BILLING: Final = "x-anthropic-billing-header"
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_RENDERING: Final = ("chat_template", "chat_template_kwargs", "reasoning_effort", "documents")
_BESIDE: Final = ("name", "tool_calls", "function_call", "tool_call_id", "reasoning_content")
_MESSAGES: Final = 4096
# Clients move this mark to the newest message; engines do not read it.
_UNREAD: Final = "cache_control"


class Segment(NamedTuple):
    """One part of a prompt, where it is: `place` is a constant of this module, `number` that of the message as
    the client sent them (0 elsewhere). `value` is what the text was made of, for tools only."""

    place: str
    number: int
    text: bytes
    value: Any = None


def segments(shape: Shape, body: Mapping[str, Any], limit: int) -> list[Segment]:
    """The parts in the order they are rendered, up to `limit` bytes; none for a body without a prompt, and for one
    that goes on from what the engine keeps."""
    if body.get("previous_response_id") or body.get("conversation"):
        return []
    made = _Parts(limit)
    if shape is Shape.COMPLETIONS:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            made.add(MESSAGE, 0, prompt)
        return made.parts
    if shape not in (Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES):
        return []
    tools = body.get("tools") or body.get("functions")
    if tools:
        made.add(TOOLS, 0, _spelt(tools), tools)
    if not body.keys().isdisjoint(_RENDERING):
        about = {name: body[name] for name in _RENDERING if body.get(name) is not None}
        if about:
            made.add(TEMPLATE, 0, _spelt(about))
    if shape is Shape.MESSAGES:
        made.system(body.get("system"))
        made.messages(body.get("messages"))
    elif shape is Shape.RESPONSES:
        made.system(body.get("instructions"))
        asked = body.get("input")
        made.messages([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)
    else:
        made.messages(body.get("messages"))
    return made.parts


class _Parts:
    __slots__ = ("parts", "room")

    def __init__(self, limit: int) -> None:
        self.parts: list[Segment] = []
        self.room = limit

    def add(self, place: str, index: int, text: str, value: Any = None) -> None:
        if self.room > 0:
            spelt = text[: self.room].encode("utf-8", "surrogatepass")
            self.room -= len(spelt)
            self.parts.append(Segment(place, index, spelt, value))

    def system(self, content: object) -> None:
        text = _content(content, billed=True)
        if text:
            self.add(SYSTEM, 0, text)

    def messages(self, messages: object) -> None:
        if not isinstance(messages, list):
            return
        leading = True
        for index, message in enumerate(messages[:_MESSAGES]):
            if self.room <= 0:
                return
            if not isinstance(message, dict):
                self.add(MESSAGE, index, _spelt(message))
                continue
            role = message.get("role")
            if not isinstance(role, str):
                self.add(MESSAGE, index, _spelt(message))
                continue
            system = leading and role in _SYSTEM_ROLES
            leading = leading and system
            text = _content(message.get("content"), billed=system)
            if len(message) > 2:
                for name in _BESIDE:
                    if message.get(name):
                        text += f"\x1d{name}\x1f{_spelt(message[name])}"
            self.add(SYSTEM if system else MESSAGE, index, text if system else f"{role}\x1f{text}")


def _content(content: object, billed: bool) -> str:
    if isinstance(content, str):
        if billed and content.startswith(_BILLING):
            return content.partition("\n")[2]
        return content
    if not isinstance(content, list):
        return "" if content is None else _spelt(content)
    pieces = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            if not (billed and text.startswith(_BILLING)):
                pieces.append(text)
        elif isinstance(part, dict) and _is_media(part.get("type")):
            pieces.append(media_text(part))
        elif isinstance(part, dict) and _UNREAD in part:
            pieces.append(_spelt({key: value for key, value in part.items() if key != _UNREAD}))
        else:
            pieces.append(_spelt(part))
    return "\x1f".join(pieces)


def _spelt(value: object) -> str:
    """JSON with keys in the order they came."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # nested too deep, or numbers of more than 64 bits
        return bounded_json(value, 1 << 16)


def _is_media(kind: object) -> bool:
    return isinstance(kind, str) and kind in MEDIA
