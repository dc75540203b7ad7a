"""Two prompts of one conversation: does the later go on where the earlier ended, and if not, why not.

Owns the words for what went wrong and the evidence for each. A prompt that merely is another one, a new
conversation of the same user say, is no break: every kind here needs proof that the two belong together, texts that
are equal but for one thing or later parts that both have. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from stickyroute.openai.segments import MESSAGE, SYSTEM, TEMPLATE, TOOLS, Segment
from stickyroute.routing.doctor.traits import BLOCKS, MASKED, Traits, time_at
from stickyroute.routing.prefix import in_common

__all__ = [
    "CHANGED_TOOLS", "EDITED_SYSTEM", "ID", "JSON_KEYS", "OTHER", "REORDERED", "REORDERED_TOOLS", "REWRITTEN", "TIME",
    "TRUNCATED", "WHITESPACE", "Break", "Line", "compare", "spelt_place",
]  # fmt: skip

TIME: Final = "timestamp or date"
ID: Final = "id or counter"
WHITESPACE: Final = "whitespace"
JSON_KEYS: Final = "JSON key order"
REORDERED_TOOLS: Final = "reordered tools"
CHANGED_TOOLS: Final = "changed tools"
REORDERED: Final = "reordered text"
TRUNCATED: Final = "truncated history"
EDITED_SYSTEM: Final = "edited system prompt"
REWRITTEN: Final = "rewritten history"
OTHER: Final = "other"

_SHARED_BYTES: Final = 32  # later text in common that is no coincidence, as an "ok" would be
_DATA: Final = 0.2  # a text of which so much is numbers is data: others in their place are no mistake
_LEAST_BYTES: Final = 64  # a block of an engine's: who loses less loses nothing


_PLACES: Final = (TOOLS, TEMPLATE, SYSTEM, MESSAGE)


def spelt_place(part: Segment) -> int:
    """Place and number of a message in 16 bits."""
    return part.number << 2 | _PLACES.index(part.place)


class Line(NamedTuple):
    """The last prompt of a conversation: its parts' places (by `spelt_place`), hashes, sizes; traits of those that were
    kept, by number of the part."""

    places: Sequence[int]
    raws: Sequence[int]
    sizes: Sequence[int]
    traits: dict[int, Traits]


class Break(NamedTuple):
    """Where a prompt left the one before: the part's `place` and `number` (which message), `offset` in bytes
    of the part's text, the `kind` of change, and the bytes that would have been cached otherwise."""

    place: str
    number: int
    offset: int
    kind: str
    lost_bytes: int


def compare(old: Line, new: Line, parts: Sequence[Segment]) -> tuple[int, Break | None]:
    """How many bytes the two have in common from the beginning, and the break, if there is one. `parts` are those of
    the new prompt, of which the traits are in `new`."""
    at = 0
    most = min(len(old.raws), len(new.raws))
    while at < most and old.raws[at] == new.raws[at]:
        at += 1
    before = sum(new.sizes[:at])
    if at == most:
        return before, None
    place, index = parts[at].place, parts[at].number
    a, b = old.traits.get(at), new.traits.get(at)
    same = 0
    if a is not None and b is not None and _place(old, at) == place:
        same = in_common(a.blocks, b.blocks)
        offset = BLOCKS.ends[same - 1] if same else 0
        later = _later(old, new, at)
        found = _by_traits(a, b, place, parts[at].text, offset)
        is_data = max(a.volatile, b.volatile) > _DATA and not later
        if found is not None and not (is_data and found[0] in (TIME, ID)):
            kind, offset, rest = found
            if kind == CHANGED_TOOLS and not later and not _next_same(old, new, at):
                return before + offset, None
            lost = rest + (later if rest + offset >= b.size or kind == CHANGED_TOOLS else 0)
            return before + offset, _if_worth(Break(place, index, offset, kind, lost))
    offset = BLOCKS.ends[same - 1] if same else 0
    later = _later(old, new, at)
    if later < _SHARED_BYTES:
        return before + offset, None
    kind = _by_neighbours(old, new, at, place)
    if new.raws[at] in old.raws[at + 1 :]:
        later += new.sizes[at]
    return before + offset, _if_worth(Break(place, index, offset, kind, later))


def _place(line: Line, at: int) -> str:
    return _PLACES[line.places[at] & 3]


def _if_worth(broken: Break) -> Break | None:
    return broken if broken.lost_bytes >= _LEAST_BYTES else None


def _by_traits(a: Traits, b: Traits, place: str, text: bytes, offset: int) -> tuple[str, int, int] | None:
    """What one thing the two texts differ by: its kind, where, and the bytes behind it that are equal."""
    end = offset + 64
    if place == TOOLS:
        if a.sorted and a.sorted == b.sorted:
            return JSON_KEYS, offset, b.size - offset
        if a.tools and len(a.tools) == len(b.tools) and sorted(a.tools) == sorted(b.tools):
            return REORDERED_TOOLS, offset, b.size - offset
    kind = None
    if a.untimed == b.untimed:
        kind = TIME
    elif a.unnamed == b.unnamed:
        kind = ID
    elif a.steady == b.steady:
        kind = _first_kind(text, offset, end)
    if kind is not None:
        at = _exact(text, offset, end, kind)
        return kind, at, b.size - at
    if a.spaced == b.spaced:
        return WHITESPACE, offset, b.size - offset
    if a.words and a.words == b.words:
        return (JSON_KEYS if a.braces and b.braces else REORDERED), offset, b.size - offset
    if place == TOOLS and not set(a.tools).isdisjoint(b.tools):
        return CHANGED_TOOLS, offset, 0
    # The end is another, as that of a question is; but without what is volatile the two would go on together.
    masked = in_common(a.steady_blocks, b.steady_blocks)
    if masked:
        more = MASKED.ends[masked - 1] - offset
        if more >= 2 * MASKED.ends[0]:
            kind = _first_kind(text, offset, end)
            return kind, _exact(text, offset, end, kind), more
    return None


def _by_neighbours(old: Line, new: Line, at: int, place: str) -> str:
    """The kind of change, told by what follows in both."""
    if place == SYSTEM and _place(old, at) == SYSTEM:
        return EDITED_SYSTEM
    if place == TOOLS or _place(old, at) == TOOLS:
        return CHANGED_TOOLS
    if place == MESSAGE and new.raws[at] in old.raws[at + 1 :]:
        return TRUNCATED
    return REWRITTEN if place == MESSAGE else OTHER


def _later(old: Line, new: Line, at: int) -> int:
    """Bytes of the new prompt's later parts that the old one had as well."""
    known = set(old.raws[at + 1 :])
    return sum(
        size
        for raw, size in zip(new.raws[at + 1 :], new.sizes[at + 1 :], strict=True)
        if raw in known and size >= _SHARED_BYTES
    )


def _next_same(old: Line, new: Line, at: int) -> bool:
    """Whether the part after is the same, a system prompt after the tools for example."""
    return at + 1 < min(len(old.raws), len(new.raws)) and old.raws[at + 1] == new.raws[at + 1]


def _first_kind(text: bytes, begin: int, end: int) -> str:
    found = time_at(text, begin, end)
    return TIME if found is None or found[0] else ID


def _exact(text: bytes, begin: int, end: int, kind: str) -> int:
    """The beginning of the span in which the difference lies, as far as that can be told."""
    found = time_at(text, begin, end)
    return begin if found is None or found[0] is not (kind is TIME) else found[1]
