"""/healthz, /readyz, /metrics and /fleet on the admin port.

Owns the routes and the form of their answers. It only reads: every route is GET, nothing here changes state,
opens a connection or shows a secret. It listens where the composition root binds it, by default on loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stickyroute import __version__
from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.metrics import Metrics
from stickyroute.settings import Settings

__all__ = ["build_admin"]

_OPENMETRICS_END = b"# EOF\n"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_admin(
    fleet: Fleet,
    metrics: Metrics,
    settings: Settings,
    is_stopping: Callable[[], bool] = lambda: False,
    exact: Callable[[], dict[str, Any]] | None = None,
) -> web.Application:
    """The admin application; `uptime_s` of /fleet counts from this call.

    `is_stopping` tells whether the process has begun to stop, from when on it is not ready; `exact` how exact
    mode goes, where it is on.
    """
    views = _Views(fleet, metrics, settings, is_stopping, exact)
    app = web.Application(middlewares=[_json_errors])
    app.router.add_get("/healthz", views.healthz)
    app.router.add_get("/readyz", views.readyz)
    app.router.add_get("/metrics", views.metrics)
    app.router.add_get("/fleet", views.fleet)
    return app


class _One(Collector):
    """A registry of a single family, which is what an encoder takes."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class _Views:
    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        settings: Settings,
        is_stopping: Callable[[], bool],
        exact: Callable[[], dict[str, Any]] | None,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._settings = settings
        self._is_stopping = is_stopping
        self._exact = exact
        self._started_s = monotonic()

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the event loop turns: for liveness probes."""
        return _json({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """200 while one backend at least is available and nothing stops, else 503: for readiness probes."""
        available = sum(1 for backend in self._fleet.backends if self._fleet.available[backend.slot])
        if self._is_stopping():
            status = "stopping"
        else:
            status = "ready" if available else "no backend available"
        answer = {"status": status, "backends": len(self._fleet.backends), "available": available}
        return _json(answer, status=200 if status == "ready" else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text, or OpenMetrics when the scraper asks for it.

        Rendered family by family, giving way to the data plane in between: with a hundred backends the whole
        takes tens of milliseconds, which no stream should have to wait for.
        """
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        parts: list[bytes] = []
        for family in self._metrics.registry.collect():
            parts.append(encode(_One(family)).removesuffix(_OPENMETRICS_END))
            await asyncio.sleep(0)
        if "openmetrics" in content_type:
            parts.append(_OPENMETRICS_END)
        return web.Response(body=b"".join(parts), headers={"Content-Type": content_type})

    async def fleet(self, request: web.Request) -> web.Response:
        """What the router knows of each backend right now."""
        now_s = monotonic()
        state = self._fleet.snapshot()
        for slot, backend in enumerate(state["backends"]):
            retry_in_s = self._fleet.retry_in_s(slot, now_s)
            backend["retry_in_s"] = None if retry_in_s is None else round(retry_in_s, 3)
        answer = {
            "version": __version__,
            "uptime_s": round(now_s - self._started_s, 3),
            "policy": self._settings.policy,
            **state,
        }
        if self._exact is not None:
            answer["exact"] = self._exact()
        return _json(answer)


def _json(answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE),
        status=status,
        headers=headers,
        content_type="application/json",
    )


@web.middleware
async def _json_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Unknown routes and methods answer in JSON, as everything else here does."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allow = ", ".join(sorted(error.allowed_methods))
        return _json(_problem("method_not_allowed", "This port only reads: use GET."), 405, {"Allow": allow})
    except web.HTTPNotFound:
        return _json(_problem("not_found", "Try /healthz, /readyz, /metrics or /fleet."), 404)


def _problem(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
