"""The shadow policy at work: it hears of every request that was sent and of every end, and its figures go to /metrics.

Owns which requests it sees (a share of the users, whole users) and which of them still run. Off costs a look at a
flag for each request.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from stickyroute.fleet import Fleet
from stickyroute.metrics.sources import ShadowFigures
from stickyroute.openai.request import Asked
from stickyroute.openai.usage import Usage
from stickyroute.proxy import Exchange
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.policies import build_policy
from stickyroute.routing.shadow import Placed, Shadow
from stickyroute.settings import Settings

__all__ = ["ShadowDesk"]

_MIX: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


class ShadowDesk:
    """`sent` is a witness of the proxy, `ended` an observer of the ledger."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._rand = random.Random()
        self._running: dict[Exchange, Placed] = {}
        self._names: dict[int, str] = {}
        self._generation = -1
        self.rule: Callable[[], AffinityRule] | None = None
        """The rule in force; it makes the chain of a prompt where the live policy needs none."""
        self.shadow: Shadow | None = None
        self._wanted: tuple[object, ...] = ()
        self.retune(settings)

    def retune(self, settings: Settings) -> None:
        """Go by these settings from here on. Another policy begins anew."""
        self._below = int(settings.shadow_share * (_WORD + 1))
        wanted = (settings.shadow, settings.shadow_share, settings.sticky, settings.bounded_ring)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._running.clear()
        if settings.shadow is None:
            self.shadow = None
            return
        policy = build_policy(settings.model_copy(update={"policy": settings.shadow}))
        scale = max(1, round(1.0 / settings.shadow_share))
        self.shadow = Shadow(policy, self._rand, self._fleet.loads, settings.sticky.index_entries, scale)

    def sent(self, exchange: Exchange, asked: Asked, tenant: str) -> None:
        """A request was sent."""
        shadow = self.shadow
        if shadow is None:
            return
        lease, keys = exchange.lease, exchange.keys
        if lease is None:
            return
        key = self._rand.getrandbits(64) if keys.affinity is None else keys.affinity
        if key * _MIX & _WORD >= self._below:
            return
        if self._fleet.generation != self._generation:
            self._meet(shadow)
        believes = bool(keys.chain) or keys.second is not None  # the live policy, of what is cached where
        held_tokens = lease.held_tokens if believes else None
        if self.rule is not None:
            keys = self.rule().chained(keys, exchange.route.shape, asked)
        placed = shadow.see(keys, exchange.pool.view, exchange.slot, held_tokens, exchange.sent_s)
        if placed is not None:
            self._running[exchange] = placed

    def ended(self, exchange: Exchange, end: str, now_s: float, usage: Usage | None) -> None:
        """One is over."""
        placed = self._running.pop(exchange, None) if self._running else None
        if placed is not None and self.shadow is not None:
            self.shadow.end(placed, usage.completion_tokens if usage is not None else None)

    def figures(self) -> ShadowFigures | None:
        """For the metrics."""
        shadow = self.shadow
        if shadow is None:
            return None
        slots = [backend.slot for backend in self._fleet.backends if backend.spec.weight]
        own, live = shadow.imbalance(slots)
        return ShadowFigures(
            shadow.policy.name,
            shadow.decisions,
            shadow.agreed,
            shadow.prompt_tokens,
            shadow.held_tokens,
            shadow.live_held_tokens,
            own,
            live,
        )

    def _meet(self, shadow: Shadow) -> None:
        """The fleet changed: who is new in a slot has nothing cached."""
        self._generation = self._fleet.generation
        names = {backend.slot: backend.name for backend in self._fleet.backends}
        for slot, name in names.items():
            if self._names.get(slot, name) != name:
                shadow.forget(slot)
        self._names = names
