"""Values inside a prompt that are no plain text, as text: canonical JSON, and a digest for media.

Owns their spelling: keys sorted, no blanks, the same for the same value in every process. A picture, a sound
or a film stands as the digest of what refers to it, spread over as many bytes as its tokens would be, so that
prompts with media weigh what they weigh. Strange values are spelt somehow, never an error.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import orjson
from xxhash import xxh3_64_hexdigest

__all__ = ["MEDIA", "MEDIA_BYTES", "bounded_json", "json_text", "media_text"]

MEDIA: Final = frozenset({
    "image", "image_url", "input_image", "image_embeds", "image_pil",
    "audio", "audio_url", "input_audio", "audio_embeds",
    "video", "video_url", "input_video", "file", "input_file",
})  # fmt: skip
"""Types of content parts that engines turn into tokens of their own."""

MEDIA_BYTES: Final = 1024  # 256 tokens at four bytes each: what a small picture costs
_DIGEST_CHARS: Final = 16
_REFERENCE_CHARS: Final = 128  # a longer string inside a media part is data: digested, not spelt
_DATA_CHARS: Final = 1024  # elsewhere, if this many characters hold no blank
_MEDIA_CHARS: Final = 4096  # of a media part's description, without its data
_DEPTH: Final = 32
_KEYS: Final = 1024  # of an object, where it is read key by key: what has more is no tool
_SORTED: Final = orjson.OPT_SORT_KEYS


def json_text(value: object) -> str:
    """The whole of `value`, in one step of C."""
    try:
        return orjson.dumps(value, option=_SORTED).decode()
    except TypeError:  # nested too deep, or no JSON at all
        return bounded_json(value, 1 << 16)


def bounded_json(value: object, room: int, data_chars: int = 0) -> str:
    """The same text, cut where it reaches `room` characters, in time that goes with `room`.

    With `data_chars`, a string longer than that which looks like data is spelt as its digest.
    """
    writer = _Writer(room, data_chars)
    writer.write(value, 0)
    return "".join(writer.pieces)


def media_text(part: object) -> str:
    """A media part: its digest, MEDIA_BYTES long. Only the reference is read to its end."""
    writer = _Writer(_MEDIA_CHARS, _REFERENCE_CHARS)
    writer.write(part, 0)
    digest = xxh3_64_hexdigest("".join(writer.pieces).encode("utf-8", "surrogatepass"))
    return digest * (MEDIA_BYTES // _DIGEST_CHARS)


def _is_data(text: str, data_chars: int) -> bool:
    if data_chars < _DATA_CHARS or text.startswith("data:"):
        return True
    return text.isascii() and " " not in text[:data_chars]


class _Writer:
    """Spells a value as orjson would with sorted keys, until `room` characters are used up."""

    __slots__ = ("data_chars", "pieces", "room")

    def __init__(self, room: int, data_chars: int) -> None:
        self.pieces: list[str] = []
        self.room = room
        self.data_chars = data_chars

    def write(self, value: Any, depth: int) -> None:
        if self.room <= 0:
            return
        if isinstance(value, str):
            self._string(value)
        elif isinstance(value, dict) and depth < _DEPTH:
            comma = "{"
            for key in sorted(map(str, islice(value, _KEYS))):
                if self.room <= 0:
                    return
                self._add(comma)
                self._string(key)
                self._add(":")
                self.write(value.get(key), depth + 1)
                comma = ","
            self._add("}" if comma == "," else "{}")
        elif isinstance(value, list) and depth < _DEPTH:
            comma = "["
            for item in value:
                if self.room <= 0:
                    return
                self._add(comma)
                self.write(item, depth + 1)
                comma = ","
            self._add("]" if comma == "," else "[]")
        elif isinstance(value, dict | list):
            self._add('"..."')
        else:
            self._add(_scalar(value))

    def _string(self, text: str) -> None:
        if self.data_chars and len(text) > self.data_chars and _is_data(text, self.data_chars):
            self._add(f'"{xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))}"')
            return
        cut = text[: self.room]
        spelt = _scalar(cut)
        self._add(spelt if len(cut) == len(text) else spelt[:-1])

    def _add(self, piece: str) -> None:
        piece = piece[: self.room] if self.room > 0 else ""
        self.pieces.append(piece)
        self.room -= len(piece)


def _scalar(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a lone surrogate, a number of more than 64 bits
        return f'"{value}"'
