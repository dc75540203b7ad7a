"""The prefix doctor: remembers the last prompts of each conversation, and finds where the next one breaks off.

Owns what is remembered, all of it bounded: for each key up to three prompts as hashes and lengths, traits of the
parts at both ends, and which beginnings were seen at all. No text is kept; with `samples` a few characters around a
break are. Pure: bodies come in, findings come out; whoever calls decides how many prompts it is shown.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from stickyroute.openai.routes import Shape
from stickyroute.openai.segments import MESSAGE, Segment, segments
from stickyroute.routing.doctor.compare import Break, Line, compare, spelt_place
from stickyroute.routing.doctor.findings import Findings
from stickyroute.routing.doctor.traits import Traits, masked, traits

__all__ = ["Doctor", "watches"]

_LINES: Final = 3  # prompts of one key: an agent's side requests come between its main ones
_FIRST: Final = 4  # parts whose traits are kept, from the front
_LAST: Final = 2  # and from the end
_TRAITS: Final = 4096  # of parts that many prompts share, which are few
_SEEN: Final = 65_536
_SAMPLE_BYTES: Final = 60
_LIMIT_BYTES: Final = 1 << 20  # of a prompt are looked at: what takes a millisecond or two
_MIX: Final = 0x9E3779B97F4A7C15


class Doctor:
    """`keys` conversations are remembered; `samples` keeps a little text around each kind of break."""

    def __init__(self, keys: int, began_s: float, samples: bool = False) -> None:
        self.keys_limit = keys
        self.samples = samples
        self.findings = Findings(began_s)
        self._lines: OrderedDict[int, list[Line]] = OrderedDict()
        self._traits: OrderedDict[int, Traits] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()

    @property
    def keys(self) -> int:
        """Conversations remembered."""
        return len(self._lines)

    def see(
        self,
        key: int | None,
        tenant: str,
        pool: str,
        shape: Shape,
        body: Mapping[str, Any],
        now_s: float,
        tokens_per_byte: float = 0.25,
        mask: int = 0,
    ) -> Break | None:
        """Look at one prompt; the break, if it has one.

        `key` is the user's or the conversation's where the client names one, else None. With a `mask` of 2^n - 1
        only one key in 2^n is looked at, and stands for them all: whoever calls leaves the others out by `watches`,
        where there is a key.
        """
        parts = segments(shape, body, _LIMIT_BYTES)
        if not parts:
            return None
        named = key is not None
        if key is None:
            key = _conversation(tenant, pool, parts)
            if not watches(key, mask):
                return None
        raws = array("Q", [xxh3_64_intdigest(part.text) for part in parts])
        sizes = [len(part.text) for part in parts]
        line = self._line(parts, raws, sizes)
        lines = self._lines.get(key)
        matched, broken = 0, None
        related = False
        if lines is None:
            if len(self._lines) >= self.keys_limit:
                self._lines.popitem(last=False)
            self._lines[key] = [line]
        else:
            self._lines.move_to_end(key)
            matched, broken, related = self._against(lines, line, parts)
        total = sum(sizes)
        matched = max(matched, self._known(raws, sizes))
        sample = _sample(parts, broken) if broken is not None and self.samples else None
        self.findings.record(
            tenant, pool, key, named, total * tokens_per_byte, matched / total if total else 0.0, related, broken,
            tokens_per_byte, now_s, mask + 1.0, sample,
        )  # fmt: skip
        return broken

    def _against(
        self, lines: list[Line], line: Line, parts: Sequence[Segment]
    ) -> tuple[int, Break | None, bool]:
        """The comparison with the prompt of this key that it continues, or has most in common with. Puts the prompt
        in its place; in the oldest's if it continues none."""
        best, most, found = -1, -1, None
        for number, old in enumerate(lines):
            matched, broken = compare(old, line, parts)
            # One that goes on without a break is the one; then the one with the most to lose.
            goes_on = broken is None and matched >= sum(old.sizes)
            score = matched + (1 << 40 if goes_on else broken.lost_bytes if broken is not None else 0)
            if score > most:
                best, most, found = number, score, broken
        old = lines[best]
        matched, broken = compare(old, line, parts)
        continues = broken is None and matched >= min(sum(old.sizes), sum(line.sizes))
        related = continues or found is not None
        if related:
            del lines[best]
        elif len(lines) >= _LINES:
            del lines[0]
        lines.append(line)
        return matched, found, related

    def _line(self, parts: Sequence[Segment], raws: array[int], sizes: list[int]) -> Line:
        count = len(parts)
        kept = range(count) if count <= _FIRST + _LAST else [*range(_FIRST), *range(count - _LAST, count)]
        known = self._traits
        own = {}
        for number in kept:
            raw = raws[number]
            found = known.get(raw)
            if found is None:
                found = known[raw] = traits(parts[number], raw)
                if len(known) > _TRAITS:
                    known.popitem(last=False)
            own[number] = found
        return Line(array("H", map(spelt_place, parts)), raws, array("I", sizes), own)

    def _known(self, raws: Sequence[int], sizes: Sequence[int]) -> int:
        """How many of the first bytes began some earlier prompt, whosever, by whole parts."""
        seen = self._seen
        parent = matched = 0
        through = True
        for raw, size in zip(raws, sizes, strict=True):
            parent = xxh3_64_intdigest(raw.to_bytes(8, "little"), parent)
            if parent in seen:
                if through:
                    matched += size
                seen.move_to_end(parent)
            else:
                through = False
                seen[parent] = None
        while len(seen) > _SEEN:
            seen.popitem(last=False)
        return matched


def watches(key: int, mask: int) -> bool:
    """Whether a key is among those that are looked at."""
    return not (key * _MIX >> 40) & mask


def _conversation(tenant: str, pool: str, parts: Sequence[Segment]) -> int:
    """What a conversation without a key is known by: its first message, less what is volatile in it."""
    first = next((part.text for part in parts if part.place == MESSAGE), b"")
    spelt = f"{tenant}\x1f{pool}\x1f".encode("utf-8", "surrogatepass")
    return xxh3_64_intdigest(spelt + masked(first))


def _sample(parts: Sequence[Segment], broken: Break) -> str:
    """A little of the text around the break."""
    text = next(
        (part.text for part in parts if (part.place, part.number) == (broken.place, broken.number)), b""
    )
    begin = max(0, broken.offset - _SAMPLE_BYTES // 2)
    return text[begin : broken.offset + _SAMPLE_BYTES].decode("utf-8", "replace")
