"""Every number stickyroute exposes to Prometheus: plain counters, and their text when a scrape comes.

No label is taken from a client: a pool that the fleet does not name folds into `other`, a route is its
template, reasons and kinds are words of our own code. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.process_collector import ProcessCollector

from stickyroute.metrics.counters import NONE, OTHER, Counters, Prices
from stickyroute.metrics.exposition import OPENMETRICS_TYPE, TEXT_TYPE, Family, render
from stickyroute.metrics.families import process_families, request_families
from stickyroute.metrics.fleet_families import fleet_families
from stickyroute.metrics.lag import LoopLag
from stickyroute.metrics.sources import ConfigFigures, DiscoveryFigures, PrefixBreaks, ShadowFigures
from stickyroute.metrics.watched import Watched

__all__ = [
    "NONE",
    "OTHER",
    "ConfigFigures",
    "DiscoveryFigures",
    "LoopLag",
    "Metrics",
    "PrefixBreaks",
    "Prices",
    "ShadowFigures",
    "content_type",
]


class Metrics(Counters):
    """The counters of one app, and what its admin port says of them and of the process."""

    def __init__(self, fleet: Watched, version: str) -> None:
        super().__init__(fleet)
        self._version = version
        self._process = ProcessCollector(registry=None)

    def families(self) -> Iterator[Family]:
        """Every family, each complete before it is handed out."""
        self.drop_removed()
        yield from request_families(self)
        yield from fleet_families(self)
        yield from process_families(self, self._version)
        for family in self._process.collect():
            rows = [(tuple(sample.labels.values()), sample.value) for sample in family.samples]
            yield Family(family.name, family.type, family.documentation, (), rows)

    def text(self, openmetrics: bool = False) -> Iterator[bytes]:
        """What a scrape says, in parts of about a millisecond of work each."""
        return render(self.families(), openmetrics)


def content_type(accept: str) -> tuple[str, bool]:
    """The form of a scrape for what a scraper accepts: its content type, and whether it is OpenMetrics."""
    openmetrics = "application/openmetrics-text" in accept
    return (OPENMETRICS_TYPE if openmetrics else TEXT_TYPE), openmetrics
