"""Tells the fleet what became of each attempt, so that it can judge its backends by real traffic.

Owns which event counts as what. What follows from it is `fleet.health`'s, whether a request is tried again the
proxy's.

- A 4xx, and a 501, is an answer: the fault is the client's.
- 429 and 503 are back-pressure, whether as a status or inside a stream.
- Silence is no fault by itself, since prompts may be long and queues before them longer. It is told once an
  attempt, where nothing of a reply came for long; the fleet makes something of it only if nobody else gets a
  reply from that backend either.
"""

from __future__ import annotations

import random
from typing import Final

from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.fleet.health import Outcome
from stickyroute.http.words import (
    CLIENT_LEFT,
    UPSTREAM_ABORTED,
    UPSTREAM_DEAD,
    UPSTREAM_DIED,
    UPSTREAM_ERROR,
    UPSTREAM_SILENT,
)
from stickyroute.proxy.exchange import Exchange

__all__ = ["Blame"]

WHOLE_REPLY: Final = 5.0
"""So many times as long a reply that does not stream may be silent: it comes when all of it is computed."""
IMPATIENT: Final = 6.0
"""A client that left after this part (1/6) of the time without a byte counts as silence too."""

# What the end of a reply that had begun says of its backend.
_ENDS: Final = {
    UPSTREAM_DIED: Outcome.RESET,
    UPSTREAM_SILENT: Outcome.RESET,
    UPSTREAM_ABORTED: Outcome.RESET,
    UPSTREAM_ERROR: Outcome.SERVER_ERROR,
    UPSTREAM_DEAD: Outcome.ENGINE_DEAD,
}


class Blame:
    """`first_byte_s`: how long the first byte of a stream may take before its silence is told, in seconds."""

    __slots__ = ("_fleet", "answered_s", "first_byte_s")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.first_byte_s = 0.0
        self.answered_s: dict[int, float] = {}  # by slot, when it last answered well (monotonic)

    def tell(self, exchange: Exchange, outcome: Outcome, retry_after_s: float | None = None) -> None:
        """What became of the attempt at hand; nothing else is told of it then. `retry_after_s` is what a busy
        backend asks for."""
        exchange.blamed = True
        self._fleet.record_outcome(exchange.slot, outcome, monotonic(), random.random(), retry_after_s)

    def answered(self, exchange: Exchange) -> None:
        """The first byte of a reply's body is there."""
        if not exchange.blamed:
            status = exchange.status
            now_s = monotonic()
            if status < 500 or status == 501:
                self.answered_s[exchange.slot] = now_s
                self._fleet.record_outcome(exchange.slot, Outcome.ANSWERED, now_s, 0.0)
            else:
                self._fleet.record_outcome(exchange.slot, Outcome.SERVER_ERROR, now_s, random.random())

    def waited(self, exchange: Exchange, now_s: float) -> None:
        """There is no byte of the reply yet; called again and again while that is so."""
        limit_s = self.first_byte_s if exchange.asks_stream else WHOLE_REPLY * self.first_byte_s
        if now_s - exchange.sent_s > limit_s:
            self._silent(exchange, now_s)

    def ended(self, exchange: Exchange, end: str) -> None:
        """The exchange is over, by a word of `http.relay`."""
        if end == CLIENT_LEFT:
            if not exchange.bytes_out and exchange.lease is not None:
                now_s = monotonic()
                if (now_s - exchange.sent_s) * IMPATIENT > self.first_byte_s:
                    self._silent(exchange, now_s)
        elif not exchange.blamed:
            outcome = _ENDS.get(end)
            if outcome is not None:
                self.tell(exchange, outcome)

    def _silent(self, exchange: Exchange, now_s: float) -> None:
        if not exchange.silent:
            exchange.silent = True
            self._fleet.record_outcome(exchange.slot, Outcome.NO_FIRST_BYTE, now_s, random.random())
