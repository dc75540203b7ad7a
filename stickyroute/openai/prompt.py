"""The normalized prompt: the text an engine's prefix cache will see, in the order that templates render it.

Owns that order: tools (canonical JSON), what changes the template, system, then each message as role and
content. Text parts are flattened, media stand as a digest of their reference, token ids as ids. A longer
conversation only appends: the normalized prompt of a turn is the beginning of the next turn's. Nothing is
normalized inside text: NFC and NFD of a word are different bytes to the engine, and so they are here. Every
JSON type may stand anywhere: a strange body gets a strange prompt, never an error.

The cost goes with the number of messages and parts; text itself is only joined and encoded. Both are bounded
by the limit, not by the body.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from stickyroute.openai.prompt_json import MEDIA, MEDIA_BYTES, bounded_json, json_text, media_text
from stickyroute.openai.routes import Shape

__all__ = ["NO_PROMPT", "Prompt", "measure", "normalize"]

_BILLING: Final = "x-anthropic-billing-header"
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})
# Parts and items that models themselves write: all text, to be spelt in full.
_SPOKEN_TYPES: Final = frozenset({
    "tool_use", "server_tool_use", "thinking", "redacted_thinking", "function_call", "custom_tool_call",
})  # fmt: skip
# What is rendered in front of the messages, or keeps what the server itself puts there.
_RENDERING: Final = (
    "previous_response_id",
    "conversation",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "documents",
)
_DATA_CHARS: Final = 1024  # what is longer in a part of unknown kind, and has no blanks, is data
_TURNS: Final = 4  # how many of the last answers' beginnings are told
_PIECE_BYTES: Final = 64  # of the limit for each piece of text: so many messages and parts are read
_BRIEF: Final = 16  # times the limit, for the whole body
_FEW_PIECES: Final = 1024  # and these, however small the limit
# Fields of a message that templates render beside its content, in the order they come here.
_BESIDE: Final = ("name", "tool_call_id", "reasoning_content", "reasoning", "refusal")
# A control byte before each piece keeps neighbours apart.
_MARKS: Final = {role: f"\x1e{role}\x1f" for role in ("developer", "user", "assistant", "tool")}
_PLAIN_MARKS: Final = {**_MARKS, "system": "\x1esystem\x1f"}
_AROUND: Final = frozenset({"tools", "functions", *_RENDERING})
# Makes a Prompt without the function that NamedTuple writes around this, which costs more than all the rest.
_new: Final = tuple.__new__


class Prompt(NamedTuple):
    """`text` is the normalized prompt, cut at the limit.

    `turns` are the positions in `text` at which the last answers of the model begin, last first: up to there
    it is what an earlier request of the same conversation was. `size_bytes` counts the further prompts of a
    batch too. `tokens` is their exact number where the client sent token ids, else None.
    """

    text: bytes
    turns: tuple[int, ...] = ()
    size_bytes: int = 0
    tokens: int | None = None


NO_PROMPT: Final = Prompt(b"")


def normalize(shape: Shape, body: Mapping[str, Any], limit: int, body_bytes: int | None = None) -> Prompt:
    """The prompt of a body, its first `limit` bytes. Empty for an OPAQUE body, or one that holds none.

    `body_bytes` is the size of the body as it came, if known: what can't be longer than the limit is then
    spelt without counting.
    """
    if shape is Shape.CHAT and body_bytes is not None and body_bytes <= limit:
        plain = _plain_chat(body)
        if plain is not None:
            return plain
    made = _collect(shape, body, limit, body_bytes)
    return made if isinstance(made, Prompt) else made.prompt()


def measure(
    shape: Shape, body: Mapping[str, Any], limit: int, body_bytes: int | None = None
) -> tuple[int, int | None]:
    """What `size_bytes` and `tokens` of the prompt would be, without making its text."""
    made = _collect(shape, body, limit, body_bytes)
    return (made.size_bytes, made.tokens) if isinstance(made, Prompt) else (made.size_bytes(), None)


def _collect(shape: Shape, body: Mapping[str, Any], limit: int, body_bytes: int | None) -> _Writer | Prompt:
    writer = _Writer(limit, body_bytes)
    if shape is Shape.CHAT:
        writer.tools(body)
        writer.messages(body.get("messages"))
    elif shape is Shape.MESSAGES:
        writer.tools(body)
        writer.system(body.get("system"))
        writer.messages(body.get("messages"))
    elif shape is Shape.RESPONSES:
        writer.tools(body)
        writer.system(body.get("instructions"))
        asked = body.get("input")
        # One text is short for one message, and is one in the next turn's list.
        writer.messages([{"role": "user", "content": asked}] if isinstance(asked, str) else asked)
    elif shape is Shape.COMPLETIONS:
        prompt = body.get("prompt")
        if prompt or body.get("prompt_embeds") is None:
            return _bare(writer, prompt)
        writer.media(body["prompt_embeds"])
    elif shape is Shape.EMBEDDINGS:
        if "messages" not in body:
            return _bare(writer, body.get("input"))
        writer.messages(body["messages"])
    return writer


def _plain_chat(body: Mapping[str, Any]) -> Prompt | None:
    """What most requests are, in half the time: messages of a role and a text. None if there is anything else."""
    messages = body.get("messages")
    if type(messages) is not list or len(messages) > _FEW_PIECES or not body.keys().isdisjoint(_AROUND):
        return None
    pieces: list[str] = []
    turns: list[int] = []
    answering = False
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return None
        try:
            role, content = message["role"], message["content"]
        except KeyError:
            return None
        if type(role) is not str or type(content) is not str or role not in _PLAIN_MARKS:
            return None
        if role == "assistant":
            if not answering:
                turns.append(len(pieces))
            answering = True
        else:
            answering = False
            if role == "system" and content.startswith(_BILLING):
                return None
        pieces.append(_PLAIN_MARKS[role])
        pieces.append(content)
    return _prompt(pieces, turns, None)


def _prompt(pieces: list[str], turns: list[int], limit: int | None) -> Prompt:
    """The pieces as bytes, cut at the limit. `turns`: how many pieces there were before each answer."""
    text = "".join(pieces)
    parts: list[str] | list[bytes] = pieces
    if text.isascii():
        encoded = text.encode()
    else:
        parts = [_encoded(piece) for piece in pieces]
        encoded = b"".join(parts)
    size = place = len(encoded)
    if limit is not None and size > limit:
        encoded = encoded[:limit]
    if not turns:
        return _new(Prompt, (encoded, (), size, None))
    end = len(parts)
    places = []
    for turn in turns[: -_TURNS - 1 : -1]:  # the last ones are near the end: count from there
        place -= sum(map(len, parts[turn:end]))
        end = turn
        if 0 < place <= len(encoded):
            places.append(place)
    return _new(Prompt, (encoded, tuple(places), size, None))


class _Writer:
    """Collects pieces of text until `room` (characters, each of one byte at least) is used up.

    `small`: the body is no larger than the limit, so its text can only be, by little: nothing is counted.
    `brief`: JSON in it may be spelt at once, even if most of it were cut off: that takes less than reading the
    body took.
    """

    __slots__ = ("_brief", "_media", "_pieces", "_room", "_small", "_turns", "limit", "most")

    def __init__(self, limit: int, body_bytes: int | None) -> None:
        self.limit = limit
        self._small = body_bytes is not None and body_bytes <= limit
        self._brief = body_bytes is not None and body_bytes <= _BRIEF * limit
        self._room = limit
        self._media = 1 + limit // MEDIA_BYTES
        self._pieces: list[str] = []
        self.most = limit // _PIECE_BYTES + _FEW_PIECES
        self._turns: list[int] = []  # how many pieces there were before each

    def prompt(self) -> Prompt:
        """What was collected, as bytes."""
        return _prompt(self._pieces, self._turns, self.limit)

    def size_bytes(self) -> int:
        """The size of what was collected, cut or not."""
        return sum([len(piece) if piece.isascii() else len(_encoded(piece)) for piece in self._pieces])

    def add(self, piece: str) -> None:
        if self._small:
            self._pieces.append(piece)
            return
        room = self._room
        if room > 0:
            if len(piece) > room:
                piece = piece[:room]
            self._pieces.append(piece)
            self._room = room - len(piece)

    def media(self, part: object) -> None:
        """A media part, which takes more room here than in the body."""
        if self._media > 0:
            self._media -= 1
            self.add(media_text(part))

    def json(self, value: object) -> None:
        if self._room > 0:
            self.add(json_text(value) if self._brief else bounded_json(value, self._room))

    def tools(self, body: Mapping[str, Any]) -> None:
        """What stands before or around every message, if the body has any of it."""
        tools = body.get("tools") or body.get("functions")
        if tools:
            self.add("\x1dtools")
            self.json(tools)
        if body.keys().isdisjoint(_RENDERING):
            return
        for name in _RENDERING:
            if name in body and body[name] is not None:
                self.add("\x1d" + name)
                self.json(body[name])

    def system(self, content: object) -> None:
        if content:
            self.add("\x1esystem")
            self._content(content, billed=True)

    def messages(self, messages: object) -> None:
        if not isinstance(messages, list):
            if messages is not None:
                self.json(messages)
            return
        pieces, marks, small, turns = self._pieces, _MARKS, self._small, self._turns
        answering = False
        for message in islice(messages, self.most):
            if not small and self._room <= 0:
                return
            if type(message) is not dict:
                answering = False
                self.add("\x1e")
                self.json(message)
                continue
            role = message.get("role")
            answer = role == "assistant" if type(role) is str else _is_answer(message)
            if answer and not answering:
                turns.append(len(pieces))
            answering = answer
            if type(role) is not str:
                self._item(message)
                continue
            content = message.get("content")
            if small and type(content) is str and role in marks:
                pieces.append(marks[role])
                pieces.append(content)
            else:
                self.add("\x1e")
                self.add(role)
                self._content(content, billed=role == "system")
            if len(message) > 2:
                self._beside(message)
            if len(pieces) > self.most:
                return

    def _beside(self, message: dict[str, Any]) -> None:
        for name in _BESIDE:
            value = message.get(name)
            if value and isinstance(value, str):
                self.add(f"\x1d{name}\x1f")
                self.add(value)
        calls = message.get("tool_calls") or message.get("function_call")
        if calls:
            self.add("\x1dcalls")
            self.json(calls)

    def _item(self, item: dict[str, Any]) -> None:
        """An item of a Responses input that is no message: a call, its result, a thought."""
        kind = item.get("type")
        self.add("\x1e")
        if kind == "function_call_output" or kind == "custom_tool_call_output":
            self.add(f"{kind}\x1f{_id(item.get('call_id'))}")
            self._content(item.get("output"), billed=False)
        else:
            self.part_json(item, kind)

    def _content(self, content: object, billed: bool, inner: bool = False) -> None:
        """A message's content, text or parts. `billed`: may open with Claude Code's billing line; `inner`: it is a
        tool's result, which holds no other, so that nothing nested goes deeper than this."""
        if type(content) is str:
            if billed and content.startswith(_BILLING):
                end = content.find("\n") + 1
                content = content[end : end + self._room] if end else ""
            self.add("\x1f")
            self.add(content)
        elif isinstance(content, list):
            for part in islice(content, self.most):
                if self._room <= 0 or len(self._pieces) > self.most:
                    return
                self._part(part, billed, inner)
        elif content is not None:
            self.add("\x1f")
            self.part_json(content, None)

    def _part(self, part: object, billed: bool, inner: bool) -> None:
        text = part
        kind: object = None
        if type(part) is dict:
            kind = part.get("type")
            # A type that is not a string can't be looked up: it may not be hashable.
            text = part.get("text") if type(kind) is str and kind in _TEXT_TYPES else None
        if type(text) is str:
            # vLLM drops such a block: it differs on every request and stands at the very front.
            if not (billed and text.startswith(_BILLING)):
                self.add("\x1f")
                self.add(text)
        elif kind == "tool_result" and type(part) is dict and not inner:
            self.add(f"\x1ftool_result\x1f{_id(part.get('tool_use_id'))}")
            self._content(part.get("content"), billed=False, inner=True)
        else:
            self.add("\x1f")
            self.part_json(part, kind)

    def part_json(self, part: object, kind: object) -> None:
        if type(part) is dict and "cache_control" in part:
            # Clients move this mark to the newest message; engines do not read it.
            part = {key: value for key, value in part.items() if key != "cache_control"}
        if type(kind) is str and kind in MEDIA:
            self.media(part)
        elif type(kind) is str and kind in _SPOKEN_TYPES:
            self.json(part)
        elif self._room > 0:
            self.add(bounded_json(part, self._room, _DATA_CHARS))


