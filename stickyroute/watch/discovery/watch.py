"""Follows every source of discovery and tells the sum of what they found.

Owns the last good answer of each source, what an empty one means, and how often changes are told: a burst of
them is told once. What two sources find alike is told of both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.settings import DiscoverySettings
from stickyroute.watch.discovery.dns import DnsSource
from stickyroute.watch.discovery.file import FileSource
from stickyroute.watch.discovery.kubernetes import KubernetesSource
from stickyroute.watch.discovery.places import Found, Place, Source, spec_of
from stickyroute.watch.supervisor import Supervisor

__all__ = ["DiscoveryWatch", "Prepared", "load_packages"]

log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Changes that come within this time are told together."""
FAILED_TICK_S = 0.5
"""How often sources that can look again are told of backends that cannot be reached."""

_OPTIONS = ("weight", "api_key", "ca", "tls_verify", "models", "max_in_flight", "on_empty")
"""What an entry adds to what its source finds: another value needs no new source."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Other entries, ready to be followed. `found` is what they find for now; `follow` makes them those in force."""

    found: tuple[Found, ...]
    follow: Callable[[], None]


class DiscoveryWatch:
    """Follows entries of the configuration, once they were prepared; `changed` is awaited after what they find has
    changed."""

    def __init__(self, fleet: Fleet, changed: Callable[[], Awaitable[None]]) -> None:
        self._fleet = fleet
        self._changed = changed
        self._followed: list[_Followed] = []
        self._news = asyncio.Event()
        self._supervisor = Supervisor()
        self._running = False

    def prepare(self, entries: Sequence[DiscoverySettings]) -> Prepared:
        """These entries in the place of those that are followed; nothing happens before `Prepared.follow`.

        Sources that stay keep what they found. A new one has, until its first answer, what a removed one of its
        kind had found. Raises ConfigError for a source that cannot be made.
        """
        left = list(self._followed)
        chosen: list[tuple[DiscoverySettings, _Followed | None]] = []
        for entry in entries:
            same = next((one for one in left if _identity(one.entry) == _identity(entry)), None)
            if same is not None:
                left.remove(same)
            chosen.append((entry, same))
        orphans = list(left)
        following: list[tuple[DiscoverySettings, _Followed]] = []
        for entry, one in chosen:
            if one is None:
                one = _Followed(entry, _source(entry), self._news)
                before = next((orphan for orphan in orphans if orphan.entry.kind == entry.kind), None)
                if before is not None:
                    orphans.remove(before)
                    one.places = before.places
            following.append((entry, one))

        def follow() -> None:
            known = set(map(id, self._followed))
            for one in left:
                one.stop()
            self._followed = [one for _, one in following]
            for entry, one in following:
                one.entry = entry
                if id(one) not in known and self._running:
                    self._start(one)

        return Prepared(_found([(entry, one.places) for entry, one in following]), follow)

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._running = True
        for one in self._followed:
            self._start(one)
        self._supervisor.start("discovery", self._tell)
        self._supervisor.start("discovery of failed backends", self._look_again)

    async def stop(self) -> None:
        """End every task."""
        self._running = False
        for one in self._followed:
            one.stop()
        await self._supervisor.stop()

    async def first_round(self, timeout_s: float) -> bool:
        """Wait until each source has answered or failed once, at most `timeout_s` seconds; whether all did."""
        try:
            async with asyncio.timeout(timeout_s):
                for one in self._followed:
                    await one.heard.wait()
        except TimeoutError:
            return False
        return True

    def found(self) -> tuple[Found, ...]:
        """All that is found now."""
        return _found([(one.entry, one.places) for one in self._followed])

    def state(self) -> list[dict[str, Any]]:
        """How each source goes, as JSON values."""
        now_s = monotonic()
        return [
            {
                "source": one.entry.label,
                "backends": len(one.places),
                "answers": one.answers,
                "failures": one.failures,
                "error": one.error or None,
                "answer_age_s": None if one.answered_s is None else round(now_s - one.answered_s, 1),
            }
            for one in self._followed
        ]

    def _start(self, one: _Followed) -> None:
        one.supervisor.start(f"discovery {one.entry.label}", lambda: one.source.run(one))

    async def _tell(self) -> None:
        took_s = 0.0
        while True:
            await self._news.wait()
            # A ring of hundreds of backends takes a while to make: at most a fifth of the time goes into it.
            await asyncio.sleep(max(GATHER_S, 4 * took_s))
            self._news.clear()
            began_s = monotonic()
            try:
                await self._changed()
            except Exception:
                self._news.set()  # it is still to be told, once this task is restarted
                raise
            took_s = monotonic() - began_s

    async def _look_again(self) -> None:
        fleet = self._fleet
        while True:
            await asyncio.sleep(FAILED_TICK_S)
            for one in self._followed:
                for place in one.places:
                    backend = fleet.find(place.name)
                    if backend is not None and not fleet.available[backend.slot]:
                        one.source.again()
                        break


def load_packages(entries: Sequence[DiscoverySettings]) -> None:
    """Import what the sources of `entries` use, which takes up to half a second: for a thread, before `prepare`."""
    kinds = {entry.kind for entry in entries}
    for kind, module in (("dns", "dns.asyncresolver"), ("kubernetes", "kubernetes_asyncio.client")):
        if kind in kinds:
            try:
                import_module(module)
            except ImportError:
                continue  # whoever needs it says so


class _Followed:
    """One source and the last good it told. `heard`: it told something, or that it could not."""

    def __init__(self, entry: DiscoverySettings, source: Source, news: asyncio.Event) -> None:
        self.entry = entry
        self.source = source
        self.places: tuple[Place, ...] = ()
        self.heard = asyncio.Event()
        self.error = ""
        self.answers = 0
        self.failures = 0
        self.answered_s: float | None = None
        self.supervisor = Supervisor()
        self._news = news
        self._stopping: asyncio.Task[None] | None = None

    def found(self, places: Sequence[Place]) -> None:
        self.answers += 1
        self.answered_s = monotonic()
        self.heard.set()
        if not places and self.places and self.entry.on_empty == "keep":
            self._say(f"found no backend: the last {len(self.places)} stay (on_empty: keep)")
            return
        self._say("")
        if tuple(places) != self.places:
            log.info("discovery %s: %d backends", self.entry.label, len(places))
            self.places = tuple(places)
            self._news.set()

    def failed(self, why: str) -> None:
        self.failures += 1
        self.heard.set()
        self._say(f"{why}; the last {len(self.places)} backends stay" if self.places else why)

    def stop(self) -> None:
        """End its task; it is waited for in the background."""
        self._stopping = asyncio.create_task(
            self.supervisor.stop(), name=f"end of discovery {self.entry.label}"
        )

    def _say(self, error: str) -> None:
        if error != self.error:
            if error:
                log.warning("discovery %s: %s", self.entry.label, error)
            else:
                log.info("discovery %s works again", self.entry.label)
            self.error = error


def _source(entry: DiscoverySettings) -> Source:
    if entry.kind == "dns":
        return DnsSource(entry)
    if entry.kind == "kubernetes":
        return KubernetesSource(entry)
    assert entry.path is not None
    return FileSource(entry.path)


def _identity(entry: DiscoverySettings) -> str:
    return repr(entry.model_dump(exclude=set(_OPTIONS)))


def _found(told: Sequence[tuple[DiscoverySettings, Sequence[Place]]]) -> tuple[Found, ...]:
    return tuple(
        Found(spec_of(entry, place), place.draining, entry.label)
        for entry, places in told
        for place in places
    )
