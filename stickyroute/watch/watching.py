"""Everything that looks at the backends, as one object: their models, their metrics, whether they are well.

Owns how the watches are put together, and what they share: connections, the fleet's clock, and when a backend was
last heard of.
"""

from __future__ import annotations

from collections.abc import Mapping

from stickyroute.fleet import Backend, Fleet
from stickyroute.settings import Settings
from stickyroute.watch.ask import Contexts
from stickyroute.watch.clock import FleetClock
from stickyroute.watch.members import Askers
from stickyroute.watch.models import ModelsWatch
from stickyroute.watch.probe import ProbeWatch
from stickyroute.watch.scrape import ScrapeWatch

__all__ = ["FleetWatch"]


class FleetWatch:
    """Watches a fleet, and follows it: `sync` after each change of its members, `retune` after one of the settings.

    `answered_s` has by slot when a backend last answered a client (monotonic seconds), for whoever knows. Raises
    ConfigError for an unreadable CA file.
    """

    def __init__(self, fleet: Fleet, settings: Settings, contexts: Contexts | None = None) -> None:
        self._fleet = fleet
        self.answered_s: Mapping[int, float] = {}
        self._heard_s: dict[int, float] = {}
        self._askers = askers = Askers(contexts)
        self._clock = clock = FleetClock(fleet)
        self.models = ModelsWatch(
            fleet,
            interval_s=settings.models_interval_s,
            heard=self._heard_s.__setitem__,
            askers=askers,
            clock=clock,
        )
        self.scrape = ScrapeWatch(
            fleet,
            fleet.record_sample,
            interval_s=settings.scrape.interval_s,
            timeout_s=settings.scrape.timeout_s,
            heard=self._heard_s.__setitem__,
            on_failed=lambda slot: self.probe.look_soon(slot),
            askers=askers,
        )
        self.probe = ProbeWatch(
            fleet,
            interval_s=settings.probe.interval_s,
            timeout_s=settings.probe.timeout_s,
            dialect=self._dialect,
            heard_s=self._last_heard_s,
            on_back=self.models.ask_soon,
            askers=askers,
            clock=clock,
        )

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._clock.start()
        self.models.start()
        self.scrape.start()
        self.probe.start()

    def sync(self) -> None:
        """The fleet's members changed: whoever left or moved is not asked any more, whoever came is."""
        backends = self._fleet.backends
        slots = {backend.slot for backend in backends}
        for slot in [slot for slot in self._heard_s if slot not in slots]:
            del self._heard_s[slot]
        self._askers.keep(backends)
        self.models.sync()
        self.scrape.sync()
        self.probe.sync()

    def retune(self, settings: Settings) -> None:
        """Go by these from each backend's next pause on."""
        self.models.interval_s = settings.models_interval_s
        self.scrape.interval_s = settings.scrape.interval_s
        self.scrape.timeout_s = settings.scrape.timeout_s
        self.probe.interval_s = settings.probe.interval_s
        self.probe.timeout_s = settings.probe.timeout_s

    async def first_round(self, timeout_s: float) -> bool:
        """Wait until each backend was asked for its models once, at most `timeout_s` seconds; whether all were."""
        return await self.models.first_round(timeout_s)

    async def stop(self) -> None:
        """End every task and close every connection."""
        await self.probe.stop()
        await self.scrape.stop()
        await self.models.stop()
        await self._clock.stop()
        self._askers.close()

    def _last_heard_s(self, slot: int) -> float:
        return max(self._heard_s.get(slot, 0.0), self.answered_s.get(slot, 0.0))

    def _dialect(self, backend: Backend) -> str:
        if backend.spec.engine is not None:
            return backend.spec.engine
        told = self._fleet.sample(backend.slot)
        if told is not None and told[0].dialect:
            return told[0].dialect
        return self.models.owner(backend.slot)
