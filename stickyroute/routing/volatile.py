"""Spans of a prompt that differ on every request although nothing of substance does: clocks, dates, ids.

Owns what counts as one: ISO timestamps, dates and clock times written in digits, UUIDs, numbers of eight
digits and more (epochs among them). Used for anchors alone. A span is replaced by one byte whatever its
length, so what follows it stays in place. Dates in words are left: they move nobody before midnight.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LONGEST", "has_volatile", "masked"]

LONGEST: Final = 64  # bytes: look so far past an end for a span that begins before it
_MASK: Final = b"\x00"

# Patterns are matched on a copy in which every digit is a zero. With a literal first byte the search is a
# memchr, so text without digits, which most is, costs next to nothing. What follows the first zero:
_TIME: Final = rb"0?:00(?::00(?:[.,]0+)?)?(?: ?[AaPp]\.?[Mm]\b\.?)?(?: ?(?:Z|UTC|GMT)\b| ?[+-]00:?00)?(?!0)"
_DATE: Final = rb"(?:000(?:-00?-00?|/00?/00?)|0?/00?/00(?:00)?|0?\.00?\.0000|0?-00?-0000)(?!0)"
_NUMBER: Final = rb"0{7}(?:T0{4,6}Z?\b|0*(?:[.,]0+)?)"
_SPAN: Final = re.compile(
    b"0(?:%b|(?<![0-9A-Za-z./-]0)(?:%b(?:,? ?T?0%b)?|(?<!:0)%b))" % (_NUMBER, _DATE, _TIME, _TIME)
)
_ZEROS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
# Every span has one of these, and much text with digits has none.
_SIGN: Final = re.compile(rb"0(?::00|-0|/0|\.0000|0{7})")

# The middle of a UUID, for the same reason; its ends are looked at when one is found.
_UUID_MIDDLE: Final = re.compile(rb"-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-")
_UUID: Final = re.compile(rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def has_volatile(text: bytes, end: int) -> bool:
    """Whether a span begins in the first `end` bytes of `text`, which should go LONGEST bytes on."""
    zeros = text.translate(_ZEROS)
    if _SIGN.search(zeros) is not None:
        found = _SPAN.search(zeros)
        if found is not None and found.start() < end:
            return True
    return b"-" in text and _next_uuid(text, 0, end) is not None


def masked(text: bytes) -> bytes:
    """`text` with each span as one byte."""
    pieces: list[bytes] = []
    at = 0
    while (begin := _next_uuid(text, at, len(text))) is not None:
        pieces += (text[at:begin], _MASK)
        at = begin + 36
    pieces.append(text[at:])
    text = b"".join(pieces)
    zeros = text.translate(_ZEROS)
    pieces = []
    at = 0
    for span in _SPAN.finditer(zeros):
        pieces += (text[at : span.start()], _MASK)
        at = span.end()
    pieces.append(text[at:])
    return b"".join(pieces)


def _next_uuid(text: bytes, begin: int, end: int) -> int | None:
    """Where the first UUID from `begin` on begins, before `end`."""
    for middle in _UUID_MIDDLE.finditer(text, begin):
        at = middle.start() - 8
        if at >= end:
            return None
        if at >= begin and _UUID.match(text, at):
            return at
    return None
