"""GET /decisions on the admin port: the last decisions, what was predicted and what came of it.

Owns a ring of plain tuples, one for each proxied request that is over, and their form. A request costs one tuple;
names and numbers are written out when somebody looks. No prompt, no user's name: a key stands as its hash.
"""

from __future__ import annotations

from collections import deque
from time import time
from typing import Any, NamedTuple

from aiohttp import web

from stickyroute.clock import monotonic
from stickyroute.control.answers import json_answer
from stickyroute.control.deps import Deps
from stickyroute.errors import BadRequest
from stickyroute.fleet import Fleet
from stickyroute.openai.usage import Usage
from stickyroute.proxy.exchange import Exchange

__all__ = ["Decided", "Decisions", "add_routes"]

_SHOWN = 100


class Decided(NamedTuple):
    """One request that is over. Times are monotonic seconds, 0 for what did not happen."""

    now_s: float
    request_id: bytes
    backend: str
    pool: str
    model: str | None
    route: str
    reason: str
    attempts: int
    key: int | None
    source: str
    status: int
    end: str
    sent_s: float
    first_token_s: float
    tokens: float
    cached_tokens: float
    expected_s: float
    usage: Usage | None


class Decisions:
    """The last `size` of them; `record` is an observer of the ledger."""

    def __init__(self, fleet: Fleet, size: int) -> None:
        self._fleet = fleet
        self._ring: deque[tuple[Any, ...]] = deque(
            maxlen=size
        )  # of Decided's fields: a plain tuple costs half
        self.recorded = 0
        """How many there have been, so that who follows them can tell what is new."""

    def __len__(self) -> int:
        return len(self._ring)

    def resize(self, size: int) -> None:
        """Keep so many from here on."""
        if size != self._ring.maxlen:
            self._ring = deque(self._ring, maxlen=size)

    def record(self, exchange: Exchange, end: str, now_s: float, usage: Usage | None) -> None:
        if not self._ring.maxlen:
            return
        slot, lease, keys = exchange.slot, exchange.lease, exchange.keys
        self.recorded += 1
        if not keys.chain and keys.second is None:
            lease = None  # who does not look at what is cached predicts nothing
        self._ring.append(
            (
                now_s,
                exchange.request.request_id,
                self._fleet.at(slot).name if slot >= 0 else "",
                exchange.pool.label,
                exchange.model,
                exchange.route.template,
                exchange.reason,
                exchange.attempts,
                keys.affinity,
                keys.source,
                exchange.status,
                end,
                exchange.sent_s,
                exchange.first_token_s or (exchange.first_byte_s if exchange.streams else 0.0),
                lease.tokens if lease is not None else 0.0,
                lease.cached_tokens if lease is not None else 0.0,
                lease.expected_s if lease is not None else 0.0,
                usage,
            )
        )

    def last(
        self, limit: int, backend: str | None = None, reason: str | None = None, after: int = 0
    ) -> list[dict[str, Any]]:
        """The last `limit`, newest first, as JSON values; only those numbered past `after`, of that backend and
        with that reason."""
        wall_s = time() - monotonic()
        found: list[dict[str, Any]] = []
        number = self.recorded
        for fields in reversed(self._ring):
            if number <= after or len(found) >= limit:
                break
            decided = Decided(*fields)
            if backend in (None, decided.backend) and reason in (None, decided.reason):
                found.append(_told(number, decided, wall_s))
            number -= 1
        return found


def _told(number: int, decided: Decided, wall_s: float) -> dict[str, Any]:
    usage, tokens = decided.usage, decided.tokens
    began_s, first_s = decided.sent_s, decided.first_token_s
    return {
        "number": number,
        "time": round(wall_s + decided.now_s, 3),
        "request_id": decided.request_id.decode("latin-1"),
        "backend": decided.backend or None,
        "reason": decided.reason or None,
        "attempts": decided.attempts,
        "pool": decided.pool,
        "model": None if decided.model is None else decided.model[:128],
        "route": decided.route,
        "key": None if decided.key is None else f"{decided.key:016x}",
        "key_source": decided.source or None,
        "status": decided.status,
        "end": decided.end,
        "duration_s": round(decided.now_s - began_s, 4) if began_s else None,
        "predicted": {
            "ttft_s": round(decided.expected_s, 4),
            "prompt_tokens": round(tokens),
            "cached_tokens": round(decided.cached_tokens),
        }
        if tokens
        else None,
        "achieved": {
            "ttft_s": round(first_s - began_s, 4) if first_s and began_s else None,
            "prompt_tokens": usage.prompt_tokens if usage is not None else None,
            "cached_tokens": usage.cached_tokens if usage is not None else None,
        },
    }


def add_routes(app: web.Application, deps: Deps) -> None:
    """GET /decisions?limit=&backend=&reason=&after=."""
    decisions = deps.decisions
    if decisions is None:
        return

    async def show(request: web.Request) -> web.Response:
        query = request.query
        found = decisions.last(
            _whole(query.get("limit"), "limit", _SHOWN),
            query.get("backend"),
            query.get("reason"),
            _whole(query.get("after"), "after", 0),
        )
        return json_answer({"kept": len(decisions), "recorded": decisions.recorded, "decisions": found})

    app.router.add_get("/decisions", show)


def _whole(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadRequest(f"{name} must be a whole number.", param=name)
    return int(text)
