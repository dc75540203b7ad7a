"""Backends and fleets for the tests."""

from __future__ import annotations

from typing import Any

from stickyroute.fleet import BackendSpec, Fleet, Tuning

VNODES = 64
SMALL = Tuning(index_entries=1024)
"""The default index takes longer to make than most tests."""


def spec(name: str, **more: Any) -> BackendSpec:
    return BackendSpec(**{"name": name, "scheme": "http", "host": "127.0.0.1", "port": 8000, **more})


def fleet(*specs: BackendSpec | str) -> Fleet:
    return Fleet([one if isinstance(one, BackendSpec) else spec(one) for one in specs], VNODES, SMALL)


def rows(*names: str, **more: Any) -> list[dict[str, Any]]:
    """What a backend's /v1/models lists."""
    return [{"id": name, "object": "model", **more} for name in names]


def members(fleet: Fleet, model: str | None) -> list[str] | None:
    """The names of the backends that serve `model`."""
    pool = fleet.pool(model)
    return None if pool is None else [fleet.at(slot).name for slot in pool.view.slots]
