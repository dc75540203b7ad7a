"""The operator's word on a backend: GET /backends/NAME, and POST .../drain, undrain, disable, enable.

Owns the routes, and what is said about a change: what it was before, what is left to finish, and whether it leaves
nobody to serve. What a state does to requests is the fleet's matter; nothing here waits for a drain to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from stickyroute.clock import monotonic
from stickyroute.control.answers import json_answer
from stickyroute.control.auth import audit
from stickyroute.control.deps import Deps
from stickyroute.errors import NotFound
from stickyroute.fleet import Backend, BackendState, Fleet

__all__ = ["ACTIONS", "add_routes", "backend_status", "state_age_s"]

ACTIONS = ("drain", "undrain", "disable", "enable")

_KNOWN = 20
"""Names told to somebody who asked for one that is not there."""


def add_routes(app: web.Application, deps: Deps) -> None:
    """GET /backends/{name} and POST /backends/{name}/{action}."""
    fleet = deps.fleet
    changes: dict[str, Callable[[int, float], None]] = {
        "drain": fleet.drain,
        "undrain": fleet.undrain,
        "disable": fleet.disable,
        "enable": fleet.enable,
    }

    async def show(request: web.Request) -> web.Response:
        return json_answer(backend_status(fleet, _find(fleet, request.match_info["name"])))

    async def change(request: web.Request) -> web.Response:
        backend, action = _find(fleet, request.match_info["name"]), request.match_info["action"]
        was = fleet.state(backend.slot).operator
        changes[action](backend.slot, monotonic())
        status = backend_status(fleet, backend)
        now = status["operator"]
        left = status["in_flight"]
        audit(request, f"{action} {backend.name}: {was} -> {now}, {left} in flight")
        answer: dict[str, Any] = {**status, "was": was, "told": _told(backend.name, was, now, left)}
        if now != "active" and not any(fleet.available[other.slot] for other in fleet.backends):
            answer["warning"] = "No other backend is available: new requests get a 503 until one is."
            answer["told"] += " " + answer["warning"]
        return json_answer(answer)

    # A default name is host:port/path, and may be sent with its slashes as they are.
    app.router.add_post(f"/backends/{{name:.+}}/{{action:{'|'.join(ACTIONS)}}}", change)
    app.router.add_get("/backends/{name:.+}", show)


def backend_status(fleet: Fleet, backend: Backend) -> dict[str, Any]:
    """The state of one backend as JSON values; `for_s` is how long it has been so, null before anything was
    heard."""
    state = fleet.state(backend.slot)
    return {
        "name": backend.name,
        "url": backend.spec.url,
        "operator": state.operator,
        "health": state.health,
        "ejected": state.ejected,
        "available": bool(fleet.available[backend.slot]),
        "why": state.why,
        "for_s": state_age_s(state, monotonic()),
        "in_flight": fleet.in_flight[backend.slot],
    }


def state_age_s(state: BackendState, now_s: float) -> float | None:
    """How long a backend has been in its state; None before anything was heard of it."""
    unheard = state.operator == "active" and state.health == "unknown" and not state.ejected
    return None if unheard else round(max(0.0, now_s - state.since_s), 1)


def _find(fleet: Fleet, name: str) -> Backend:
    backend = fleet.find(name)
    if backend is None:
        names = sorted(known.name for known in fleet.backends)
        shown = ", ".join(names[:_KNOWN]) + (
            f" and {len(names) - _KNOWN} more" if len(names) > _KNOWN else ""
        )
        raise NotFound(f"There is no such backend. There are: {shown or 'none'}.", code="unknown_backend")
    return backend


def _told(name: str, was: str, now: str, left: int) -> str:
    """One sentence for a person."""
    if was == now:
        return f"{name} is {now} already."
    running = (
        "nothing runs there"
        if not left
        else f"{left} {'request runs' if left == 1 else 'requests run'} there"
    )
    if now == "draining":
        return f"{name} is {'draining' if left else 'drained'}: {running}."
    if now == "disabled":
        return f"{name} is disabled: {running}."
    return f"{name} takes requests again."
