"""The engines' own counters and gauges, read from their /metrics.

Owns the names of vLLM's and SGLang's metrics that a benchmark needs, and the sampling of gauges during a run.
Hit rates come from here and from nowhere else. Knows nothing of load or of what is in front of the engines.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import aiohttp

from stickyroute.benchmark.results import EngineTotals, Sample

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)

_QUERIES = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
_HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
_REQUESTS = ("vllm:request_success_total", "sglang:num_requests_total")
_GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
_PREEMPTIONS = ("vllm:num_preemptions_total",)
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")


class Engines:
    """The engines at `urls`. `begin` notes their counters; `gained` is what has come on top since."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self._session: aiohttp.ClientSession | None = None
        self._before: list[EngineTotals] = []

    async def begin(self) -> None:
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        self._before = [_totals(text) for text in await self._texts()]

    async def gained(self) -> list[EngineTotals]:
        """What each engine's counters gained since `begin`."""
        now = [_totals(text) for text in await self._texts()]
        return [_minus(after, before) for after, before in zip(now, self._before, strict=True)]

    async def sample(self, at_s: float) -> Sample:
        """The gauges of all engines."""
        texts = [values(text) for text in await self._texts()]
        return Sample(
            at_s,
            [_first(text, _RUNNING) for text in texts],
            [_first(text, _WAITING) for text in texts],
            [_first(text, _KV) for text in texts],
        )

    async def end(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _texts(self) -> list[str]:
        return list(await asyncio.gather(*(self._text(url) for url in self.urls)))

    async def _text(self, url: str) -> str:
        assert self._session is not None
        async with self._session.get(f"{url}/metrics") as reply:
            reply.raise_for_status()
            return await reply.text()


def values(text: str) -> dict[str, float]:
    """Metric name to the sum over its series."""
    found: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def _first(found: dict[str, float], names: Sequence[str]) -> float:
    return next((found[name] for name in names if name in found), 0.0)


def _totals(text: str) -> EngineTotals:
    found = values(text)
    return EngineTotals(
        queries=int(_first(found, _QUERIES)),
        hits=int(_first(found, _HITS)),
        requests=int(_first(found, _REQUESTS)),
        generated=int(_first(found, _GENERATED)),
        preemptions=int(_first(found, _PREEMPTIONS)),
    )


def _minus(after: EngineTotals, before: EngineTotals) -> EngineTotals:
    return EngineTotals(
        after.queries - before.queries,
        after.hits - before.hits,
        after.requests - before.requests,
        after.generated - before.generated,
        after.preemptions - before.preemptions,
    )
