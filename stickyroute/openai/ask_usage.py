"""Asking for the usage of a stream whose client did not, and taking the extra event out of it again.

Owns the two changes of bytes: one option more in the request, one event less in the reply; everything else stays
as it came, wherever it is cut. Knows nothing of connections. Costs of a stream of n bytes: n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from stickyroute.openai.routes import Shape

__all__ = ["UsageSieve", "ask_for_usage"]

_ASKED = b'"stream_options":{"include_usage":true}'
_ASKABLE = frozenset({Shape.CHAT, Shape.COMPLETIONS})
_MARK = b'"usage"'
_DULL = b'"usage":null'  # in every other event: OpenAI's way, and older SGLang's
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")  # of an event; engines write the first, sse-starlette the second
_LONGEST_END = 4
_HOLD_BYTES = 8192
"""An event that is not whole after so many bytes is none of usage, and goes on as it comes."""


def ask_for_usage(shape: Shape, body: bytes, fields: Mapping[str, Any] | None) -> bytes | None:
    """`body` with `stream_options.include_usage`, otherwise byte for byte; None if nothing is to be asked.

    `fields` is the body as it was read. None for a reply that does not stream or tells anyway, for a client that has
    asked itself or wants usage all along, and for what cannot be changed safely. Where the client set other options
    they are written again, last: engines take the last of two equal keys.
    """
    if fields is None or shape not in _ASKABLE or fields.get("stream") is not True:
        return None
    end = body.rfind(b"}")
    if end < 0 or body[end + 1 :].strip():
        return None
    options = fields.get("stream_options")
    if options is None:
        asked = _ASKED
    elif (
        type(options) is dict
        and not options.get("include_usage")
        and not options.get("continuous_usage_stats")
    ):
        try:
            asked = b'"stream_options":' + orjson.dumps({**options, "include_usage": True})
        except orjson.JSONEncodeError:  # nested too deep to be written
            return None
    else:
        return None
    return b"%b,%b%b" % (body[:end], asked, body[end:])


class UsageSieve:
    """Takes the usage event, which nobody but us asked for, out of one stream of CHAT or COMPLETIONS.

    `told` is the last usage that an event told, taken out or not. An event that arrives in parts is held until
    it is whole; a client could have read nothing from the parts. Of an engine that tells usage in every event,
    because it was started so, nothing is taken out: its clients get the last event too, asked for or not.
    """

    __slots__ = ("_held", "_last", "_passing", "_tells_always", "told")

    mark: ClassVar[bytes] = _MARK
    dull: ClassVar[bytes] = _DULL
    ending: ClassVar[bytes] = _ENDS[0]

    def __init__(self) -> None:
        self.told: dict[str, Any] | None = None
        self._held = b""
        self._passing = False  # a long event has gone on in part
        self._last = b""  # its last bytes, for an end that is cut
        self._tells_always = False

    @property
    def holds(self) -> bool:
        """Whether an event is half here or half through."""
        return bool(self._held) or self._passing

    def feed(self, piece: bytes) -> bytes:
        """What goes on of the body so far."""
        if self._passing:
            through = self._pass(piece)
            return piece if through == len(piece) else piece[:through] + self.feed(piece[through:])
        text = self._held + piece if self._held else piece
        begin = _last_end(text)
        at = text.rfind(
            _MARK, 0, begin
        )  # from the end, where it is if it is there: half the cost if it is not
        if at < 0:
            if begin == len(text):
                self._held = b""
                return text
            out = text[:begin]
        else:
            out = self._without(text[:begin], at)
        held = text[begin:]
        if len(held) > _HOLD_BYTES:
            self._passing = True
            self._last = held[1 - _LONGEST_END :]
            self._held = b""
            return out + held
        self._held = held
        return out

    def _without(self, events: bytes, at: int) -> bytes:
        """Whole events less the extra one; the last mark stands at `at`."""
        begin = _begin_of(events, at)
        before = _begin_of(events, begin - 1) if begin else 0
        # Who tells all along has told with the event before: the rest need not be searched, which takes as long as all
        # else together.
        if events.rfind(_MARK, before, begin) < 0 and not events.startswith(_DULL, at):
            end = _first_end(events, at)
            return events[:begin] + events[end:] if self._is_extra(events[begin:end]) else events
        parts: list[bytes] = []
        done = 0
        at = events.find(_MARK)
        while at >= 0:
            if events.startswith(_DULL, at):
                at = events.find(_MARK, at + len(_DULL))
                continue
            begin, end = _begin_of(events, at), _first_end(events, at)
            if self._is_extra(events[begin:end]):
                parts.append(events[done:begin])
                done = end
            at = events.find(_MARK, end)
        return b"".join((*parts, events[done:])) if parts else events

    def rest(self) -> bytes:
        """An event without its end, unless it is the extra one all the same."""
        held, self._held = self._held, b""
        return b"" if held and self._is_extra(held) else held

    def _pass(self, piece: bytes) -> int:
        """How much of `piece` belongs to the long event that is going through."""
        text = self._last + piece
        end = _first_end(text, 0)
        if not end:
            self._last = text[1 - _LONGEST_END :]
            return len(piece)
        through = end - len(self._last)
        self._passing, self._last = False, b""
        return through

    def _is_extra(self, event: bytes) -> bool:
        if _MARK not in event or not event.startswith(b"data:"):
            return False
        try:
            value = orjson.loads(event[5:])
        except orjson.JSONDecodeError:
            return False
        if not isinstance(value, dict) or not isinstance(value.get("usage"), dict):
            return False
        self.told = value["usage"]
        if value.get("choices") == []:
            return not self._tells_always
        self._tells_always = True
        return False


def _first_end(text: bytes, begin: int) -> int:
    """Where the first event from `begin` on ends; 0 if it does not."""
    first = 0
    for end in _ENDS:
        # A text is searched as far as the nearest end that is known: the usual one is near.
        at = text.find(end, begin, first) if first else text.find(end, begin)
        if at >= 0:
            first = at + len(end)
    return first


def _last_end(text: bytes) -> int:
    """Where the last whole event ends; 0 if there is none."""
    if text.endswith(_ENDS[0]):
        return len(text)
    return max(at + len(end) if (at := text.rfind(end)) >= 0 else 0 for end in _ENDS)


def _begin_of(text: bytes, at: int) -> int:
    """Where the event begins that `at` lies in."""
    near = text.rfind(
        b"data:", 0, at
    )  # nearly always there, and searching back for an end that is rare takes long
    if near == 0 or (near > 0 and text.endswith(_ENDS, 0, near)):
        return near
    return max(found + len(end) if (found := text.rfind(end, 0, at)) >= 0 else 0 for end in _ENDS)
