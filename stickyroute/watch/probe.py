"""Asks each backend whether it is well, and tells the fleet.

Owns which route tells that of which engine, and when asking may be spared. What follows from an answer is
`fleet.health`'s.

- vLLM and llama.cpp: `/health`, cheap; 503 when the engine is dead, or still loads.
- SGLang: its `/health` generates a token and takes a second at least, so it is `/ready` (0.5.23), else `/ping`.
- Where neither is known: `/v1/models`. A 4xx there is an answer: somebody works, and our key is no matter of health.

What a backend answered meanwhile, to a client or to another watch, spares a look, but only of one that is held to be
well: an engine whose core died may still show its metrics, and who is to come back must be looked at.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, Fleet
from stickyroute.fleet.health import Outcome
from stickyroute.watch.ask import Asker, AskFailed
from stickyroute.watch.clock import FleetClock
from stickyroute.watch.looking import Looking
from stickyroute.watch.members import Askers, MemberTasks, stretched_s, together_s

__all__ = ["ProbeWatch"]

JITTER = 0.1
MOST_A_SECOND = 30.0
"""Looks at all backends together; with more the interval is stretched, but not for those whose looks fail. Fewer than
pages of metrics, so that in a large fleet those spare nearly all looks; a page that fails brings one on at once."""
REPLY_BYTES = 1024 * 1024
_LAST_PATH = "/v1/models"
_PATHS = {"sglang": ("/ready", "/ping", _LAST_PATH)}
_ELSE = ("/health", "/ping", _LAST_PATH)


class ProbeWatch(Looking):
    """Looks at every backend each `interval_s` (seconds, jittered by 10 %), and at one that refused connections as
    often as the fleet's backoff says. `timeout_s` bounds one look, connecting included.

    `dialect` tells a backend's, empty while it is not known; `heard_s(slot)` when it last answered anybody else
    (monotonic seconds); `on_back(slot)` hears of one that answers again. Raises ConfigError for an unreadable CA file.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        interval_s: float,
        timeout_s: float,
        dialect: Callable[[Backend], str],
        heard_s: Callable[[int], float] = lambda slot: 0.0,
        on_back: Callable[[int], None] = lambda slot: None,
        askers: Askers | None = None,
        clock: FleetClock | None = None,
    ) -> None:
        super().__init__(fleet, askers, clock)
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._dialect = dialect
        self._heard_s = heard_s
        self._on_back = on_back
        self._clock.on_due(self.look_soon)
        self._tasks = MemberTasks(fleet, "probe", self._make, self._keep_looking)

    def _make(self, backend: Backend) -> _Patient:
        return _Patient(backend, self._askers.of(backend.spec))

    def look_soon(self, slot: int) -> None:
        """Look at this one now."""
        patient = self._tasks.of(slot)
        if patient is not None:
            patient.due.set()

    async def _keep_looking(self, patient: _Patient) -> None:
        slot = patient.backend.slot
        while True:
            patient.due.clear()
            began_s = monotonic()
            await self._look(patient)
            while True:
                every_s = self.interval_s
                if not patient.failing:
                    every_s = stretched_s(every_s, len(self._tasks), MOST_A_SECOND)
                pause_s = every_s * random.uniform(1 - JITTER, 1 + JITTER)
                try:
                    left_s = max(0.0, began_s + pause_s - monotonic())
                    async with asyncio.timeout(together_s(left_s, len(self._tasks))):
                        await patient.due.wait()
                    break
                except TimeoutError:
                    if patient.failing or self._fleet.state(slot).health != "healthy":
                        break  # it takes several good looks to be back
                    heard_s = self._heard_s(slot)
                    if heard_s <= began_s:
                        break
                    began_s = heard_s  # it is as if we had looked then

    async def _look(self, patient: _Patient) -> None:
        fleet, slot = self._fleet, patient.backend.slot
        was_failing = patient.failing
        try:
            why = await self._ask(patient)
        except AskFailed as failure:
            if failure.refused:
                patient.failing = True
                fleet.record_outcome(
                    slot, Outcome.CONNECT_FAILED, monotonic(), random.random(), why=failure.why
                )
            elif not failure.ours:
                patient.failing = True
                fleet.record_probe(slot, False, monotonic(), failure.why)
            self._clock.say()
            return
        patient.failing = bool(why)
        fleet.record_probe(slot, not why, monotonic(), why)
        self._clock.say()
        if was_failing and not why:
            self._on_back(slot)

    async def _ask(self, patient: _Patient) -> str:
        """Empty if it is well, else why not. Raises AskFailed."""
        paths = _PATHS.get(self._dialect(patient.backend), _ELSE)
        if paths is not patient.paths:
            patient.paths, patient.path = paths, 0
        while True:
            path = paths[patient.path]
            answer = await patient.asker.get(path, timeout_s=self.timeout_s, limit_bytes=REPLY_BYTES)
            if answer.status >= 500:
                return f"{path} answers {answer.status}"
            if answer.status in (404, 405) and path != _LAST_PATH:
                patient.path += 1  # this engine has no such route
                continue
            return ""


class _Patient:
    """One backend, how it is asked, and whether the last look failed."""

    def __init__(self, backend: Backend, asker: Asker) -> None:
        self.backend = backend
        self.asker = asker
        self.due = asyncio.Event()
        self.failing = False
        self.paths: tuple[str, ...] = _ELSE
        self.path = 0
