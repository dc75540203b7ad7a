"""Who hears of a source in a test: everything it told, and a way to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from stickyroute.watch.discovery.places import Place, Source


class Heard:
    def __init__(self) -> None:
        self.answers: list[list[Place]] = []
        self.failures: list[str] = []
        self._news = asyncio.Event()

    def found(self, places: Sequence[Place]) -> None:
        self.answers.append(list(places))
        self._news.set()

    def failed(self, why: str) -> None:
        self.failures.append(why)
        self._news.set()

    @property
    def last(self) -> list[str]:
        """The last answer: NAME=HOST:PORT, with a mark for who is being ended."""
        return [f"{p.name}={p.host}:{p.port}{' draining' if p.draining else ''}" for p in self.answers[-1]]

    async def until(self, true: Callable[[], object], timeout_s: float = 5) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():
                await self._news.wait()
                self._news.clear()

    async def tells(self, *places: str) -> None:
        """Wait until the last answer is this."""
        await self.until(lambda: self.answers and self.last == list(places))


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(source.run(heard))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