def _is_answer(item: dict[str, Any]) -> bool:
    """Whether an item of a Responses input was written by the model."""
    kind = item.get("type")
    return type(kind) is str and not kind.endswith("_output") and kind != "item_reference"


def _encoded(piece: str) -> bytes:
    return piece.encode("utf-8", "surrogatepass")


def _id(value: object) -> str:
    return value[:256] if type(value) is str else ""


def _bare(writer: _Writer, prompt: object) -> Prompt:
    """A prompt without roles: text, token ids, or a batch of either, of which the first is looked at."""
    first, others = prompt, 0
    tokens = None
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        first = prompt[0]
        others = sum(
            [len(other) for other in islice(prompt, 1, writer.most) if isinstance(other, str | list)]
        )
    if isinstance(first, list):
        ids = _token_ids(first, writer.limit)
        if ids is not None:
            tokens = len(first) + others
            return Prompt(ids, (), 4 * tokens, tokens if tokens else None)
        if first:
            writer.json(first)
    elif isinstance(first, str):
        writer.add(first)
    elif first is not None:
        writer.part_json(first, None)
    made = writer.prompt()
    return made._replace(size_bytes=made.size_bytes + others) if others else made


def _token_ids(ids: list[Any], limit: int) -> bytes | None:
    """Four bytes each, so that equal ids make equal prompts up to the cut; None for what are no ids."""
    try:
        return array("i", ids[: limit // 4 + 1]).tobytes()[:limit]
    except (TypeError, OverflowError):
        return None
