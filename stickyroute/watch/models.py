"""Asks each backend which models it serves, and by that learns whether it can be reached at all.

Owns one task a backend, so that a hung one delays no other, and the HTTP client they share. What it sees goes
to the fleet (`record_reachable`, `record_models`, `record_refused`); it decides nothing about routing. Only a
connection that cannot be made counts against a backend: a slow or odd answer says nothing about its
inference.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from typing import Any

import aiohttp
import orjson

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, BackendSpec, Fleet
from stickyroute.watch.client import Asking, open_session, read_bounded
from stickyroute.watch.supervisor import Supervisor

__all__ = ["ModelsWatch"]

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 2.0
REPLY_BYTES = 1024 * 1024
"""A list of models longer than this is not read: its models stay as they were."""
RETRY_TICK_S = 0.1
"""How often the fleet's backoff is looked at while a backend is unavailable; it starts at 0.25 s."""
CALM_TICK_S = 0.5
"""The same while none is. A wake on an idle machine costs about 0.2 ms, as much as ten streamed tokens."""
JITTER = 0.1
_OUR_WANT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a machine that has no descriptor, port or memory left: they say nothing about a backend."""


class ModelsWatch:
    """Keeps the fleet's models and reachability current.

    Every backend is asked each `interval_s` (seconds, jittered by 10 %), and when unavailable as often as the
    fleet's backoff says. `timeout_s` bounds one question, connecting included. Raises ConfigError for an
    unreadable CA file.
    """

    def __init__(self, fleet: Fleet, *, interval_s: float, timeout_s: float = ASK_TIMEOUT_S) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._questions = [_Question(backend) for backend in fleet.backends]
        self._supervisor = Supervisor()
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Begin asking; must be called on the running loop."""
        self._session = open_session(self._timeout_s)
        for question in self._questions:
            self._supervisor.start(
                f"models:{question.backend.name}", _bind(self._watch, question, self._session)
            )
        self._supervisor.start("models retry clock", self._wake_when_due)

    async def stop(self) -> None:
        """Stop asking and close every connection."""
        await self._supervisor.stop()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def first_round(self, timeout_s: float) -> bool:
        """Wait until each backend was asked once, at most `timeout_s` seconds; whether all were."""
        try:
            async with asyncio.timeout(timeout_s):
                for question in self._questions:
                    await question.answered.wait()
        except TimeoutError:
            return False
        return True

    async def _watch(self, question: _Question, session: aiohttp.ClientSession) -> None:
        while True:
            question.due.clear()
            try:
                await self._ask(question, session)
            finally:
                question.answered.set()
            pause_s = self._interval_s * random.uniform(1 - JITTER, 1 + JITTER)
            try:
                async with asyncio.timeout(pause_s):
                    await question.due.wait()
            except TimeoutError:
                continue

    async def _wake_when_due(self) -> None:
        """Cut a pause short once the fleet's backoff allows another try. One timer for all backends."""
        fleet = self._fleet
        while True:
            await asyncio.sleep(RETRY_TICK_S if 0 in fleet.available else CALM_TICK_S)
            now_s = monotonic()
            fleet.tick(now_s)
            for question in self._questions:
                slot = question.backend.slot
                if fleet.retry_due(slot, now_s):
                    question.due.set()

    async def _ask(self, question: _Question, session: aiohttp.ClientSession) -> None:
        try:
            async with question.asking.get(session) as reply:
                body = await read_bounded(reply, REPLY_BYTES)
                status = reply.status
        except aiohttp.ClientConnectorError as error:
            refused = error.os_error.errno not in _OUR_WANT
            self._failed(question, f"cannot be reached: {error.os_error}", refused=refused)
        except TimeoutError:
            self._failed(question, "no answer in time")
        except aiohttp.ClientError as error:
            self._failed(question, f"failed while answering: {type(error).__name__}")
        else:
            self._answered(question, status, body)

    def _failed(self, question: _Question, why: str, *, refused: bool = False) -> None:
        """Nothing usable came. Only a refusal makes a backend unavailable; none of these brings it back."""
        slot = question.backend.slot
        if refused or self._fleet.is_refused(slot):
            self._fleet.record_refused(slot, monotonic(), random.random())
        question.say(why)

    def _answered(self, question: _Question, status: int, body: bytes | None) -> None:
        if status >= 500:
            # A server that is still loading its model answers 503.
            self._failed(question, f"answered {status} to /v1/models")
            return
        slot = question.backend.slot
        self._fleet.record_reachable(slot)
        rows = _model_rows(body) if status == 200 else None
        if rows is None:
            question.say(f"reachable, but {_unlisted(question.backend.spec, status)}")
            return
        self._fleet.record_models(slot, rows)
        question.say("reachable")


class _Question:
    """One backend and how to ask it; remembers what was last said of it, so only changes are logged."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.asking = Asking(backend.spec, "/v1/models")
        self.answered = asyncio.Event()
        self.due = asyncio.Event()
        self._said = ""

    def say(self, state: str) -> None:
        if state != self._said:
            self._said = state
            level = logging.INFO if state == "reachable" else logging.WARNING
            log.log(level, "backend %s: %s", self.backend.name, state)


def _bind(watch: Any, question: _Question, session: aiohttp.ClientSession) -> Any:
    return lambda: watch(question, session)


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
