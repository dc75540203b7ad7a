"""SGLang's `/v1/loads` as a `Sample`: what it tells of itself also without `--enable-metrics`, which is off by
default.

Owns the names in that JSON (SGLang 0.5.9 and later, managers/load_snapshot.py). Pure; what is malformed or
missing is unknown, nothing raises. It has no counters, so restarts cannot be told from it.
"""

from __future__ import annotations

from typing import Any

import orjson

from stickyroute.fleet.sample import Sample

__all__ = ["read_loads"]


def read_loads(body: bytes) -> Sample:
    """The figures of all data-parallel ranks together; an empty sample, of no dialect, for anything else."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Sample()
    loads = told.get("loads") if isinstance(told, dict) else None
    ranks = [load for load in loads if isinstance(load, dict)] if isinstance(loads, list) else []
    usage = [value for load in ranks if (value := _number(load, "token_usage")) is not None]
    running = _sum(ranks, "num_running_reqs")
    if running is None and not usage:
        return Sample()
    return Sample(
        kv_utilization=min(1.0, max(usage)) if usage else None,
        running=running,
        waiting=_sum(ranks, "num_waiting_reqs"),
        capacity_tokens=_sum(ranks, "max_total_num_tokens") or None,  # 0 until the scheduler has reported
        ranks=len(ranks),
        dialect="sglang",
    )


def _number(load: dict[str, Any], name: str) -> float | None:
    value = load.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e18 else None


def _sum(ranks: list[dict[str, Any]], name: str) -> int | None:
    """None unless every rank tells it: a part of a sum is no sum."""
    values = [_number(load, name) for load in ranks]
    known = [value for value in values if value is not None]
    return int(sum(known)) if known and len(known) == len(values) else None
