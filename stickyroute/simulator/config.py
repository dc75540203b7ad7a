"""What one simulated engine is: its hardware, its model, its dialect and the flags a real one would be
started with.

Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stickyroute.simulator.profiles import DEMO, Profile

Dialect = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. The defaults are a vLLM started for a router: it reports cached tokens and counts its load.

    `speedup` divides every wait of the real clock: 10 makes a GPU ten times as fast as its profile.
    `report_cached` is --enable-prompt-tokens-details (SGLang: --enable-cache-report), `max_queued`
    --max-num-queued-reqs (running and waiting; SGLang's --max-queued-requests counts the waiting only),
    `track_load` --enable-server-load-tracking, `request_id_headers` --enable-request-id-headers.
    `page_size` is SGLang's: how many tokens its radix tree tells apart. `answer_tokens` is how long an
    answer gets when the client sets no limit. `adapters` are further model names with caches of their own.
    `tokenizer` is a tokenizer.json; without one, four bytes make a token. `kv_events` and `kv_replay` are
    ZMQ addresses to bind, which needs the extra `kv-events`. `faults` are (seconds after start, fault)
    pairs; see `faults`.
    """

    profile: Profile = DEMO
    model: str = "sim"
    dialect: Dialect = "vllm"
    speedup: float = 1.0
    api_key: str | None = None
    adapters: tuple[str, ...] = ()
    report_cached: bool = True
    max_queued: int | None = None
    track_load: bool = True
    request_id_headers: bool = False
    page_size: int = 1
    answer_tokens: int = 128
    tokenizer: Path | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    kv_topic: str = ""
    faults: tuple[tuple[float, str], ...] = ()
