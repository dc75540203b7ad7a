"""One request's whole decision, told without making it: no lease, no turn, no count, nothing sent.

Owns the order in which a decision is made once more, step by step with the proxy's own parts, those in force at
that moment: routes, affinity rule, router, memory of what responses live where. What it finds is plain JSON values.
A key stands as its hash; only where asked is the value beside it that the client gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stickyroute.clock import monotonic
from stickyroute.errors import StickyrouteError
from stickyroute.fleet import Fleet, Pool
from stickyroute.http.message import Request
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Route, Shape
from stickyroute.openai.state import held_id
from stickyroute.proxy.core import Proxy
from stickyroute.proxy.front import Front
from stickyroute.routing.cost import prompt_tokens
from stickyroute.routing.decision import Decision
from stickyroute.routing.explain import LOOKS_AT, Figures, figures
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.view import FleetView

__all__ = ["Explainer"]

_HERE = frozenset({Shape.HEALTH, Shape.MODELS, Shape.MODEL})


class Explainer:
    """Explains what `proxy` would do; `front` tells whose request it is."""

    def __init__(self, proxy: Proxy, fleet: Fleet, front: Front) -> None:
        self._proxy = proxy
        self._fleet = fleet
        self._front = front

    def explain(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        method: str = "POST",
        tenant: str | None = None,
        reveal: bool = False,
    ) -> dict[str, Any]:
        """The decision for a request that came now, as JSON values.

        `tenant` is the name of a gateway key, in place of the key itself. With `reveal` the answer repeats the
        value that became the key. A request that would be refused is explained as far as it gets.
        """
        request = _request(method, path, headers, body)
        answer: dict[str, Any] = {
            "request": {"method": method, "path": path, "body_bytes": len(body)},
            "policy": self._proxy._router.policy,
            "refused": None,
            "notes": [],
        }
        try:
            self._tell(answer, request, tenant, reveal)
        except StickyrouteError as problem:
            answer["refused"] = {"status": problem.status, "code": problem.code, "message": problem.message}
        return answer

    def _tell(self, answer: dict[str, Any], request: Request, tenant: str | None, reveal: bool) -> None:
        proxy = self._proxy
        route = proxy._routes.match(request.method, request.path)
        if route is None:
            raise StickyrouteError("No route: nothing is forwarded.", status=404, code="unknown_path")
        answer["request"]["route"] = route.template
        if tenant is None:
            tenant = self._tenant(answer, request, route)
        if route.shape in _HERE:
            answer["notes"].append("This route is answered here, without a backend.")
            return
        asked = proxy._read(route, request)
        answer["request"] |= {"model": asked.model, "stream": asked.stream, "tenant": tenant}
        pool = proxy._pool_for(route, asked)
        answer["request"]["pool"] = pool.label
        rule, router, view = proxy._affinity, proxy._router, pool.view
        # The choice goes by what the proxy would compute, no more; what is shown beside it by everything.
        keys = rule.peek(request.headers, route.shape, asked, tenant, view.slots)
        shown = rule.peek(request.headers, route.shape, asked, tenant, view.slots, Needs.CHAIN)
        answer["key"] = _key(shown, keys)
        if reveal:
            answer["key"]["value"] = _value(shown.source, request, asked)
        tokens = prompt_tokens(shown, view)
        answer["prompt"] = {
            "bytes": shown.prompt_bytes,
            "tokens": round(tokens),
            "tokens_are": "exact" if shown.prompt_tokens is not None else "estimated",
            "blocks": len(shown.chain),
        }
        self._fleet.settle(monotonic())
        rows = figures(router.decides, shown, view)
        held = held_id(route, request.path.partition(b"?")[0], asked.body)
        choice, tried = self._choose(held, keys, pool, [])
        second, _ = (
            self._choose(None, keys, pool, [*tried, choice.slot]) if choice is not None else (None, [])
        )
        answer["backends"] = [self._row(row, view) for row in rows] + self._outside(pool, asked)
        answer["looks_at"] = LOOKS_AT.get(router.policy, ())
        answer["choice"] = self._chosen(choice, rows)
        answer["runner_up"] = self._chosen(second, rows)
        if second is not None:
            answer["runner_up"]["reason"] = None  # it is chosen only where the first can't be
        if choice is None:
            answer["notes"].append("No backend can take this request now.")

    def _tenant(self, answer: dict[str, Any], request: Request, route: Route) -> str:
        try:
            return self._front.tenant(request, route)
        except StickyrouteError as problem:
            answer["notes"].append(
                f"Without one of the gateway's keys it would be refused ({problem.status} {problem.code}); "
                "explained as if nobody's."
            )
            return ""

    def _choose(
        self, held: bytes | None, keys: RequestKeys, pool: Pool, tried: list[int]
    ) -> tuple[Decision | None, list[int]]:
        """The proxy's own choice, and whom it passed over because all of their places are taken."""
        proxy = self._proxy
        while True:
            decision = proxy.choose(held, keys, pool, tried, proxy._router.peek)
            if decision is None or not self._full(decision.slot):
                return decision, tried
            tried = [*tried, decision.slot]

    def _full(self, slot: int) -> bool:
        limit = self._fleet.at(slot).spec.max_in_flight
        return limit is not None and self._fleet.in_flight[slot] >= limit

    def _row(self, row: Figures, view: FleetView) -> dict[str, Any]:
        told = {
            "name": self._fleet.at(row.slot).name,
            "excluded": self._why_not(row.slot),
            **{
                name: _rounded(value)
                for name, value in row._asdict().items()
                if name not in ("slot", "terms")
            },
        }
        if not told["weight"]:
            told["excluded"] = told["excluded"] or "weight 0: serves only when no other can"
        if row.terms:
            told["terms"] = {name: _rounded(value) for name, value in row.terms.items()}
        return told

    def _outside(self, pool: Pool, asked: Asked) -> list[dict[str, Any]]:
        """The backends that are not in the pool."""
        return [
            {"name": backend.name, "excluded": f"does not serve {asked.model or 'it'}"}
            for backend in self._fleet.backends
            if backend.slot not in pool.view.slots
        ]

    def _why_not(self, slot: int) -> str | None:
        """Why a backend is not chosen, None for one that can be."""
        if self._fleet.available[slot]:
            return (
                f"at max_in_flight ({self._fleet.at(slot).spec.max_in_flight})" if self._full(slot) else None
            )
        state = self._fleet.state(slot)
        if state.operator != "active":
            what = state.operator
        elif state.ejected:
            what = "ejected"
        else:
            what = state.health
        told = state.why if state.why.startswith(what) else f"{what}: {state.why}" if state.why else what
        wait_s = self._fleet.retry_in_s(slot, monotonic())
        return f"{told}; tried again in {wait_s:.1f} s" if state.ejected and wait_s else told

    def _chosen(self, decision: Decision | None, rows: list[Figures]) -> dict[str, Any] | None:
        if decision is None:
            return None
        row = next(row for row in rows if row.slot == decision.slot)
        return {
            "backend": self._fleet.at(decision.slot).name,
            "reason": decision.reason,
            "predicted_ttft_s": _rounded(row.predicted_ttft_s),
            "overlap": _rounded(row.overlap),
        }


def _key(shown: RequestKeys, keys: RequestKeys) -> dict[str, Any]:
    return {
        "hash": None if shown.affinity is None else f"{shown.affinity:016x}",
        "source": shown.source or None,
        "second": None if shown.second is None else f"{shown.second:016x}",
        "spread": shown.spread,
        "used": keys.affinity is not None,
    }


def _value(source: str, request: Request, asked: Asked) -> Any:
    """What the client gave under the source that won."""
    kind, _, name = source.partition(":")
    if kind == "header":
        return request.headers.get(name.encode(), b"").decode("utf-8", "replace").strip()
    value: Any = asked.body if kind == "body" else None
    for field in name.split("."):
        value = value.get(field) if isinstance(value, dict) else None
    return value


def _request(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Request:
    request = Request()
    request.method = method.upper().encode("latin-1", "replace")
    request.target = path.encode("utf-8", "surrogateescape")
    request.path = request.target.partition(b"?")[0]
    request.headers = {
        name.lower().encode("latin-1", "replace"): value.encode("utf-8", "surrogateescape")
        for name, value in headers.items()
    }
    request.body = body
    return request


def _rounded(value: Any) -> Any:
    """Four figures that matter are enough for people."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
