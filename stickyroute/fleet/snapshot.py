"""The state of a fleet as JSON values, for people. Owns the names and shapes of `/fleet`; no secret is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stickyroute.fleet.spec import Backend

if TYPE_CHECKING:
    from stickyroute.fleet.fleet import Fleet

__all__ = ["snapshot"]


def snapshot(fleet: Fleet, now_s: float) -> dict[str, Any]:
    """Everything. What is not known is null; durations and ages are in seconds before `now_s`."""
    everyone = fleet.pool(None)
    assert everyone is not None
    ring = everyone.view.ring
    shares = dict(zip(ring.members, ring.shares(), strict=True))
    return {
        "members_generation": fleet.generation,
        "ring_fingerprint": ring.fingerprint,
        "backends": [_backend(fleet, backend, shares[backend.name], now_s) for backend in fleet.backends],
        "leaving": [
            {"name": backend.name, "url": backend.spec.url, "in_flight": fleet.in_flight[backend.slot]}
            for backend in fleet.leaving()
        ],
        "pools": [
            {"model": name, "backends": [fleet.at(slot).name for slot in slots]}
            for name, slots in fleet.pool_slots().items()
        ],
    }


def _backend(fleet: Fleet, backend: Backend, share: float, now_s: float) -> dict[str, Any]:
    slot, spec = backend.slot, backend.spec
    served = fleet.served(slot)
    state = fleet.state(slot)
    known = fleet.sample(slot)
    return {
        "name": spec.name,
        "url": spec.url,
        "weight": spec.weight,
        "available": bool(fleet.available[slot]),
        "operator": state.operator,
        "health": state.health,
        "ejected": state.ejected,
        "trying": state.trying,
        "why": state.why,
        "for_s": round(max(0.0, now_s - state.since_s), 1),
        "paused_s": round(state.paused_s, 1),
        "drain": None
        if state.operator == "active"
        else {"in_flight_then": state.began_in_flight, "in_flight": state.in_flight},
        "in_flight": fleet.in_flight[slot],
        "max_in_flight": spec.max_in_flight,
        "failures": state.refusals,
        "ring_share": round(share, 4),
        "room": round(fleet.loads.room[slot], 3),
        "warming": round(fleet.warming(slot), 3),
        "sample": None
        if known is None
        else {
            "age_s": round(max(0.0, now_s - known[1]), 1),
            "kv_utilization": known[0].kv_utilization,
            "running": known[0].running,
            "waiting": known[0].waiting,
        },
        "warnings": [
            {"code": told.code, "for_s": round(max(0.0, now_s - told.since_s), 1), "text": told.text}
            for told in fleet.warnings(slot)
        ],
        "models": None if served is None else list(served),
    }
