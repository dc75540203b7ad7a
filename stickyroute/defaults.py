"""Every default value of the configuration, as a named constant with its unit in the name.

Owns the numbers and the reason behind each. Knows nothing of how they are read or used.
"""

from __future__ import annotations

from typing import Final

LISTEN: Final = "0.0.0.0:8080"  # the public port is meant for everybody
ADMIN_LISTEN: Final = "127.0.0.1:9090"  # loopback: it shows the fleet and has no key

# Who the user is, most explicit first. Never a request or trace id: those differ on every request.
AFFINITY_SOURCES: Final = (
    "header:x-session-id",
    "header:x-user-id",
    "header:x-smg-routing-key",
    "header:x-claude-code-session-id",
    "body:user",
    "body:prompt_cache_key",
    "body:safety_identifier",
    "body:session_id",
    "body:metadata.user_id",
    "prefix",
)

PREFIX_BLOCK_BYTES: Final = 256  # some 64 tokens: four blocks of an engine
PREFIX_PROMPT_BYTES: Final = 4 * 1024 * 1024  # a million tokens: the longest contexts there are
PREFIX_MASKED_BYTES: Final = 8 * 1024  # a clock stands in the first or the last lines of a system prompt
PREFIX_ANCHOR_CELLS: Final = 65_536  # half a MiB: with 64 backends a tenth of the rarest count that matters
PREFIX_SESSIONS: Final = 65_536  # turns; a conversation is found while fewer than that came after its last

POLICY: Final = "sticky"
BOUNDED_RING_LOAD_FACTOR: Final = (
    1.25  # the value of the bounded-loads paper, and of Google's and Vimeo's balancers
)
BOUNDED_RING_FLOOR: Final = 2  # requests: with next to no load, a second request is no reason to leave home
BOUNDED_RING_WARM_S: Final = 60.0  # somebody who reads an answer and types the next question
STICKY_TOLERANCE: Final = 0.03  # costs are estimates; more costs a prompt nobody holds its best backend
STICKY_BOUND: Final = 4.0
STICKY_FLOOR_TOKENS: Final = 32_768  # a long prompt or two are no overload
INDEX_ENTRIES: Final = (
    262_144  # blocks of 256 bytes and more: what 16 engines with a million tokens each hold
)
PREFILL_TOKENS_S: Final = 20_000.0  # tokens a second of one engine, until its first tokens tell
KV_TOKENS: Final = 300_000.0  # cache of one engine, until its metrics tell
BYTES_PER_TOKEN: Final = 4.0  # of English text, until usage tells
RING_VNODES: Final = 512  # per unit of weight: keeps the shares of equal backends within about 10 %
BACKEND_WEIGHT: Final = 1

LIMIT_BODY_BYTES: Final = 64 * 1024 * 1024  # images travel inside the body as base64
LIMIT_HEAD_BYTES: Final = 64 * 1024
LIMIT_PIPELINED: Final = 16  # requests

CONNECT_S: Final = 2.0
STREAM_IDLE_S: Final = 600.0  # a draining vLLM can go silent without closing
CLIENT_HEAD_S: Final = 15.0
CLIENT_BODY_S: Final = 30.0
CLIENT_IDLE_S: Final = 75.0
CLIENT_WRITE_S: Final = 600.0
UPSTREAM_IDLE_S: Final = 4.0  # uvicorn-based engines drop idle connections at 5 s
UPSTREAM_IDLE_LIMIT_S: Final = 5.0
SHUTDOWN_S: Final = 30.0

RETRIES_MAX: Final = 2  # attempts more than the first
RETRIES_BUDGET: Final = 0.2  # of traffic
RETRIES_BURST: Final = 100  # retries: so that a quiet proxy can fail over at all

RECENT_KEYS: Final = 65_536  # keys whose last place is known: about 1 MiB
REMEMBERED_IDS: Final = 65_536  # responses and sessions whose engine is known: about 10 MB at most

ACCESS_LOG: Final = "off"
ACCESS_LOG_SAMPLE: Final = 1.0
PRICE_CACHE_READ: Final = 0.1  # what the large providers ask for a cached token, times an uncached one
PRICE_CACHE_WRITE: Final = 1.25
TRACING_SAMPLE: Final = 1.0
TRACING_QUEUE: Final = 8192  # spans: some seconds of 500 requests a second
LOG_LEVEL: Final = "info"
DECISIONS: Final = 1000  # some 400 bytes each
SHADOW_SHARE: Final = 0.1  # of the users: a second decision costs what a first does
DOCTOR_KEYS: Final = 10_000  # conversations: 20 to 40 MB once so many are met
DOCTOR_CPU: Final = 0.02  # of one core: the doctor looks at fewer conversations rather than take more
MODELS_INTERVAL_S: Final = 10.0
SCRAPE_INTERVAL_S: Final = 5.0  # the figures only correct our own; SGLang's move every 40 decode steps
SCRAPE_TIMEOUT_S: Final = 2.0
EXACT_BLOCKS: Final = 500_000  # of tokens over all backends: at 16 tokens 8 million tokens, 16 large engines
EXACT_CHECK_S: Final = 5.0
EVENTS_RANKS: Final = 1
PROBE_INTERVAL_S: Final = 2.0  # on a busy fleet the traffic answers it, so it costs little
PROBE_TIMEOUT_S: Final = 2.0
PROBE_FIRST_BYTE_S: Final = 30.0  # a prompt of 100,000 tokens takes a small GPU about as long
HEALTH_RISE: Final = 2
HEALTH_FALL: Final = 3  # one slow probe of a busy engine is nothing
HEALTH_EJECT_AFTER: Final = 5  # Envoy's; one client's poison is seldom five in a row
HEALTH_SILENT_AFTER: Final = 3
HEALTH_EJECT_FIRST_S: Final = 1.0
HEALTH_EJECT_LAST_S: Final = 30.0
HEALTH_RECOVER: Final = 2  # answers
HEALTH_PANIC: Final = 0.5  # Envoy's
ROOM_KV_MARK: Final = 0.8  # above, engines evict what others would hit, then preempt
ROOM_WAITING_MARK: Final = 5.0
ROOM_WAITING_FULL: Final = 20.0
ROOM_FLOOR: Final = 0.5  # less makes engines that are all nearly full push load to and fro
ROOM_COOL_DOWN_S: Final = 15.0  # three samples
ROOM_SLOW_START_S: Final = 30.0
HOLD_REQUESTS: Final = 0  # off: who balances load over several proxies wants to know at once
HOLD_WAIT_S: Final = 5.0
