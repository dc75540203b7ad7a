"""`/metrics` of SGLang 0.5.23 with --enable-metrics: gauges from the scheduler, counters from the tokenizer
process.

As in the real engine, the two kinds carry different labels. What the real one splits by `is_streaming` is
under "true".
"""

from __future__ import annotations

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.exposition import Text
from stickyroute.simulator.observed import Observed


def sglang(config: EngineConfig, engine: Engine, observed: Observed) -> bytes:
    """The text of one engine without data parallelism."""
    base = {"engine_type": "unified", "model_name": config.model}
    scheduler = {**base, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    cache = engine.cache
    counters = engine.counters
    text = Text(scheduler)
    hit_rate = counters.hits / counters.queries if counters.queries else 0.0
    for name, value in (
        ("max_total_num_tokens", cache.capacity_tokens),
        ("page_size", cache.block_size),
        ("num_pages", cache.capacity_tokens // cache.block_size),
        ("context_len", engine.profile.context_tokens),
        ("num_running_reqs", engine.running),
        ("num_queue_reqs", engine.waiting),
        ("gen_throughput", 0.0),
        ("cache_hit_rate", hit_rate),
        ("token_usage", cache.usage),
        ("num_used_tokens", cache.used_tokens),
        ("kv_available_tokens", cache.capacity_tokens - cache.used_tokens - cache.evictable_tokens),
        ("kv_evictable_tokens", cache.evictable_tokens),
        ("kv_used_tokens", cache.used_tokens),
    ):
        text.gauge(f"sglang:{name}", value)
    text.histogram("sglang:queue_time_seconds", observed.queue_s)
    requests = Text(base)
    for name, value in (
        ("prompt_tokens", counters.prompt),
        ("generation_tokens", counters.generated),
        ("num_requests", sum(observed.finished.values())),
    ):
        requests.family(f"sglang:{name}_total", "counter")
        requests.sample(f"sglang:{name}_total", value, is_streaming="true")
    requests.family("sglang:cached_tokens_total", "counter")
    requests.sample("sglang:cached_tokens_total", counters.hits, cache_source="device")
    requests.counter("sglang:num_aborted_requests", observed.aborted)
    requests.histogram("sglang:time_to_first_token_seconds", observed.ttft_s, is_streaming="true")
    requests.histogram("sglang:e2e_request_latency_seconds", observed.latency_s, is_streaming="true")
    requests.histogram("sglang:inter_token_latency_seconds", observed.itl_s)
    requests.family("sglang:http_requests_total", "counter")
    totals: dict[tuple[str, str], int] = {}
    for (handler, method, _status), count in observed.http.items():
        totals[handler, method] = totals.get((handler, method), 0) + count
    for (handler, method), count in totals.items():
        requests.plain("sglang:http_requests_total", count, endpoint=handler, method=method)
    return text.bytes() + requests.bytes()
