"""What the operator may say about loads and caches beforehand. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from stickyroute import defaults

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """`index_entries`: rows of the residency table. `prefill_tokens_s` (tokens a second), `kv_tokens` (cache of
    one backend) and `bytes_per_token` are where learning starts, or what stays where nothing can be learned.
    `kappa`: a fixed price of computing twice, None to measure it.
    """

    index_entries: int = defaults.INDEX_ENTRIES
    prefill_tokens_s: float = defaults.PREFILL_TOKENS_S
    kv_tokens: float = defaults.KV_TOKENS
    bytes_per_token: float = defaults.BYTES_PER_TOKEN
    kappa: float | None = None
