"""The configuration of a running process: what is in force, where it came from, and how it becomes another.

Owns the one way in which settings and members change: read and checked, planned in small steps, then applied
without a pause in which a request could see half of it. A configuration with any mistake changes nothing. What
was learned stays: keys, sessions, the index, loads, the operator's states.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.fleet.plan import Plan
from stickyroute.http.limits import Limits
from stickyroute.http.sweeper import Sweeper
from stickyroute.live.build import gateway_keys, limits_of, load_certificate, rules_of
from stickyroute.live.changes import changes, in_force
from stickyroute.live.members import LeftOut, members_of
from stickyroute.live.preview import Preview, changes_members
from stickyroute.live.targets import Targets
from stickyroute.live.watches import Watches
from stickyroute.metrics import DiscoveryFigures
from stickyroute.openai.routes import RouteTable
from stickyroute.proxy import Front, Proxy
from stickyroute.routing.affinity import AffinityRule, build_affinity
from stickyroute.routing.policies import build_policy
from stickyroute.routing.router import Router
from stickyroute.settings import Settings, effective_yaml, load_settings, load_text
from stickyroute.watch.discovery import DiscoveryWatch, load_packages

__all__ = ["Live", "Origin", "Parts"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the settings came from when the process began: a file, and flags that overrule it."""

    path: Path | None = None
    overrides: dict[str, Any] | None = None

    def read(self) -> Settings:
        """Them anew. Raises ConfigError."""
        return load_settings(self.path, self.overrides)


@dataclass(slots=True)
class Parts:
    """The parts of the process that a change reaches. `affinity` and `router` are those in force."""

    fleet: Fleet
    proxy: Proxy
    front: Front
    affinity: AffinityRule
    router: Router
    targets: Targets
    limits: Limits
    sweeper: Sweeper
    listener_tls: ssl.SSLContext | None
    watches: Watches
    discovery: DiscoveryWatch

    def is_here(self, name: str) -> bool:
        """Whether the fleet has a backend of that name."""
        return self.fleet.find(name) is not None


