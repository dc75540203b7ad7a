"""A watch over publishers of KV events, and what it holds to be cached."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from stickyroute.clock import monotonic
from stickyroute.routing.exact import Resident, chain, scope
from stickyroute.watch.kv_events import KvEventsWatch, KvSource
from tests.watch.kv_publisher import PATIENCE_S

PLAIN = scope("", "")


class Heard:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.emptied_slots: list[int] = []

    def held(self, slot: int, block: int) -> None: ...
    def lost(self, slot: int, block: int) -> None: ...

    def emptied(self, slot: int) -> None:
        self.emptied_slots.append(slot)


class Following:
    """A watch over sources, and its sets."""

    def __init__(self, sources: Iterable[KvSource], check_s: float, replay_pause_s: float) -> None:
        sources = list(sources)
        self.heard = Heard()
        self.resident = Resident(
            [source.slot for source in sources], self.heard, limit_blocks=100_000, silence_s=PATIENCE_S
        )
        self.watch = KvEventsWatch(sources, self.resident, check_s=check_s, replay_pause_s=replay_pause_s)

    def count(self, name: str, source: int = 0) -> Any:
        return self.watch.state()[source][name]

    async def caught_up(self) -> None:
        """Wait until the first replay is over: what comes then comes live."""
        await self.until(lambda: self.resident.fresh(0, monotonic()))

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so; the test's own limit ends it if it never is."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def following(
    *sources: KvSource, check_s: float = 0.1, replay_pause_s: float = 0.0
) -> AsyncIterator[Following]:
    one = Following(sources, check_s, replay_pause_s)
    one.watch.start()
    try:
        yield one
    finally:
        await one.watch.stop()


def names(*tokens: int) -> set[int]:
    return {chain(array("I", [token] * 4), 4, PLAIN)[0] for token in tokens}
