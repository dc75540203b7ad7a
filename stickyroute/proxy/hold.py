"""Requests that wait because no backend can take them: bounded in number and in time, in the order they came.

Owns the waiting and nothing else: who may wait, and what an attempt is, are the proxy's. While nobody waits
there is no timer, so off costs nothing. A client that leaves takes its request out at once.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from stickyroute.clock import monotonic
from stickyroute.proxy.exchange import Exchange

__all__ = ["Hold"]

TICK_S = 0.05
"""How often it is looked whether somebody is back, while requests wait."""


class Holder(Protocol):
    """What the hold asks of the proxy."""

    def may_go(self, exchange: Exchange) -> bool:
        """Whether a backend of the request's pool is available now. Must be cheap."""

    def go_on(self, exchange: Exchange) -> None:
        """Try the request anew; whether somebody took it shows in its lease."""

    def give_up(self, exchange: Exchange) -> None:
        """Nobody came in time: answer so."""


class Hold:
    """At most `limit` requests wait, each for `wait_s` seconds at most; see `retune`. Off (0) at first."""

    __slots__ = ("_holder", "_loop", "_timer", "_until_s", "_waiting", "limit", "wait_s")

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[Exchange, float] = {}  # and when each gives up, monotonic seconds
        self.limit = 0
        self.wait_s = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self, exchange: Exchange, now_s: float) -> bool:
        """Let a request wait; False where it may not, or has done so for long enough."""
        until_s = self._waiting.get(exchange)
        if until_s is not None:
            return now_s < until_s
        if len(self._waiting) >= self.limit:
            return False
        self._waiting[exchange] = now_s + self.wait_s
        self._arm()
        return True

    def drop(self, exchange: Exchange) -> None:
        """It waits no more; unknown ones are fine."""
        self._waiting.pop(exchange, None)

    def retune(self, limit: int, wait_s: float) -> None:
        """These bounds from here on; who waits already goes by the old ones."""
        self.limit = limit
        self.wait_s = wait_s

    def close(self) -> None:
        """Answer everybody now: the proxy stops."""
        waiting, self._waiting = self._waiting, {}
        for exchange in waiting:
            self._holder.give_up(exchange)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        holder, now_s = self._holder, monotonic()
        stuck: set[int] = set()  # pools that took nobody: whoever comes later would fare no better
        for exchange, until_s in tuple(self._waiting.items()):
            pool = id(exchange.pool)
            if pool not in stuck and holder.may_go(exchange):
                holder.go_on(exchange)
                if exchange.lease is not None:
                    self._waiting.pop(exchange, None)
                    continue
            stuck.add(pool)
            if now_s >= until_s and self._waiting.pop(exchange, None) is not None:
                holder.give_up(exchange)
        if self._waiting:
            self._arm()
