"""The admin port's application: the routes that are always there, and the features that plug in.

Owns /healthz, /readyz, /metrics and /fleet, and which features there are. Each feature is a module of this package
with `add_routes(app, deps)`; `auth` guards all of their routes by method. Where it listens is the composition
root's matter, by default on loopback.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from stickyroute import __version__
from stickyroute.build import compiled
from stickyroute.clock import monotonic
from stickyroute.control import config, decisions, doctor, events, explain, operate, pages
from stickyroute.control.answers import errors_in_json, json_answer
from stickyroute.control.auth import GUARD, Guard
from stickyroute.control.deps import Deps
from stickyroute.metrics import content_type

__all__ = ["build_admin"]


FEATURES: tuple[Any, ...] = (config, decisions, doctor, events, explain, operate, pages)
"""Modules with `add_routes(app, deps)`, in any order; one whose part of `deps` is None adds nothing."""


def build_admin(deps: Deps) -> web.Application:
    """The admin application; `uptime_s` of /fleet counts from this call."""
    guard = Guard(deps.settings)
    app = web.Application(
        middlewares=[errors_in_json, guard.middleware], client_max_size=deps.settings().limits.body_bytes
    )
    app[GUARD] = guard
    views = _Views(deps)
    app.router.add_get("/healthz", views.healthz)
    app.router.add_get("/readyz", views.readyz)
    app.router.add_get("/metrics", views.metrics)
    app.router.add_get("/fleet", views.fleet)
    for feature in FEATURES:
        feature.add_routes(app, deps)
    return app


class _Views:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._fleet = deps.fleet
        self._started_s = monotonic()

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the event loop turns: for liveness probes."""
        return json_answer({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """200 while one backend at least is available and nothing stops, else 503: for readiness probes."""
        available = sum(1 for backend in self._fleet.backends if self._fleet.available[backend.slot])
        if self._deps.is_stopping():
            status = "stopping"
        else:
            status = "ready" if available else "no backend available"
        answer = {"status": status, "backends": len(self._fleet.backends), "available": available}
        return json_answer(answer, status=200 if status == "ready" else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text, or OpenMetrics when the scraper asks for it.

        Written in parts, giving way to the data plane in between, so that no stream waits for a scrape.
        """
        kind, openmetrics = content_type(request.headers.get("Accept", ""))
        parts: list[bytes] = []
        for part in self._deps.metrics.text(openmetrics):
            parts.append(part)
            await asyncio.sleep(0)
        return web.Response(body=b"".join(parts), headers={"Content-Type": kind})

    async def fleet(self, request: web.Request) -> web.Response:
        """What the router knows of each backend right now."""
        now_s = monotonic()
        state = self._fleet.snapshot()
        for backend, shown in zip(self._fleet.backends, state["backends"], strict=True):
            retry_in_s = self._fleet.retry_in_s(backend.slot, now_s)
            shown["retry_in_s"] = None if retry_in_s is None else round(retry_in_s, 3)
        answer: dict[str, Any] = {
            "version": __version__,
            "build": "compiled" if compiled() else "interpreted",
            "uptime_s": round(now_s - self._started_s, 3),
            "policy": self._deps.settings().policy,
            **state,
        }
        if self._deps.config is not None:
            answer["config"] = self._deps.config.state()
            answer["discovery"] = self._deps.config.discovery_state()
        exact = self._deps.exact() if self._deps.exact is not None else None
        if exact is not None:
            answer["exact"] = exact
        return json_answer(answer)
