"""Exact mode as one object: KV events, token ids, and the index they correct. Optional, off by default.

Owns how its parts are put together, and when the index relies on them: a backend whose events are complete and
fresh loses blocks when its engine says so, any other by their age, as without exact mode. A decision reads the
index and nothing here; the proxy's one call is `offer`, after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.openai.routes import Shape
from stickyroute.routing.exact import Resident
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.learned import Learned
from stickyroute.watch.kv_events import KvEventsWatch, KvSource
from stickyroute.watch.supervisor import Supervisor
from stickyroute.watch.tokenize import TokenizeWatch

__all__ = ["ExactMode"]

CHECKS_MISSED = 3
"""A source is not fresh when so many checks have brought no sign of life."""


class ExactMode:
    """Follows `sources`. `limit_blocks` bounds the blocks of tokens that are kept, and again those that are
    tied to text; a source is looked after each `check_s` seconds of silence; with `tokenize` engines are asked
    for token ids.

    Raises ConfigError without the packages of the extra `events`.
    """

    def __init__(
        self, fleet: Fleet, sources: Sequence[KvSource], *, limit_blocks: int, check_s: float, tokenize: bool
    ) -> None:
        self._index = fleet.loads.index
        self._check_s = check_s
        self._sources = list(sources)
        self.learned = Learned(self._index, limit_blocks=limit_blocks)
        self.resident = Resident(
            [source.slot for source in sources],
            self.learned,
            limit_blocks=limit_blocks,
            silence_s=CHECKS_MISSED * check_s,
        )
        self._events = KvEventsWatch(sources, self.resident, check_s=check_s)
        self._tokens = TokenizeWatch(fleet, self.learned, self.resident, ask=tokenize)
        self._supervisor = Supervisor()

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._events.start()
        self._tokens.start()
        self._supervisor.start("exact mode", self._keep_trust)

    async def stop(self) -> None:
        """End every task and close every socket."""
        await self._supervisor.stop()
        await self._tokens.stop()
        await self._events.stop()

    def offer(
        self, slot: int, keys: RequestKeys, shape: Shape, model: str | None, body: Mapping[str, Any] | None
    ) -> None:
        """A request was sent to the backend in `slot`: learn its token ids some time. About a microsecond."""
        self._tokens.offer(slot, keys, shape, model, body)

    def state(self) -> dict[str, Any]:
        """How it goes, as JSON values."""
        return {
            "blocks": self.resident.blocks,
            "tied_blocks": self.learned.blocks,
            "corrections": self.learned.corrections,
            "prompts_learned": self._tokens.learned,
            "prompts_dropped": self._tokens.dropped,
            "sources": [
                {**state, "fresh": self.resident.fresh(source.slot, monotonic())}
                for source, state in zip(self._sources, self._events.state(), strict=True)
            ],
        }

    async def _keep_trust(self) -> None:
        resident = self.resident
        while True:
            now_s = monotonic()
            for slot in {source.slot for source in self._sources}:
                complete = all(
                    resident.complete(number)
                    for number, source in enumerate(self._sources)
                    if source.slot == slot
                )
                self._index.follow(slot, complete and resident.fresh(slot, now_s))
            await asyncio.sleep(self._check_s / 2)
