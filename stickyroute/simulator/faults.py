"""Faults on demand: what a test or a drill asks an engine to do wrong.

Owns which faults are on, and for how many requests more. The server acts them out. Knows no sockets.

    crash                every connection is reset and the port closes, until the engine is restarted
    hang_before_headers  a request is read and never answered
    hang_mid_stream      a stream goes silent after `after_tokens`, its connection stays open
    reset                the connection is reset after `after_tokens`
    close                the connection is closed in order after `after_tokens`, but the reply isn't ended
    garbage              bytes that aren't HTTP, then the connection closes
    busy                 503 as when the queue is full
    slow                 every step takes `factor` times as long
    dead                 generation stands still: health stays green, nothing comes out any more
    engine_error         the engine core died: streams end with an error event, further requests get 500,
    health 503 lost_cache           the prefix cache is emptied, once
    metrics_missing      /metrics is 404
    metrics_lying        /metrics says: idle, empty, nothing ever hit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KINDS: Final = (
    "crash",
    "hang_before_headers",
    "hang_mid_stream",
    "reset",
    "close",
    "garbage",
    "busy",
    "slow",
    "dead",
    "engine_error",
    "draining",
    "lost_cache",
    "metrics_missing",
    "metrics_lying",
)
MID_STREAM: Final = ("hang_mid_stream", "reset", "close")


@dataclass(frozen=True, slots=True)
class Fault:
    """`count` requests are hit, all of them when None; it ends by itself after `for_s` seconds, never when
    None."""

    kind: str
    count: int | None = None
    for_s: float | None = None
    after_tokens: int = 1
    factor: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}; known: {', '.join(KINDS)}")


def parse(text: str) -> Fault:
    """A fault as a schedule writes it: `close`, or `close:count=2,after_tokens=5`."""
    kind, _, options = text.partition(":")
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        name, _, value = option.partition("=")
        values[name.strip()] = float(value) if name.strip() in ("for_s", "factor") else int(value)
    return from_mapping({"kind": kind.strip(), **values})


def from_mapping(values: Mapping[str, Any]) -> Fault:
    """A fault as the admin route takes it; ValueError says what is wrong."""
    try:
        return Fault(**values)
    except TypeError as failure:
        raise ValueError(str(failure)) from None


class Faults:
    """The faults that are on now; of each kind, the latest."""

    def __init__(self) -> None:
        self._on: dict[str, Fault] = {}
        self._left: dict[str, int] = {}

    def __contains__(self, kind: str) -> bool:
        return kind in self._on

    def kinds(self) -> list[str]:
        """What is on, in the order it was turned on."""
        return list(self._on)

    def get(self, kind: str) -> Fault | None:
        """The fault of that kind, if it is on; it isn't counted as hit."""
        return self._on.get(kind)

    def turn_on(self, fault: Fault) -> None:
        self._on[fault.kind] = fault
        if fault.count is not None:
            self._left[fault.kind] = fault.count
        else:
            self._left.pop(fault.kind, None)

    def turn_off(self, kind: str | None = None) -> None:
        """One kind, or all."""
        for one in [kind] if kind is not None else list(self._on):
            self._on.pop(one, None)
            self._left.pop(one, None)

    def take(self, *kinds: str) -> Fault | None:
        """The fault among `kinds` that hits the request at hand, if any; it counts as hit."""
        for kind in kinds:
            fault = self._on.get(kind)
            if fault is None:
                continue
            if kind in self._left:
                self._left[kind] -= 1
                if self._left[kind] <= 0:
                    self.turn_off(kind)
            return fault
        return None
