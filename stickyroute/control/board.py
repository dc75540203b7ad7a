"""What the dashboard and `stickyroute top` show: one state of everything, as JSON values.

Owns the form, which is between this process and its own page and command, and may change with any version. Reads and
changes nothing. Without secrets, prompts or users' names; what backends and clients may name is cut to a length, and
the page shows all of it as text.
"""

from __future__ import annotations

import asyncio
from time import time
from typing import Any

from stickyroute import __version__
from stickyroute.clock import monotonic
from stickyroute.control.auth import Guard
from stickyroute.control.board_parts import decision_row, diagnosis, part
from stickyroute.control.deps import Deps
from stickyroute.control.history import STEP_S, History
from stickyroute.control.operate import state_age_s
from stickyroute.fleet import Backend
from stickyroute.routing.ring import Ring

__all__ = ["Board"]

_AT_ONCE = 50
"""Backends told of in one go, about a millisecond."""
_DECISIONS = 60
_MODELS = 3
_ALERTS = 20
_ALERT_CHARS = 500
_STALE_SCRAPES = 3
"""Intervals after which what an engine said of itself is shown as old."""


class Board:
    """`step` takes the counters for the charts each `history.STEP_S`; `state` is everything now."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._history = History(deps.metrics)
        self._started_s = monotonic()
        self._shares: tuple[Ring | None, dict[str, float]] = (None, {})
        self._diagnosed: tuple[float, dict[str, Any] | None] = (float("-inf"), None)

    def step(self, now_s: float) -> None:
        """One point more."""
        fleet = self._deps.fleet
        self._history.record(now_s, sum(fleet.in_flight[backend.slot] for backend in fleet.backends))

    def history_points(self) -> dict[str, Any]:
        """The charts so far."""
        return {"points": list(self._history.points)}

    async def state(self) -> dict[str, Any]:
        """Everything but the charts, of which it has the last point. Gives way to the data plane on its way: of a
        large fleet there is a lot to tell."""
        now_s = monotonic()
        deps, fleet, settings = self._deps, self._deps.fleet, self._deps.settings()
        points = self._history.points
        shares = await self._key_shares()
        backends: list[dict[str, Any]] = []
        for backend in fleet.backends:
            backends.append(self._backend(backend, shares, now_s))
            if len(backends) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        everyone = fleet.pool(None)
        return {
            "version": __version__,
            "at": round(time(), 3),
            "uptime_s": round(now_s - self._started_s, 1),
            "policy": settings.policy,
            "access": self._access(),
            "summary": self._summary(backends),
            "point": points[-1] if points else None,
            "ring": {
                "fingerprint": everyone.view.ring.fingerprint if everyone is not None else "",
                "members_generation": fleet.generation,
            },
            "many_pools": fleet.many_pools,
            "config": None if deps.config is None else deps.config.state(),
            "alerts": self._alerts(backends),
            "backends": backends,
            "leaving": [
                {"name": backend.name, "in_flight": fleet.in_flight[backend.slot]}
                for backend in fleet.leaving()
            ],
            "shadow": self._shadow(),
            "reasons": dict(deps.metrics.decisions_by_reason),
            "decisions": self._decisions(),
            "doctor": self._diagnosis(now_s),
        }

    def _access(self) -> str:
        """What a change needs: nothing (open), the token, or it cannot be (closed)."""
        guard = Guard(self._deps.settings)
        if not guard.token_needed:
            return "open"
        return "token" if guard.token_set else "closed"

    def _summary(self, backends: list[dict[str, Any]]) -> dict[str, Any]:
        traffic = self._deps.metrics.traffic.values()
        held = self._deps.metrics.sources.held_requests
        return {
            **self._history.minute,
            "saved_tokens": sum(each.cached_tokens for each in traffic),
            "saved_cost": sum(each.cost_saved - each.cost_extra for each in traffic),
            "in_flight": sum(backend["in_flight"] for backend in backends),
            "held": 0 if held is None else held(),
            "backlog_tokens": sum(backend["backlog_tokens"] for backend in backends),
            "available": sum(1 for backend in backends if backend["available"]),
            "backends": len(backends),
        }

    async def _key_shares(self) -> dict[str, float]:
        """Each backend's part of all keys, 0 to 1. Adding up a ring's points takes a while, so it is done once for
        each ring."""
        pool = self._deps.fleet.pool(None)
        if pool is None:
            return {}
        ring = pool.view.ring
        if self._shares[0] is not ring:
            for _ in ring.share_steps():
                await asyncio.sleep(0)
            self._shares = ring, dict(zip(ring.members, ring.shares(), strict=True))
        return self._shares[1]

    def _backend(self, backend: Backend, shares: dict[str, float], now_s: float) -> dict[str, Any]:
        fleet, slot, spec = self._deps.fleet, backend.slot, backend.spec
        state = fleet.state(slot)
        recent = self._history.recent(spec.name)
        served = fleet.served(slot)
        known = fleet.sample(slot)
        age_s = None if known is None else now_s - known[1]
        sample = None if known is None else known[0]
        loads = fleet.loads
        return {
            "name": spec.name,
            "url": spec.url,
            "models": [] if served is None else [name[:64] for name in served[:_MODELS]],
            "models_count": None if served is None else len(served),
            "operator": state.operator,
            "health": state.health,
            "ejected": state.ejected,
            "refused": state.refusals > 0,
            "available": bool(fleet.available[slot]),
            "why": state.why[:200],
            "for_s": state_age_s(state, now_s),
            "warnings": [{"code": told.code, "text": told.text} for told in fleet.warnings(slot)],
            "weight": spec.weight,
            "room": round(loads.room[slot], 3),
            "in_flight": fleet.in_flight[slot],
            "max_in_flight": spec.max_in_flight,
            "backlog_tokens": round(max(0.0, loads.backlog_tokens[slot]), 1),
            "prefill_tokens_s": round(1.0 / loads.token_s[slot], 1),
            "trust": round(loads.trust[slot], 3),
            "kv": None if sample is None else sample.kv_utilization,
            "running": None if sample is None else sample.running,
            "waiting": None if sample is None else sample.waiting,
            "sample_age_s": None if age_s is None else round(age_s, 1),
            "kv_stale": age_s is not None
            and age_s > _STALE_SCRAPES * self._deps.settings().scrape.interval_s,
            "key_share": round(shares.get(spec.name, 0.0), 5),
            "traffic_share": None if recent.traffic_share is None else round(recent.traffic_share, 5),
            "requests": recent.requests,
            "hit_rate": recent.hit_rate,
            "ttft_s": recent.ttft_s,
        }

    def _alerts(self, backends: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a person should do something about."""
        alerts = self._config_alerts()
        if backends and not any(backend["available"] for backend in backends):
            alerts.append(_alert("bad", None, "none_available", "no backend is available: clients get a 503"))
        for backend in backends:
            if backend["health"] == "unhealthy" or backend["ejected"]:
                alerts.append(_alert("bad", backend["name"], "out", backend["why"] or backend["health"]))
            alerts += [
                _alert("warn", backend["name"], told["code"], told["text"]) for told in backend["warnings"]
            ]
        more = len(alerts) - _ALERTS
        if more > 0:
            alerts[_ALERTS:] = [_alert("warn", None, "more", f"and {more} more: see the fleet below")]
        return alerts

    def _diagnosis(self, now_s: float) -> dict[str, Any] | None:
        """What the doctor found, never with samples; None where it is off. It is looked at now and then."""
        ward = self._deps.doctor
        if ward is None or not ward.on:
            return None
        if now_s - self._diagnosed[0] >= STEP_S:
            minute = self._history.minute
            told = ward.report(minute["hit_rate"], minute["prompt_tokens_s"], samples=False)
            self._diagnosed = now_s, diagnosis(told)
        return self._diagnosed[1]

    def _shadow(self) -> dict[str, Any] | None:
        """How the shadow policy compares; None without one."""
        source = self._deps.metrics.sources.shadow
        shadow = source() if source is not None else None
        if shadow is None or not shadow.decisions:
            return None
        return {
            "policy": shadow.policy,
            "agreed": round(shadow.agreed / shadow.decisions, 4),
            "expected": part(shadow.expected_tokens, shadow.prompt_tokens),
            "live_expected": part(shadow.live_expected_tokens, shadow.prompt_tokens),
        }

    def _config_alerts(self) -> list[dict[str, Any]]:
        config = self._deps.config
        if config is None:
            return []
        alerts = []
        state = config.state()
        if state["last_error"]:
            text = f"a configuration was refused, {state['generation']} stays in force: {state['last_error']}"
            alerts.append(_alert("bad", None, "config", text[:_ALERT_CHARS]))
        for source in config.discovery_state():
            if source.get("error"):
                text = f"discovery by {source['source']}: {source['error']}"
                alerts.append(_alert("warn", None, "discovery", text[:_ALERT_CHARS]))
            if source["left_out"]:
                names = ", ".join(source["left_out"])
                text = f"discovery by {source['source']}: left out, since others have the name or address: {names}"
                alerts.append(_alert("warn", None, "left_out", text[:_ALERT_CHARS]))
        if state["needs_restart"]:
            text = f"changed in the configuration, and waiting for a restart: {', '.join(state['needs_restart'])}"
            alerts.append(_alert("note", None, "restart", text[:_ALERT_CHARS]))
        return alerts

    def _decisions(self) -> list[dict[str, Any]] | None:
        """The last ones, newest first; None where none are kept."""
        decisions = self._deps.decisions
        if decisions is None or not self._deps.settings().decisions:
            return None
        return [decision_row(told) for told in decisions.last(_DECISIONS)]


def _alert(level: str, backend: str | None, code: str, text: str) -> dict[str, Any]:
    return {"level": level, "backend": backend, "code": code, "text": text}
