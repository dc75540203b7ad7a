"""What one look at an engine's metrics said. Values only; None is unknown, never zero.

Owns the names and the units. How they are read is `watch.engine_metrics`'s matter, what they mean for routing
the fleet's.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Sample"]


class Sample(NamedTuple):
    """One engine server at one moment, its data-parallel ranks taken together.

    `kv_utilization`: 0 to 1, that of the fullest rank; blocks that are cached but unreferenced count as free,
    so it is memory pressure and not warmth. `running`, `waiting`: requests. `preemptions`, `queries_tokens`
    (prompt tokens looked up in the prefix cache) and `hits_tokens` (those found) are sums since the engine
    started: one that falls means a restart, for SGLang's preemptions alone it does not. `blocks` of
    `block_size_tokens` are the whole KV cache over all `ranks`, `capacity_tokens` likewise, and right also
    where a model's layers keep different blocks. `started_s`: Unix time. `dialect`: whose metrics they are,
    empty when nobody's known.
    """

    kv_utilization: float | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    queries_tokens: int | None = None
    hits_tokens: int | None = None
    blocks: int | None = None
    block_size_tokens: int | None = None
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    started_s: float | None = None
    capacity_tokens: int | None = None
    ranks: int | None = None
    dialect: str = ""
