"""Asks engines for the token ids of prompts that went by, so that their KV events can be matched to text.

Owns the queue, its bounds, and one supervised task that asks one question at a time, of the backend that has
just been given the prompt. Never on the way of a request: `offer` only puts it in the queue, and drops it when
there is no room. What an answer is worth is `routing.learned`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import aiohttp

from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.openai.routes import Shape
from stickyroute.openai.tokenize import cache_salt, question, read_answer, token_ids
from stickyroute.routing.exact import Resident, scope
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.learned import Learned
from stickyroute.watch.client import Asking, open_session, read_bounded
from stickyroute.watch.supervisor import Supervisor

__all__ = ["TokenizeWatch"]

log = logging.getLogger(__name__)

WAITING = 32
"""Prompts that may wait for their question; further ones are asked about at their next turn."""
PROMPT_BYTES = 512 * 1024
"""Longer prompts are not asked about: the loop stands still while an answer is read, 4 ms for 200 KB."""
SPELLED_BYTES = 64 * 1024
"""Up to here the answer has the tokens' texts too, which make it three times as long to read."""
ANSWER_BYTES = 16 * 1024 * 1024
ASK_TIMEOUT_S = 5.0
FAILURES = 3
"""Failed questions in a row after which a backend is left alone for a while."""
REST_S = 60.0


class _Offer:
    __slots__ = ("body", "keys", "model", "shape", "slot")

    def __init__(
        self, slot: int, keys: RequestKeys, shape: Shape, model: str | None, body: Mapping[str, Any]
    ) -> None:
        self.slot = slot
        self.keys = keys
        self.shape = shape
        self.model = model
        self.body = body


class TokenizeWatch:
    """Learns token ids into `learned`. With `ask` off only prompts that are token ids are learned."""

    def __init__(self, fleet: Fleet, learned: Learned, resident: Resident, *, ask: bool) -> None:
        self._fleet = fleet
        self._learned = learned
        self._resident = resident
        self._ask_engines = ask
        self._askings = [Asking(backend.spec, "/tokenize") for backend in fleet.backends]
        self._waiting: deque[_Offer] = deque()
        self._ends: set[int] = set()  # the last block of each prompt that waits
        self._wake = asyncio.Event()
        self._failed = [0] * len(fleet.backends)
        self._rests_until_s = [0.0] * len(fleet.backends)
        self._session: aiohttp.ClientSession | None = None
        self._supervisor = Supervisor()
        self.learned = 0
        self.dropped = 0

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._session = open_session(ASK_TIMEOUT_S)
        self._supervisor.start("tokenize", self._run)

    async def stop(self) -> None:
        """End, and close every connection."""
        await self._supervisor.stop()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def offer(
        self, slot: int, keys: RequestKeys, shape: Shape, model: str | None, body: Mapping[str, Any] | None
    ) -> None:
        """A prompt was given to the backend in `slot`. Costs about a microsecond; never raises."""
        if body is None or not self._learned.wants(keys) or not self._resident.block_sizes:
            return
        end = keys.chain[-1]
        if end in self._ends:
            return
        if len(self._waiting) >= WAITING or keys.prompt_bytes > PROMPT_BYTES:
            self.dropped += 1
            return
        self._ends.add(end)
        self._waiting.append(_Offer(slot, keys, shape, model, body))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            while self._waiting:
                offer = self._waiting.popleft()
                try:
                    await self._learn(offer)
                finally:
                    self._ends.discard(offer.keys.chain[-1])
            self._wake.clear()
            await self._wake.wait()

    async def _learn(self, offer: _Offer) -> None:
        adapter = self._adapter(offer.model)
        if adapter is None:
            return
        texts = None
        tokens = token_ids(offer.shape, offer.body)
        if tokens is None:
            answer = await self._ask(offer)
            if answer is None:
                return
            tokens, texts = answer
            await asyncio.sleep(0)
        root = scope(adapter, cache_salt(offer.body))
        self._learned.learn(offer.keys, tokens, root, self._resident, texts)
        self.learned += 1

    async def _ask(self, offer: _Offer) -> Any:
        slot = offer.slot
        if not self._ask_engines or self._session is None or monotonic() < self._rests_until_s[slot]:
            return None
        asked = question(offer.shape, offer.body, offer.keys.prompt_bytes <= SPELLED_BYTES)
        if asked is None:
            return None
        why = ""
        try:
            async with self._askings[slot].post(self._session, asked) as reply:
                body = await read_bounded(reply, ANSWER_BYTES)
                if reply.status != 200:
                    why = f"answered {reply.status}"
        except TimeoutError:
            why = "did not answer in time"
        except (aiohttp.ClientError, OSError) as error:
            why = type(error).__name__
        answer = read_answer(body) if not why and body is not None else None
        if answer is not None:
            self._failed[slot] = 0
            return answer
        self._failed[slot] += 1
        if self._failed[slot] >= FAILURES:
            if self._failed[slot] == FAILURES:
                name = self._fleet.at(slot).name
                log.warning(
                    "%s: /tokenize %s; its prompts are matched by the index alone", name, why or "is odd"
                )
            self._rests_until_s[slot] = monotonic() + REST_S
        return None

    def _adapter(self, model: str | None) -> str | None:
        """The adapter that a model's name stands for, empty for a base model; None if nobody lists it."""
        if model is None:
            return ""
        for rows in self._fleet.models():
            for row in rows:
                if row.get("id") == model:
                    return model if row.get("parent") else ""
        return None
