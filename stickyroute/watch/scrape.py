"""Reads each backend's `/metrics`, or SGLang's `/v1/loads` in its stead, and tells the fleet what stood there.

Owns one task a backend, so that a hung one delays no other. It decides nothing: whether a backend can be reached
is not its matter, and a page that does not come leaves the last sample as it was, to grow old.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, Fleet
from stickyroute.fleet.sample import Sample
from stickyroute.watch.ask import Asker, AskFailed
from stickyroute.watch.engine_loads import read_loads
from stickyroute.watch.engine_metrics import PageReader
from stickyroute.watch.members import Askers, MemberTasks, stretched_s, together_s

__all__ = ["ScrapeWatch"]

log = logging.getLogger(__name__)

PAGE_BYTES = 4 * 1024 * 1024
"""A longer page is not read. Real ones have 50 to 90 KB for each data-parallel rank."""
BACKOFF_LAST_S = 60.0
"""The longest pause while a backend that can be reached has no metrics for us (or the interval, if longer)."""
JITTER = 0.1
MOST_A_SECOND = 40.0
"""Pages of all backends together; with more the interval is stretched."""


class ScrapeWatch:
    """Scrapes every available backend each `interval_s` (seconds, jittered by 10 %), with doubling pauses
    up to a minute while nothing comes.

    `timeout_s` bounds one question, connecting included. `record` takes a backend's slot, the sample and the
    time it came (monotonic seconds), `heard` slot and time of any answer, `on_failed` the slot when none came.
    Raises ConfigError for an unreadable CA file.
    """

    def __init__(
        self,
        fleet: Fleet,
        record: Callable[[int, Sample, float], None],
        *,
        interval_s: float,
        timeout_s: float,
        heard: Callable[[int, float], None] = lambda slot, now_s: None,
        on_failed: Callable[[int], None] = lambda slot: None,
        askers: Askers | None = None,
    ) -> None:
        self._fleet = fleet
        self._record = record
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._heard = heard
        self._on_failed = on_failed
        self._askers = askers if askers is not None else Askers()
        self._owns_askers = askers is None
        self._tasks = MemberTasks(fleet, "scrape", self._make, self._keep_scraping)

    def start(self) -> None:
        """Begin scraping; must be called on the running loop."""
        self._tasks.start()

    def sync(self) -> None:
        """The fleet's members changed."""
        self._tasks.sync()

    async def stop(self) -> None:
        """Stop scraping and close every connection."""
        await self._tasks.stop()
        if self._owns_askers:
            self._askers.close()

    def _make(self, backend: Backend) -> _Scrape:
        return _Scrape(backend, self._askers.of(backend.spec))

    async def _keep_scraping(self, scrape: _Scrape) -> None:
        failures = 0
        while True:
            # One that nobody can reach is somebody else's to look for; it is scraped soon after it is back.
            reachable = not self._fleet.is_refused(scrape.backend.slot)
            failures = failures + 1 if reachable and not await self._scrape(scrape) else 0
            every_s = stretched_s(self.interval_s, len(self._tasks), MOST_A_SECOND)
            pause_s = min(max(every_s, BACKOFF_LAST_S), every_s * 2.0 ** min(failures, 16))
            pause_s *= random.uniform(1 - JITTER, 1 + JITTER)
            await asyncio.sleep(together_s(pause_s, len(self._tasks)))

    async def _scrape(self, scrape: _Scrape) -> bool:
        """Ask once; whether a sample came."""
        try:
            status, page = await self._ask(scrape, "/metrics")
            if status == 404:
                return await self._scrape_loads(scrape)
        except AskFailed as failure:
            if not failure.refused:  # that is said of the backend as a whole, by who hears of it next
                scrape.say(f"its /metrics cannot be read: {failure.why}")
            self._on_failed(scrape.backend.slot)
            return False
        return self._answered(scrape, status, page)

    async def _scrape_loads(self, scrape: _Scrape) -> bool:
        """The same of an engine without /metrics: SGLang has it off by default, but tells its load."""
        status, page = await self._ask(scrape, "/v1/loads?include=core")
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
        sample = scrape.reader.read(page)
        if not sample.dialect:
            scrape.say("its /metrics names nothing that is known of vLLM, SGLang or llama.cpp")
            return False
        self._record(scrape.backend.slot, sample, monotonic())
        scrape.say(f"its /metrics is read as {sample.dialect}'s", well=True)
        return True

    async def _ask(self, scrape: _Scrape, path: str) -> tuple[int, bytes | None]:
        answer = await scrape.asker.get(path, timeout_s=self.timeout_s, limit_bytes=PAGE_BYTES)
        if answer.status == 200:
            self._heard(scrape.backend.slot, monotonic())
        return answer.status, answer.body


class _Scrape:
    """One backend and how to ask it; remembers what was last said of it, so only changes are logged."""

    def __init__(self, backend: Backend, asker: Asker) -> None:
        self.backend = backend
        self.asker = asker
        self.reader = PageReader()
        self._said = ""

    def say(self, state: str, *, well: bool = False) -> None:
        if state != self._said:
            self._said = state
            log.log(logging.INFO if well else logging.WARNING, "backend %s: %s", self.backend.name, state)
