"""What is remembered of a part of a prompt instead of its text: hashes of it and of it with differences taken away.

Owns the differences: times and dates, ids and counters, blanks, the order of words, the order of keys and of tools.
Two texts that are equal once one of these is taken away differ by it alone. Nothing here gives a text back.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from stickyroute.openai.prompt_json import json_text
from stickyroute.openai.segments import MESSAGE, SYSTEM, TOOLS, Segment
from stickyroute.routing.prefix import Prefixes

__all__ = ["BLOCKS", "MASKED", "Traits", "masked", "time_at", "traits"]

BLOCKS: Final = Prefixes(64, 1 << 22, per_depth=16)
"""Where the blocks of a part end: fine at its beginning, so that the offset of a difference is."""
MASKED: Final = Prefixes(128, 1 << 16, per_depth=16)
"""The same for a part's text without what is volatile in it."""

_MASK_BYTES: Final = 1 << 16  # so much of a part is masked
_SYSTEM_WORDS_BYTES: Final = 1 << 14  # a part that is longer has no `words`
_WORDS_BYTES: Final = 1 << 11

_MONTH: Final = (
    rb"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|"
    rb"Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_ZONE: Final = rb"(?: ?(?:Z|UTC|GMT|CES?T|E[SD]T|P[SD]T)\b| ?[+-]\d{2}:?\d{2})?"
_CLOCK: Final = rb"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\b\.?)?" + _ZONE
_DAY: Final = rb"\d{1,2}(?:st|nd|rd|th)?"
_TIMES: Final = re.compile(
    rb"\b(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ]%b)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b|\d{8}T\d{4,6}Z?\b|%b"
    rb"|1\d{9}(?:\.\d+|\d{3})?\b|(?:%b\.? %b|%b(?: of)? %b)\b(?:,? \d{4}\b)?"
    rb"|(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b)"
    % (_CLOCK, _CLOCK, _MONTH, _DAY, _DAY, _MONTH)
)
# UUIDs, hashes, and words of letters and digits mixed that nobody would write; then every number. Looking ahead is
# bounded, so that no text takes more than linear time.
_IDS: Final = re.compile(
    rb"\b(?:[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b|(?=[A-Za-z_-]{0,40}\d)[0-9A-Za-z_-]{16,}\b"
    rb"|(?=[a-f]{0,40}\d)[0-9a-f]{7,}\b)|\d+"
)
_WORD: Final = re.compile(rb"[0-9A-Za-z\x80-\xff]+")
_MASK: Final = b"\x00"

# Every span has a digit in it or a weekday's end; so only what is near one is looked at, which saves most of the work.
_ZEROS: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_DENSE_BYTES: Final = 1 << 13  # of surroundings are looked at: a text with more digits than that is data
_BEFORE: Final = 48
_AFTER: Final = 72


class Traits(NamedTuple):
    """Of one part, 0 for what it has none of: `raw` is the text's hash, `untimed` without times and dates,
    `unnamed` without ids and numbers, `steady` without both, `spaced` with every blank as one space, `words` the
    words in alphabetical order, `sorted` tools with their keys in order. `tools` has one for each tool.
    `blocks` are those of the text by BLOCKS, `steady_blocks` by MASKED; `braces`: it holds JSON;
    `volatile`: the part of it, 0 to 1, that `steady` is without.
    """

    raw: int
    size: int
    untimed: int
    unnamed: int
    steady: int
    spaced: int
    words: int
    sorted: int
    tools: tuple[int, ...]
    blocks: Sequence[int]
    steady_blocks: Sequence[int]
    braces: bool
    volatile: float


def traits(segment: Segment, raw: int) -> Traits:
    """The traits of a part whose hash is `raw`."""
    text = segment.text
    untimed, unnamed, steady = _without(text)
    changed = steady is not text
    words = 0
    if segment.place == SYSTEM or segment.place == MESSAGE:
        most = _SYSTEM_WORDS_BYTES if segment.place == SYSTEM else _WORDS_BYTES
        if len(text) <= most:
            words = _hash(b" ".join(sorted(_WORD.findall(text))))
    tools: tuple[int, ...] = ()
    in_order = 0
    if segment.place == TOOLS and isinstance(segment.value, list):
        tools = tuple([_hash(json_text(tool).encode("utf-8", "surrogatepass")) for tool in segment.value])
        in_order = _hash(json_text(segment.value).encode("utf-8", "surrogatepass"))
    elif segment.place == TOOLS:
        in_order = _hash(json_text(segment.value).encode("utf-8", "surrogatepass"))
    return Traits(
        raw,
        len(text),
        _hash(untimed) if changed else raw,
        _hash(unnamed) if changed else raw,
        _hash(steady) if changed else raw,
        _hash(b" ".join(text[:_MASK_BYTES].split()) + text[_MASK_BYTES:]),
        words,
        in_order,
        tools,
        array("Q", BLOCKS.chain(text, 0)),
        array("Q", MASKED.chain(steady, 0)) if changed else (),
        b"{" in text,
        1.0 - len(steady) / len(text) if text else 0.0,
    )


def masked(text: bytes) -> bytes:
    """A text without what is volatile in it."""
    return _without(text)[2]


def _without(text: bytes) -> tuple[bytes, bytes, bytes]:
    """A text without times, without ids and numbers, and without both; itself where there are none."""
    windows = _windows(text)
    if not windows:
        return text, text, text
    untimed: list[bytes] = []
    unnamed: list[bytes] = []
    steady: list[bytes] = []
    at = 0
    for begin, end in windows:
        between, window = text[at:begin], text[begin:end]
        timeless = _TIMES.sub(_MASK, window)
        untimed += (between, timeless)
        unnamed += (between, _IDS.sub(_MASK, window))
        steady += (between, _IDS.sub(_MASK, timeless))
        at = end
    rest = text[at:]
    return b"".join((*untimed, rest)), b"".join((*unnamed, rest)), b"".join((*steady, rest))


def _windows(text: bytes) -> list[tuple[int, int]]:
    """Where something volatile may be: the surroundings of digits and of names of days, in order, apart."""
    found: list[tuple[int, int]] = []
    left = _DENSE_BYTES
    head = text[:_MASK_BYTES]
    places = sorted([*_places(head.translate(_ZEROS), b"0"), *_places(head, b"day")])
    for place in places:
        begin, end = max(0, place - _BEFORE), place + _AFTER
        if found and begin <= found[-1][1]:
            left -= end - found[-1][1]
            found[-1] = (found[-1][0], end)
        else:
            left -= end - begin
            found.append((begin, end))
        if left < 0:
            break
    return found


def _places(text: bytes, what: bytes) -> list[int]:
    """Where it stands, one place for many close together."""
    places: list[int] = []
    at = text.find(what)
    while at >= 0:
        places.append(at)
        at = text.find(what, at + _AFTER // 2)
    return places


def time_at(text: bytes, begin: int, end: int) -> tuple[bool, int] | None:
    """The first volatile span that ends after `begin` and begins before `end`: whether it is a time, and where it
    begins. None if there is none."""
    found: list[tuple[int, bool]] = []
    for pattern, is_time in ((_TIMES, True), (_IDS, False)):
        for span in pattern.finditer(text, max(0, begin - 64), end + 64):
            if span.end() > begin and span.start() < end:
                found.append((span.start(), not is_time))
                break
    if not found:
        return None
    at, is_id = min(found)
    return not is_id, at


def _hash(text: bytes) -> int:
    return xxh3_64_intdigest(text)
