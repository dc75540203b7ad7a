"""What watches decisions without making any: the ring of past ones, the doctor, the shadow policy.

Owns their making from the settings and their hooks into the proxy. Each is an observer (an exchange is over) or a
witness (a request was sent) and changes nothing of what it watches.
"""

from __future__ import annotations

from stickyroute.control.decisions import Decisions
from stickyroute.control.doctor import Ward
from stickyroute.control.shadow import ShadowDesk
from stickyroute.fleet import Fleet
from stickyroute.metrics import Metrics
from stickyroute.proxy import Observer, Witness
from stickyroute.settings import Settings

__all__ = ["Insight"]


class Insight:
    """Made before the proxy, which gets `observers` and `witnesses`."""

    def __init__(self, settings: Settings, fleet: Fleet, metrics: Metrics) -> None:
        self.decisions = Decisions(fleet, settings.decisions)
        self.doctor = Ward(settings, fleet)
        self.shadow = ShadowDesk(settings, fleet)
        metrics.sources.breaks = self.doctor.breaks
        metrics.sources.shadow = self.shadow.figures
        self.observers: list[Observer] = [self.decisions.record, self.shadow.ended]
        self.witnesses: list[Witness] = [self.doctor.offer, self.shadow.sent]

    def retune(self, settings: Settings) -> None:
        """Go by these settings from here on."""
        self.decisions.resize(settings.decisions)
        self.doctor.retune(settings)
        self.shadow.retune(settings)

    def start(self) -> None:
        """Begin what goes on beside requests."""
        self.doctor.start()

    async def stop(self) -> None:
        await self.doctor.stop()
