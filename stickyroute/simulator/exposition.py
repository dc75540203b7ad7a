"""`/metrics` of an engine, in vLLM's names and in SGLang's.

Owns names and labels (see captures). Reads an engine and what its server observed; changes neither.
"""

from __future__ import annotations

from collections.abc import Mapping

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.observed import Histogram, Observed

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Text:
    """Lines of the text format; `labels` are on every series of the engine."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._lines: list[str] = []

    def family(self, name: str, kind: str) -> None:
        """The type of what follows."""
        self._lines.append(f"# TYPE {name} {kind}")

    def sample(self, name: str, value: float, **labels: str) -> None:
        """One line with the labels every series of the engine has, and these."""
        self.plain(name, value, **{**self._labels, **labels})

    def plain(self, name: str, value: float, **labels: str) -> None:
        """One line with these labels only."""
        text = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
        self._lines.append(f"{name}{{{text}}} {float(value)}" if text else f"{name} {float(value)}")

    def gauge(self, name: str, value: float) -> None:
        """A gauge of one series."""
        self.family(name, "gauge")
        self.sample(name, value)

    def counter(self, name: str, value: float) -> None:
        """A counter of one series; `name` without `_total`."""
        self.family(f"{name}_total", "counter")
        self.sample(f"{name}_total", value)

    def histogram(self, name: str, histogram: Histogram, **labels: str) -> None:
        """All series of a histogram."""
        self.family(name, "histogram")
        running = 0
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
            running += count
            self.sample(f"{name}_bucket", running, le=bound, **labels)
        self.sample(f"{name}_count", running, **labels)
        self.sample(f"{name}_sum", histogram.total, **labels)

    def bytes(self) -> bytes:
        """The whole text."""
        return ("\n".join(self._lines) + "\n").encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def vllm(config: EngineConfig, engine: Engine, observed: Observed) -> bytes:
    """The text of a vLLM 0.32 with one engine."""
    text = Text({"engine": "0", "model_name": config.model})
    counters = engine.counters
    text.family("process_start_time_seconds", "gauge")
    text.plain("process_start_time_seconds", observed.started_unix_s)
    text.gauge("vllm:num_requests_running", engine.running)
    text.gauge("vllm:num_requests_waiting", engine.waiting)
    text.family("vllm:num_requests_waiting_by_reason", "gauge")
    text.sample("vllm:num_requests_waiting_by_reason", engine.waiting, reason="capacity")
    text.sample("vllm:num_requests_waiting_by_reason", 0, reason="deferred")
    text.family("vllm:engine_sleep_state", "gauge")
    for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
        text.sample("vllm:engine_sleep_state", value, sleep_state=state)
    text.gauge("vllm:kv_cache_usage_perc", engine.cache.usage)
    text.counter("vllm:prefix_cache_queries", counters.queries)
    text.counter("vllm:prefix_cache_hits", counters.hits)
    text.counter("vllm:external_prefix_cache_queries", 0)
    text.counter("vllm:external_prefix_cache_hits", 0)
    text.counter("vllm:num_preemptions", counters.preemptions)
    text.counter("vllm:prompt_tokens", counters.prompt)
    text.family("vllm:prompt_tokens_by_source_total", "counter")
    for source, tokens in (
        ("local_compute", counters.prompt - counters.hits),
        ("local_cache_hit", counters.hits),
        ("external_kv_transfer", 0),
    ):
        text.sample("vllm:prompt_tokens_by_source_total", tokens, source=source)
    text.counter("vllm:prompt_tokens_cached", counters.hits)
    text.counter("vllm:generation_tokens", counters.generated)
    text.family("vllm:request_success_total", "counter")
    for reason in ("stop", "length", "abort", "error", "repetition"):
        text.sample("vllm:request_success_total", observed.finished[reason], finished_reason=reason)
    text.family("vllm:admission_rejections_total", "counter")
    for reason, count in (("max_num_queued_reqs", observed.rejected), ("max_num_queued_tokens", 0)):
        text.plain("vllm:admission_rejections_total", count, model_name=config.model, reason=reason)
    text.histogram("vllm:time_to_first_token_seconds", observed.ttft_s)
    text.histogram("vllm:inter_token_latency_seconds", observed.itl_s)
    text.histogram("vllm:e2e_request_latency_seconds", observed.latency_s)
    text.histogram("vllm:request_queue_time_seconds", observed.queue_s)
    text.histogram("vllm:request_prefill_time_seconds", observed.prefill_s)
    if config.adapters:
        text.family("vllm:lora_requests_info", "gauge")
        text.plain(
            "vllm:lora_requests_info",
            observed.started_unix_s,
            max_lora=str(len(config.adapters)),
            running_lora_adapters="",
            waiting_lora_adapters="",
        )
    text.family("vllm:cache_config_info", "gauge")
    text.plain(
        "vllm:cache_config_info",
        1,
        engine="0",
        block_size=str(engine.cache.block_size),
        cache_dtype="auto",
        enable_prefix_caching="True",
        gpu_memory_utilization="0.92",
        kv_cache_size_tokens=str(engine.profile.blocks * engine.cache.block_size),
        num_gpu_blocks=str(engine.profile.blocks),
        prefix_caching_hash_algo="sha256",
    )
    text.family("http_requests_total", "counter")
    for (handler, method, status), count in observed.http.items():
        text.plain("http_requests_total", count, handler=handler, method=method, status=status)
    return text.bytes()
