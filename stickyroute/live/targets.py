"""How requests reach the backend in each slot: its connections, its Host line, its credential.

Owns the list that the proxy reads, and the connections of backends that have left or moved: replies that run
there end as if nothing had happened, then the connections go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from stickyroute.fleet import Backend, BackendSpec
from stickyroute.http.limits import Limits
from stickyroute.http.pool import BackendPool
from stickyroute.http.sweeper import Sweeper
from stickyroute.proxy import Target
from stickyroute.watch.ask import Contexts
from stickyroute.watch.tls import backend_tls

__all__ = ["Targets"]


class Targets:
    """`by_slot` is what the proxy reads; it is the same list for the life of the process. `contexts` may be shared
    with whoever else speaks TLS to backends."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, sweeper: Sweeper) -> None:
        self._loop = loop
        self._limits = limits
        self._sweeper = sweeper
        self._specs: dict[int, BackendSpec] = {}
        self.contexts: Contexts = {}
        self._leaving: list[BackendPool] = []
        self.by_slot: list[Target] = []

    def prepare(self, specs: Iterable[BackendSpec]) -> Contexts:
        """What TLS towards `specs` needs beyond what there is. Raises ConfigError; nothing has changed yet."""
        made: Contexts = {}
        for spec in specs:
            key = (spec.ca, spec.tls_verify)
            if spec.scheme == "https" and key not in self.contexts and key not in made:
                made[key] = backend_tls(spec)
        return made

    def put(self, backends: Iterable[Backend], contexts: Contexts) -> None:
        """These are in their slots from now on, added or changed; `contexts` is what `prepare` made for them."""
        self.contexts.update(contexts)
        for backend in backends:
            slot, spec = backend.slot, backend.spec
            before = self._specs.get(slot)
            if before == spec:
                continue
            if before is not None and _route(before) == _route(spec):
                pool = self.by_slot[slot].pool
            else:
                if before is not None:
                    self._retire(slot)
                tls = self.contexts[spec.ca, spec.tls_verify] if spec.scheme == "https" else None
                pool = BackendPool(self._loop, spec.name, spec.host, spec.port, tls, self._limits)
                self._sweeper.add(pool)
            self._specs[slot] = spec
            target = _target(spec, pool)
            while slot > len(self.by_slot):
                self.by_slot.append(target)  # nobody has that slot yet
            if slot == len(self.by_slot):
                self.by_slot.append(target)
            else:
                self.by_slot[slot] = target

    def remove(self, backends: Iterable[Backend]) -> None:
        """These have left. What they are answering goes on."""
        for backend in backends:
            if self._specs.pop(backend.slot, None) is not None:
                self._retire_pool(self.by_slot[backend.slot].pool)

    def tidy(self) -> None:
        """Let go of connections that have ended."""
        for pool in [pool for pool in self._leaving if pool.over]:
            self._leaving.remove(pool)
            self._sweeper.discard(pool)

    async def close(self) -> None:
        """Drop every connection."""
        pools = [self.by_slot[slot].pool for slot in self._specs] + self._leaving
        self._leaving = []
        for pool in pools:
            await pool.close()

    def _retire(self, slot: int) -> None:
        self._retire_pool(self.by_slot[slot].pool)

    def _retire_pool(self, pool: BackendPool) -> None:
        pool.retire()
        self._leaving.append(pool)


def _route(spec: BackendSpec) -> tuple[str, str, int, str | None, bool]:
    """What of a backend decides about its connections."""
    return spec.scheme, spec.host, spec.port, spec.ca, spec.tls_verify


def _target(spec: BackendSpec, pool: BackendPool) -> Target:
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    usual = 443 if spec.scheme == "https" else 80
    authority = host if spec.port == usual else f"{host}:{spec.port}"
    credential = f"Authorization: Bearer {spec.api_key}\r\n".encode() if spec.api_key else None
    return Target(pool, spec.base_path.rstrip("/").encode(), f"Host: {authority}\r\n".encode(), credential)
