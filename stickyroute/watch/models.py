"""Asks each backend which models it serves.

Owns one task a backend, so that a hung one delays no other. What it sees goes to the fleet (`record_models`); it
decides nothing about routing. A connection that cannot be made is told as well, and that one can be made again,
since those are certain whoever finds them out; anything else about its health is `watch.probe`'s to ask.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import orjson

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, BackendSpec, Fleet
from stickyroute.fleet.health import Outcome
from stickyroute.watch.ask import Asker, AskFailed
from stickyroute.watch.clock import FleetClock
from stickyroute.watch.looking import Looking
from stickyroute.watch.members import Askers, MemberTasks, stretched_s, together_s

__all__ = ["ModelsWatch"]

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 2.0
REPLY_BYTES = 1024 * 1024
"""A list of models longer than this is not read: its models stay as they were."""
JITTER = 0.1
MOST_A_SECOND = 10.0
"""Questions to all backends together; with more the interval is stretched."""


class ModelsWatch(Looking):
    """Keeps the fleet's models current.

    Every backend is asked each `interval_s` (seconds, jittered by 10 %), and one that refused connections as often
    as the fleet's backoff says. `timeout_s` bounds one question, connecting included. `heard(slot, now_s)` is told
    of every answer. Raises ConfigError for an unreadable CA file.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        interval_s: float,
        timeout_s: float = ASK_TIMEOUT_S,
        heard: Callable[[int, float], None] = lambda slot, now_s: None,
        askers: Askers | None = None,
        clock: FleetClock | None = None,
    ) -> None:
        super().__init__(fleet, askers, clock)
        self.interval_s = interval_s
        self._timeout_s = timeout_s
        self._heard = heard
        self._clock.on_due(self.ask_soon)
        self._tasks = MemberTasks(fleet, "models", self._make, self._watch)

    async def first_round(self, timeout_s: float) -> bool:
        """Wait until each backend was asked once, at most `timeout_s` seconds; whether all were."""
        try:
            async with asyncio.timeout(timeout_s):
                for question in self._tasks.all:
                    await question.answered.wait()
        except TimeoutError:
            return False
        return True

    def ask_soon(self, slot: int) -> None:
        """Ask this one now."""
        question = self._tasks.of(slot)
        if question is not None:
            question.due.set()

    def owner(self, slot: int) -> str:
        """What a backend says of who owns its models: engines name themselves. Empty while unknown."""
        question = self._tasks.of(slot)
        return question.owner if question is not None else ""

    def _make(self, backend: Backend) -> _Question:
        return _Question(backend, self._askers.of(backend.spec))

    async def _watch(self, question: _Question) -> None:
        while True:
            question.due.clear()
            try:
                await self._ask(question)
            finally:
                question.answered.set()
            members = len(self._tasks)
            every_s = stretched_s(self.interval_s, members, MOST_A_SECOND)
            try:
                async with asyncio.timeout(
                    together_s(every_s * random.uniform(1 - JITTER, 1 + JITTER), members)
                ):
                    await question.due.wait()
            except TimeoutError:
                continue

    async def _ask(self, question: _Question) -> None:
        fleet, slot = self._fleet, question.backend.slot
        try:
            answer = await question.asker.get(
                "/v1/models", timeout_s=self._timeout_s, limit_bytes=REPLY_BYTES
            )
        except AskFailed as failure:
            self._failed(question, failure.why, refused=failure.refused)
            return
        if answer.status >= 500:
            # A server that is still loading its model answers 503.
            self._failed(question, f"answered {answer.status} to /v1/models")
            return
        self._heard(slot, monotonic())
        fleet.record_reachable(slot, monotonic())
        self._clock.say()
        rows = _model_rows(answer.body) if answer.status == 200 else None
        if rows is None:
            question.say(f"reachable, but {_unlisted(question.backend.spec, answer.status)}")
            return
        question.owner = next((row["owned_by"] for row in rows if isinstance(row.get("owned_by"), str)), "")
        fleet.record_models(slot, rows)
        question.say("reachable")

    def _failed(self, question: _Question, why: str, *, refused: bool = False) -> None:
        """Nothing usable came. Only a refusal makes a backend unavailable; none of these brings it back."""
        slot = question.backend.slot
        if refused or self._fleet.is_refused(slot):
            self._fleet.record_outcome(slot, Outcome.CONNECT_FAILED, monotonic(), random.random(), why=why)
            self._clock.say()
        else:
            question.say(why)


class _Question:
    """One backend and how to ask it; remembers what was last said of it, so only changes are logged."""

    def __init__(self, backend: Backend, asker: Asker) -> None:
        self.backend = backend
        self.asker = asker
        self.owner = ""
        self.answered = asyncio.Event()
        self.due = asyncio.Event()
        self._said = ""

    def say(self, state: str) -> None:
        if state != self._said:
            self._said = state
            level = logging.INFO if state == "reachable" else logging.WARNING
            log.log(level, "backend %s: %s", self.backend.name, state)


def _unlisted(spec: BackendSpec, status: int) -> str:
    """What an answer without a list of models means, in the operator's words."""
    told = f"answers {status} to /v1/models" if status != 200 else "its /v1/models is no list of models"
    if spec.models is not None:
        return f"{told}: its models are those of the configuration"
    return f"{told}: its models stay as they were (any, if it never listed them)"


def _model_rows(body: bytes | None) -> list[dict[str, Any]] | None:
    """The rows of an OpenAI list of models, each with a usable id; None when this is not one."""
    if body is None:
        return None
    try:
        listing = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    rows = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(rows, list):
        return None
    if not all(isinstance(row, dict) and isinstance(row.get("id"), str) and row["id"] for row in rows):
        return None
    return rows
