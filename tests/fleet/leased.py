"""A small fleet, prompts by name and length, and leases of it."""

from __future__ import annotations

from stickyroute.fleet import Fleet, Lease, Pool, Tuning
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.prefix import Prefixes
from tests.fleet.specs import VNODES, spec

PREFIXES = Prefixes(256, 1 << 20)
TUNING = Tuning(index_entries=4096, prefill_tokens_s=10_000.0, kv_tokens=100_000.0, bytes_per_token=4.0)


def fleet(count: int = 2) -> Fleet:
    return Fleet([spec(f"b{number}") for number in range(count)], VNODES, TUNING)


def prompt(name: str, tokens: int, key: int | None = 5, exact: int | None = None) -> RequestKeys:
    """Four bytes a token; prompts of one name begin alike."""
    size = 4 * tokens
    text = (name * (size // len(name) + 1)).encode()[:size]
    chain = PREFIXES.chain(text, 0)
    return RequestKeys(key, "test", chain, PREFIXES.ends[: len(chain)], size, exact)


def everybody(of: Fleet) -> Pool:
    pool = of.pool(None)
    assert pool is not None
    return pool


def lease(of: Fleet, slot: int, keys: RequestKeys, now_s: float, streams: bool = True) -> Lease:
    of.settle(now_s)
    held = of.lease(slot, keys, now_s, everybody(of), streams)
    assert held is not None
    return held


def backlog(of: Fleet) -> list[float]:
    return [round(tokens, 3) for tokens in of.loads.backlog_tokens]
