"""Reads each backend's `/metrics`, or SGLang's `/v1/loads` in its stead, and tells the fleet what stood there.

Owns one task a backend, so that a hung one delays no other, and the HTTP client they share. It decides
nothing: whether a backend can be reached is not its matter, and a page that does not come leaves the last
sample as it was, to grow old.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import aiohttp

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, Fleet
from stickyroute.fleet.sample import Sample
from stickyroute.watch.client import Asking, open_session, read_bounded
from stickyroute.watch.engine_loads import read_loads
from stickyroute.watch.engine_metrics import read_sample
from stickyroute.watch.supervisor import Supervisor

__all__ = ["ScrapeWatch"]

log = logging.getLogger(__name__)

PAGE_BYTES = 4 * 1024 * 1024
"""A longer page is not read. Real ones have 50 to 90 KB for each data-parallel rank."""
BACKOFF_LAST_S = 60.0
"""The longest pause while a backend that can be reached has no metrics for us (or the interval, if longer)."""
JITTER = 0.1


class ScrapeWatch:
    """Scrapes every available backend each `interval_s` (seconds, jittered by 10 %), with doubling pauses
    up to a minute while nothing comes.

    `timeout_s` bounds one question, connecting included. `record` takes a backend's slot, the sample and the
    time it came (monotonic seconds). Raises ConfigError for an unreadable CA file.
    """

    def __init__(
        self,
        fleet: Fleet,
        record: Callable[[int, Sample, float], None],
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._fleet = fleet
        self._record = record
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._scrapes = [_Scrape(backend) for backend in fleet.backends]
        self._supervisor = Supervisor()
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Begin scraping; must be called on the running loop."""
        self._session = session = open_session(self._timeout_s)
        for scrape in self._scrapes:
            self._supervisor.start(f"scrape:{scrape.backend.name}", self._task(scrape, session))

    async def stop(self) -> None:
        """Stop scraping and close every connection."""
        await self._supervisor.stop()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _task(self, scrape: _Scrape, session: aiohttp.ClientSession) -> Callable[[], Awaitable[None]]:
        return lambda: self._keep_scraping(scrape, session)

    async def _keep_scraping(self, scrape: _Scrape, session: aiohttp.ClientSession) -> None:
        failures = 0
        while True:
            # An unavailable backend is somebody else's to look for; it is scraped soon after it is back.
            available = self._fleet.available[scrape.backend.slot]
            failures = failures + 1 if available and not await self._scrape(scrape, session) else 0
            longest_s = max(self._interval_s, BACKOFF_LAST_S)
            pause_s = min(longest_s, self._interval_s * 2.0 ** min(failures, 16))
            await asyncio.sleep(pause_s * random.uniform(1 - JITTER, 1 + JITTER))

    async def _scrape(self, scrape: _Scrape, session: aiohttp.ClientSession) -> bool:
        """Ask once; whether a sample came."""
        try:
            status, page = await _ask(scrape.metrics, session)
            if status == 404:
                return await self._scrape_loads(scrape, session)
        except TimeoutError:
            scrape.say("its /metrics did not come in time")
        except (aiohttp.ClientError, OSError) as error:
            scrape.say(f"its /metrics cannot be read: {type(error).__name__}")
        else:
            return self._answered(scrape, status, page)
        return False

    async def _scrape_loads(self, scrape: _Scrape, session: aiohttp.ClientSession) -> bool:
        """The same of an engine without /metrics: SGLang has it off by default, but tells its load."""
        status, page = await _ask(scrape.loads, session)
        sample = read_loads(page) if status == 200 and page is not None else Sample()
        if not sample.dialect:
            scrape.say("it has no /metrics, so its load is not known; SGLang needs --enable-metrics")
            return False
        self._record(scrape.backend.slot, sample, monotonic())
        scrape.say("it has no /metrics; its /v1/loads is read, which tells no restarts", well=True)
        return True

    def _answered(self, scrape: _Scrape, status: int, page: bytes | None) -> bool:
        if status != 200 or page is None:
            what = "is too long" if page is None else f"answered {status}"
            scrape.say(f"its /metrics {what}, so its load is not known")
            return False
        sample = read_sample(page)
        if not sample.dialect:
            scrape.say("its /metrics names nothing that is known of vLLM, SGLang or llama.cpp")
            return False
        self._record(scrape.backend.slot, sample, monotonic())
        scrape.say(f"its /metrics is read as {sample.dialect}'s", well=True)
        return True


class _Scrape:
    """One backend and how to ask it; remembers what was last said of it, so only changes are logged."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.metrics = Asking(backend.spec, "/metrics")
        self.loads = Asking(backend.spec, "/v1/loads?include=core")
        self._said = ""

    def say(self, state: str, *, well: bool = False) -> None:
        if state != self._said:
            self._said = state
            log.log(logging.INFO if well else logging.WARNING, "backend %s: %s", self.backend.name, state)


async def _ask(asking: Asking, session: aiohttp.ClientSession) -> tuple[int, bytes | None]:
    async with asking.get(session) as reply:
        return reply.status, await read_bounded(reply, PAGE_BYTES)