class Live:
    """Changes `parts`. `settings` are those in force, `wanted` those last read: they differ in what waits for a
    restart."""

    def __init__(self, settings: Settings, origin: Origin | None = None) -> None:
        self.settings = settings
        self.wanted = settings
        self.origin = origin if origin is not None else Origin()
        self.generation = 1
        self.source = str(self.origin.path) if self.origin.path is not None else "flags and environment"
        self.loaded_at_s = time.time()
        self.last_error: str | None = None
        self.last_error_at_s: float | None = None
        self.applied = 0
        self.refused = 0
        self.serving = False
        """Whether clients are served already. Who comes before that joins no running fleet: no slow start."""
        self.on_change: list[Callable[[Settings], None]] = []
        """Called with the settings in force after each change, for parts that take theirs once."""
        self._parts: Parts | None = None
        self._lock = asyncio.Lock()
        self._drained: set[str] = set()
        self._left_out: tuple[LeftOut, ...] = ()

    def attach(self, parts: Parts) -> None:
        """The process runs: from here on it can be changed."""
        self._parts = parts

    # What is asked of it.

    async def reload(self, why: str) -> bool:
        """Read the file again and go by it; whether that could be done. Mistakes are logged and remembered."""
        if self.origin.path is None:
            log.warning("%s: there is no configuration file to read; use PUT /config, or serve --config", why)
            return False
        source = str(self.origin.path)
        async with self._lock:  # also while it is read: what was read last is applied last
            try:
                await self._apply(await asyncio.to_thread(self.origin.read), source)
            except ConfigError as error:
                self._refuse(source, error)
                return False
        return True

    async def put(self, text: bytes, source: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Go by a configuration in `text`, YAML or JSON, in the place of the file's; or tell what that would do.

        Flags and the environment still overrule it. Masked secrets stay what they are. Raises ConfigError, and
        then nothing has changed.
        """
        async with self._lock:
            try:
                settings, overruled = await asyncio.to_thread(
                    load_text, text, "body", self.origin.overrides, self.wanted
                )
                if dry_run:
                    preview = await self.preview(settings, overruled)
                else:
                    preview = await self._apply(settings, source, overruled)
            except ConfigError as error:
                if not dry_run:
                    self._refuse(source, error)
                raise
        return {"applied": not dry_run, "generation": self.generation, **preview.as_json()}

    async def preview(self, settings: Settings, overruled: tuple[str, ...] = ()) -> Preview:
        """What `settings` would change. Of sources of discovery that are new nothing is known yet."""
        parts = self._here()
        new = in_force(self.settings, settings)
        members = members_of(new, parts.discovery.prepare(new.discovery).found, parts.is_here)
        return Preview(await self._plan(parts, members.specs), changes(self.settings, settings), overruled)

    async def apply(self, settings: Settings, source: str) -> Preview:
        """Go by `settings`. Raises ConfigError, and then nothing has changed."""
        async with self._lock:
            return await self._apply(settings, source)

    async def refound(self) -> None:
        """Discovery found something else: the fleet follows."""
        parts = self._here()
        async with self._lock:
            members = members_of(self.settings, parts.discovery.found(), parts.is_here)
            self._say_left_out(members.left_out)
            plan = await self._plan(parts, members.specs)
            preview = Preview(plan)
            try:
                contexts = await asyncio.to_thread(parts.targets.prepare, members.specs)
            except ConfigError as error:
                log.error("discovery: %s", error.message)
                return
            if not preview.is_empty:
                summary = preview.words()
                self._change_members(parts, plan, contexts)
                log.info("discovery: %s", summary)
            self._drain(parts.fleet, members.draining)
            if not preview.is_empty:
                await parts.watches.follow(parts.fleet, self.settings, parts.router, parts.proxy)

    def effective(self) -> str:
        """The settings in force as YAML, secrets masked."""
        return effective_yaml(self.settings)

    def state(self) -> dict[str, Any]:
        """How it stands, as JSON values."""
        waiting = [change.path for change in changes(self.settings, self.wanted)]
        return {
            "generation": self.generation,
            "source": self.source,
            "loaded_at": _iso(self.loaded_at_s),
            "last_error": self.last_error,
            "last_error_at": None if self.last_error_at_s is None else _iso(self.last_error_at_s),
            "needs_restart": waiting,
        }

    def discovery_state(self) -> list[dict[str, Any]]:
        """How each source of discovery goes, as JSON values."""
        if self._parts is None:
            return []
        return [
            {**state, "left_out": [one.name for one in self._left_out if one.source == state["source"]]}
            for state in self._parts.discovery.state()
        ]

    def discovery_figures(self) -> list[DiscoveryFigures]:
        """The same for metrics."""
        return [
            DiscoveryFigures(one["source"], one["backends"], one["failures"], one["error"] is not None)
            for one in self.discovery_state()
        ]

    async def renew_certificate(self) -> None:
        """Read the public port's certificate again: it is another file by now, or the same with other contents."""
        parts, tls = self._here(), self.settings.tls
        if tls is None or parts.listener_tls is None:
            return
        try:
            load_certificate(parts.listener_tls, tls)
        except ConfigError as error:
            self._refuse(str(tls.cert), error)
        else:
            log.info("certificate read again from %s", tls.cert)

    def tidy(self) -> None:
        """Let go of what has ended since a change."""
        if self._parts is not None:
            self._parts.targets.tidy()

    # How it is done.

    async def _apply(self, settings: Settings, source: str, overruled: tuple[str, ...] = ()) -> Preview:
        parts = self._here()
        new = in_force(self.settings, settings)
        if new.discovery != self.settings.discovery:
            await asyncio.to_thread(load_packages, new.discovery)
        discovery = parts.discovery.prepare(new.discovery)
        router = Router(build_policy(new), random.Random())
        routes = RouteTable(new.extra_routes)
        affinity = build_affinity(new, router.needs, parts.affinity)
        members = members_of(new, discovery.found, parts.is_here)
        contexts = await asyncio.to_thread(parts.targets.prepare, members.specs)
        plan = await self._plan(parts, members.specs)
        preview = Preview(plan, changes(self.settings, settings), overruled)
        summary = preview.words()
        if new.tls is not None and parts.listener_tls is not None and new.tls != self.settings.tls:
            load_certificate(parts.listener_tls, new.tls)
        # From here on nothing can fail, and no request comes in between.
        discovery.follow()
        self._change_members(parts, plan, contexts)
        parts.affinity, parts.router = affinity, router
        parts.proxy.retune(new, affinity, router, routes)
        parts.fleet.retune(rules_of(new))
        parts.front.retune(gateway_keys(new), frozenset(new.cors.allow_origins), routes)
        parts.limits.become(limits_of(new))
        parts.sweeper.retune(parts.limits.tick_s)
        if new.log_level != self.settings.log_level:
            logging.getLogger().setLevel(new.log_level.upper())
        self.settings, self.wanted = new, settings
        self.generation += 1
        self.applied += 1
        self.source, self.loaded_at_s = source, time.time()
        self.last_error = self.last_error_at_s = None
        self._drain(parts.fleet, members.draining)
        self._say_left_out(members.left_out)
        log.info("configuration %d from %s: %s", self.generation, source, summary)
        for changed in self.on_change:
            changed(new)
        await parts.watches.follow(parts.fleet, new, router, parts.proxy)
        return preview

    async def _plan(self, parts: Parts, specs: Sequence[BackendSpec]) -> Plan:
        plan = parts.fleet.plan(specs)
        if changes_members(plan):
            for _ in plan.steps():
                await asyncio.sleep(0)
        return plan

    def _change_members(self, parts: Parts, plan: Plan, contexts: Any) -> None:
        if not changes_members(plan):
            return
        applied = parts.fleet.apply(plan, monotonic(), serving=self.serving)
        parts.targets.remove(applied.removed)
        parts.targets.put((*applied.added, *applied.changed), contexts)

    def _drain(self, fleet: Fleet, draining: frozenset[str]) -> None:
        """Take pods that are being ended out of the choice, and back in when they are not after all."""
        now_s = monotonic()
        for name in self._drained - draining:
            backend = fleet.find(name)
            if backend is not None:
                fleet.undrain(backend.slot, now_s)
        for name in draining - self._drained:
            backend = fleet.find(name)
            if backend is not None and fleet.state(backend.slot).operator == "active":
                fleet.drain(backend.slot, now_s)
                self._drained.add(name)
        self._drained &= draining

    def _say_left_out(self, left_out: tuple[LeftOut, ...]) -> None:
        """Once each, for as long as it is so."""
        for one in left_out:
            if one not in self._left_out:
                log.warning("discovery %s: backend %s is left out: %s", one.source, one.name, one.why)
        self._left_out = left_out

    def _refuse(self, source: str, error: ConfigError) -> None:
        self.refused += 1
        self.last_error, self.last_error_at_s = error.message, time.time()
        log.error(
            "configuration from %s refused, %d stays in force:\n%s", source, self.generation, error.message
        )

    def _here(self) -> Parts:
        assert self._parts is not None, "the process has not started"
        return self._parts


def _iso(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
