"""GET /doctor on the admin port, and the doctor at work: off the path of requests, within its share of a core.

Owns the queue between the two. A request costs one entry; a task of its own works them off in short turns and takes
at most `doctor.cpu` of one core, and a small part of what the process uses. Where that is not enough, every second
conversation is left out, then three of four and so on: whole conversations, since a prompt says something only beside
the one before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from aiohttp import web

from stickyroute.clock import monotonic, processor_s
from stickyroute.control.answers import json_answer
from stickyroute.control.auth import demand
from stickyroute.control.deps import Deps
from stickyroute.control.doctor_report import as_text, report
from stickyroute.fleet import Fleet
from stickyroute.metrics.sources import PrefixBreaks
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Shape
from stickyroute.proxy import Exchange
from stickyroute.routing.doctor import Doctor, watches
from stickyroute.settings import Settings
from stickyroute.watch.supervisor import Supervisor

__all__ = ["Ward", "add_routes"]

_SHAPES: Final = frozenset({Shape.CHAT, Shape.COMPLETIONS, Shape.MESSAGES, Shape.RESPONSES})
_WAITING: Final = 512
_WAITING_BYTES: Final = 8 << 20
_PAUSE_S: Final = 0.1
_TURN_S: Final = 0.0005  # so long streams may wait for it
_PART: Final = 0.01  # of the process's own time, so that looking never costs much beside what is looked at
_ALWAYS: Final = 0.002  # of a core, whatever the process uses
_REVIEW_S: Final = 2.0
_LEFT_OUT_MOST: Final = 1023
_TENANT_CHARS: Final = 128

_Waiting = tuple[int | None, str, str, Shape, Mapping[str, Any], float, float, int]


class Ward:
    """Shows prompts to `doctor`. `offer` is a witness of the proxy."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: deque[_Waiting] = deque()
        self.waiting_most = _WAITING
        """Requests that wait at most; those beyond are missed."""
        self._waiting_bytes = 0
        self._missed = 0
        self._spent_s = 0.0
        self._granted_s = 0.0
        self._reviewed_s = monotonic()
        self.mask = 0
        """Of a hash of the key: conversations are looked at where it leaves 0."""
        self._settle(settings)
        self.doctor = Doctor(settings.doctor.keys, monotonic(), settings.doctor.samples)
        self._tasks = Supervisor()

    def retune(self, settings: Settings) -> None:
        """Go by these settings from here on. What was found stays."""
        self._settle(settings)
        self.doctor.keys_limit = settings.doctor.keys
        self.doctor.samples = settings.doctor.samples

    def _settle(self, settings: Settings) -> None:
        self._cpu = settings.doctor.cpu
        header = settings.affinity.tenant_header
        self._tenant_header = header.lower().encode() if header else None
        self.on = settings.doctor.enabled

    def offer(self, exchange: Exchange, asked: Asked, tenant: str) -> None:
        """A request was sent: note it, if there is room."""
        shape, body = exchange.route.shape, asked.body
        if not self.on or body is None or shape not in _SHAPES:
            return
        keys, mask = exchange.keys, self.mask
        # An anchor moves with what breaks; without a key of the client's a conversation is known by its first message.
        key = keys.affinity if keys.source != "prefix" else None
        if mask and key is not None and not watches(key, mask):
            return
        size = asked.body_bytes or 0
        if len(self._waiting) >= self.waiting_most or self._waiting_bytes + size > _WAITING_BYTES:
            self._missed += 1
            return
        if not tenant and self._tenant_header is not None:
            tenant = exchange.request.headers.get(self._tenant_header, b"").decode("utf-8", "replace")
            tenant = tenant[:_TENANT_CHARS]
        self._waiting_bytes += size
        pool = exchange.pool
        self._waiting.append(
            (key, tenant, pool.label, shape, body, exchange.sent_s, 1.0 / pool.view.bytes_per_token, size)
        )

    def start(self) -> None:
        """Begin to work on what is offered."""
        self._tasks.start("prefix doctor", self._run)

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        allowance_s = 0.0
        used_s = processor_s()
        while True:
            await asyncio.sleep(_PAUSE_S)
            before_s, used_s = used_s, processor_s()
            granted_s = max(_PAUSE_S * _ALWAYS, _PART * (used_s - before_s))
            # Nothing is saved up over quiet times, so a burst is no reason to take a core.
            granted_s = min(_PAUSE_S * self._cpu, granted_s)
            self._granted_s += granted_s
            allowance_s = min(allowance_s, 0.0) + granted_s
            while allowance_s > 0 and self._waiting:
                spent_s = self.work(min(_TURN_S, allowance_s))
                allowance_s -= spent_s
                self._spent_s += spent_s
                await asyncio.sleep(0)
            self._review()

    def work(self, seconds: float) -> float:
        """Look at what waits for about so long; returns how long it took."""
        began_s = now_s = monotonic()
        waiting, see = self._waiting, self.doctor.see
        while waiting and now_s - began_s < seconds:
            key, tenant, pool, shape, body, at_s, scale, size = waiting.popleft()
            self._waiting_bytes -= size
            see(key, tenant, pool, shape, body, at_s, scale, self.mask)
            now_s = monotonic()
        return now_s - began_s

    def _review(self) -> None:
        """Look at more conversations, or fewer."""
        now_s = monotonic()
        age_s = now_s - self._reviewed_s
        if age_s < _REVIEW_S:
            return
        if self._missed:
            self.mask = min(_LEFT_OUT_MOST, 2 * self.mask + 1)
        elif self.mask and self._spent_s < self._granted_s / 3:
            self.mask >>= 1
        self._missed, self._spent_s, self._granted_s, self._reviewed_s = 0, 0.0, 0.0, now_s

    def breaks(self) -> Iterator[PrefixBreaks]:
        """For the metrics: breaks by place and kind."""
        findings = self.doctor.findings
        for (place, kind), count in findings.by_place.items():
            yield PrefixBreaks(place, kind, count, findings.lost_by_place[place, kind])

    def report(self, hit_rate: float | None, prompt_tokens: float, samples: bool) -> dict[str, Any]:
        """What was found so far."""
        used = [
            known[0].kv_utilization
            for backend in self._fleet.backends
            if (known := self._fleet.sample(backend.slot)) is not None and known[0].kv_utilization is not None
        ]
        told = report(
            self.doctor,
            monotonic(),
            hit_rate=hit_rate,
            prompt_tokens=prompt_tokens,
            kv_used=max(used) if used else None,
            samples=samples,
        )
        told["enabled"] = self.on
        told["watched"] = self.mask + 1
        told["samples"] = samples
        return told


def add_routes(app: web.Application, deps: Deps) -> None:
    """GET /doctor?format=text&samples=1; samples are prompts, so they need the token."""
    ward = deps.doctor
    if ward is None:
        return

    async def doctor(request: web.Request) -> web.Response:
        query = request.query
        samples = query.get("samples", "") in ("1", "true", "yes")
        if samples:
            demand(request)
        traffic = deps.metrics.traffic.values()
        prompted = sum(each.prompt_tokens for each in traffic)
        cached = sum(each.cached_tokens for each in traffic)
        told = ward.report(cached / prompted if prompted else None, prompted, samples)
        accept = request.headers.get("Accept", "")
        if query.get("format") == "text" or (accept.startswith("text/plain") and "format" not in query):
            return web.Response(text=as_text(told), headers={"Cache-Control": "no-store"})
        return json_answer(told)

    app.router.add_get("/doctor", doctor)
