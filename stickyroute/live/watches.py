"""What looks at the backends, kept in step with the fleet and the settings: the fleet's watch, and exact mode.

Owns when exact mode begins anew: a publisher came, left or moved. What it had learned of tokens goes with it;
the index that it corrected stays.
"""

from __future__ import annotations

import logging
from typing import Any

from stickyroute.errors import ConfigError
from stickyroute.fleet import Fleet
from stickyroute.live.build import exact_mode, exact_sources
from stickyroute.proxy import Proxy
from stickyroute.routing.router import Router
from stickyroute.settings import Settings
from stickyroute.watch.exact_mode import ExactMode
from stickyroute.watch.kv_events import KvSource
from stickyroute.watch.watching import FleetWatch

__all__ = ["Watches"]

log = logging.getLogger(__name__)


class Watches:
    """`fleet_watch` and, where backends publish KV events, exact mode. Raises ConfigError as they do."""

    def __init__(self, fleet: Fleet, settings: Settings, router: Router, fleet_watch: FleetWatch) -> None:
        self.fleet_watch = fleet_watch
        self._sources: tuple[KvSource, ...] = exact_sources(fleet, settings, router)
        self.exact: ExactMode | None = exact_mode(fleet, settings, self._sources)

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self.fleet_watch.start()
        if self.exact is not None:
            self.exact.start()

    async def stop(self) -> None:
        """End every task and close every connection."""
        await self.fleet_watch.stop()
        if self.exact is not None:
            await self.exact.stop()

    def exact_state(self) -> dict[str, Any] | None:
        """How exact mode goes; None where it is off."""
        return None if self.exact is None else self.exact.state()

    async def follow(self, fleet: Fleet, settings: Settings, router: Router, proxy: Proxy) -> None:
        """The fleet or the settings changed. What is quick is done before this waits for anything."""
        self.fleet_watch.retune(settings)
        self.fleet_watch.sync()
        sources = exact_sources(fleet, settings, router)
        if sources == self._sources:
            return
        old, self.exact, self._sources = self.exact, None, sources
        proxy.learn_by(None)
        if old is not None:
            await old.stop()
        try:
            self.exact = exact_mode(fleet, settings, sources)
        except ConfigError as error:
            log.error("KV events are not followed: %s", error.message)
            return
        if self.exact is not None:
            self.exact.start()
            proxy.learn_by(self.exact.offer)
