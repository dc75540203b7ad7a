"""Every number stickyroute exposes to Prometheus: plain counters, one registry, one collector of ours.

Prometheus objects exist only while a scrape is being answered. No label is taken from a client: a pool that
the fleet does not name folds into `other`, a route is its template, reasons and kinds are words of our own
code. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from stickyroute.fleet import Fleet
from stickyroute.metrics.collector import FleetCollector
from stickyroute.metrics.counters import NONE, OTHER, Counters

__all__ = ["NONE", "OTHER", "Metrics"]


class Metrics(Counters):
    """The counters of one app. `registry` is what its admin port renders: theirs and the process's own."""

    def __init__(self, fleet: Fleet, version: str) -> None:
        super().__init__(fleet)
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(FleetCollector(self, version))
        ProcessCollector(registry=self.registry)
