"""The groups of settings, each with its unit, its default and its meaning.

Owns the shape of every part of the configuration below the top level. Values are frozen.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stickyroute import defaults
from stickyroute.settings.addresses import BackendUrl, parse_backend_url
from stickyroute.settings.checks import (
    Count,
    Endpoint,
    HeaderName,
    Key,
    Models,
    Name,
    Number,
    Origins,
    ReadableFile,
    Seconds,
    Size,
    Sources,
    Url,
    WholeNumber,
)


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class EventsSettings(Group):
    """The KV events of one engine server, published over ZMQ: exact mode."""

    endpoint: Endpoint = Field(
        description="Where it publishes, as seen from here: tcp://HOST:PORT of data-parallel rank 0. With * as "
        "host this port is opened here, for engines that connect. Required."
    )
    replay: Endpoint | None = Field(
        default=None,
        description="Its replay endpoint, for what was missed. Default: none, so a gap empties what is known.",
    )
    topic: str = Field(default="", description="Topics that begin so are read; the engine's own, or all.")
    ranks: Count = Field(
        default=defaults.EVENTS_RANKS,
        le=64,
        description="Its data-parallel ranks; rank r publishes on the port plus r.",
    )


class BackendSettings(Group):
    """One engine server."""

    name: Name = Field(
        default="",
        description="Its stable name: what stands on the ring, in metrics and in logs. Keep it when the "
        "address changes, and no user moves. Default: host, port and path of the URL.",
    )
    url: Url = Field(
        description="http:// or https:// base URL, with an optional path prefix, without /v1. Required."
    )
    weight: WholeNumber = Field(
        default=defaults.BACKEND_WEIGHT,
        ge=0,
        le=100,
        description="Its share of users relative to the others, a small whole number; 0 gives it none.",
    )
    api_key: Key | None = Field(
        default=None,
        description="The engine's API key. When set, it replaces the client's Authorization towards this "
        "backend. Default: none.",
    )
    ca: ReadableFile | None = Field(
        default=None,
        description="PEM file of the authorities to trust for an https URL. Default: the system's.",
    )
    tls_verify: bool = Field(default=True, description="Whether to check the certificate of an https URL.")
    models: Models | None = Field(
        default=None, description="The models it serves. Default: what its /v1/models says."
    )
    max_in_flight: Count | None = Field(
        default=None, description="Requests it may have at once; past it others take them. Default: no limit."
    )
    engine: Literal["vllm", "sglang", "llamacpp"] | None = Field(
        default=None,
        description="What it is, where that cannot be told by its models or metrics. Default: as it says.",
    )
    events: EventsSettings | None = Field(
        default=None, description="Its KV events, which turn exact mode on. Default: none."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """A bare URL is a backend; a backend without a name is called by its address."""
        if isinstance(given, str):
            given = {"url": given}
        if isinstance(given, dict) and given.get("name") is None and isinstance(given.get("url"), str):
            try:
                parsed = parse_backend_url(given["url"])
            except ValueError:
                return {**given, "name": "unnamed"}  # the URL's own check says what is wrong
            return {**given, "name": parsed.authority + parsed.base_path}
        return given

    @cached_property
    def address(self) -> BackendUrl:
        """The URL in parts."""
        return parse_backend_url(self.url)


class AffinitySettings(Group):
    """What tells one user or conversation from another."""

    sources: Sources = Field(
        default=defaults.AFFINITY_SOURCES,
        description="Where the key comes from; the first with a value wins: header:NAME, body:FIELD (dots "
        "for fields inside fields), prefix (the conversation or document that the prompt begins with).",
    )
    tenant_header: HeaderName | None = Field(
        default=None,
        description="A header that names the tenant; equal user names of two tenants then are two keys. "
        "Default: none.",
    )


class PrefixSettings(Group):
    """How prompts are cut, and what is remembered of requests that do not say whose they are."""

    block_bytes: Size = Field(
        default=defaults.PREFIX_BLOCK_BYTES,
        ge=16,
        le=1 << 16,
        description="Bytes of the normalized prompt in a block at its beginning; further on blocks widen.",
    )
    prompt_bytes: Size = Field(
        default=defaults.PREFIX_PROMPT_BYTES,
        ge=1 << 16,
        le=1 << 30,
        description="Bytes of the normalized prompt that are looked at; what lies past them counts as new.",
    )
    masked_bytes: Size = Field(
        default=defaults.PREFIX_MASKED_BYTES,
        ge=0,
        le=1 << 20,
        description="Bytes after the first timestamp, UUID or long number in which such are masked in keys.",
    )
    anchor_cells: Count = Field(
        default=defaults.PREFIX_ANCHOR_CELLS,
        ge=1 << 10,
        le=1 << 24,
        description="Counters of recent traffic, 8 bytes each, rounded up to a power of two.",
    )
    sessions: Count = Field(
        default=defaults.PREFIX_SESSIONS,
        ge=1 << 10,
        le=1 << 24,
        description="Turns of conversations without ids that are remembered, 21 bytes each.",
    )


class BoundedRingSettings(Group):
    """How much more than its share a backend may hold before new requests go to the next on the ring."""

    load_factor: Number = Field(
        default=defaults.BOUNDED_RING_LOAD_FACTOR,
        ge=1.0,
        le=100.0,
        description="Times its share of prompt tokens in flight, by weight and KV capacity; 1.25: a quarter over it.",
    )
    floor: Count = Field(
        default=defaults.BOUNDED_RING_FLOOR,
        description="Requests in flight a backend may always hold, however idle the others are.",
    )


class StickySettings(Group):
    """What sticky, and in part the other policies that count tokens, go by."""

    tolerance: Number = Field(
        default=defaults.STICKY_TOLERANCE,
        ge=0,
        le=1,
        description="Costs this close to the least are equal to it, and the ring decides; more stays at home "
        "more, 0 takes every small advantage.",
    )
    bound: Number = Field(
        default=defaults.STICKY_BOUND,
        ge=1,
        description="Times its share of the fleet's waiting prompt tokens a backend may have, whatever it "
        "has cached.",
    )
    floor_tokens: WholeNumber = Field(
        default=defaults.STICKY_FLOOR_TOKENS,
        ge=0,
        description="Waiting prompt tokens that are never past the bound; about what an engine computes in "
        "a second or two.",
    )
    kappa: Annotated[Number, Field(ge=0, le=8)] | None = Field(
        default=None,
        description="A fixed price of computing a prefix twice, 0 to 8, for experiments. Default: what the "
        "queue that the work joins makes of it.",
    )
    index_entries: Count = Field(
        default=defaults.INDEX_ENTRIES,
        le=1 << 26,
        description="Blocks of prompts remembered; each takes 110 bytes. More for a "
        "fleet whose caches hold more different text.",
    )
    prefill_tokens_s: Number = Field(
        default=defaults.PREFILL_TOKENS_S,
        gt=0,
        description="Prompt tokens a second of one engine, until its first tokens tell.",
    )
    kv_tokens: Number = Field(
        default=defaults.KV_TOKENS,
        gt=0,
        description="Tokens one engine's KV cache holds, until its metrics tell; set it where they do not.",
    )
    bytes_per_token: Number = Field(
        default=defaults.BYTES_PER_TOKEN,
        gt=0,
        le=100,
        description="Bytes of prompt for a token, until usage in replies tells; less for code or Chinese.",
    )


class ScrapeSettings(Group):
    """How each backend's /metrics is read."""

    interval_s: Seconds = Field(
        default=defaults.SCRAPE_INTERVAL_S, description="Between two looks at a backend's /metrics."
    )
    timeout_s: Seconds = Field(
        default=defaults.SCRAPE_TIMEOUT_S, description="For one look, connecting included."
    )


class ExactSettings(Group):
    """What engines' KV events are made of, where `backends[].events` names any."""

    blocks: Count = Field(
        default=defaults.EXACT_BLOCKS,
        description="Most blocks of tokens kept over all backends, about 250 bytes each, and again as many "
        "tied to text.",
    )
    check_s: Seconds = Field(
        default=defaults.EXACT_CHECK_S,
        description="A publisher that is silent for so long is asked whether it lives; after three times that "
        "without an answer its events count no more.",
    )
    tokenize: bool = Field(
        default=True,
        description="Whether engines are asked for the token ids of prompts (POST /tokenize); without, only "
        "prompts that are token ids are matched.",
    )


class RingSettings(Group):
    """The consistent-hash ring."""

    vnodes: Count = Field(
        default=defaults.RING_VNODES, le=10_000, description="Points on the ring for each unit of weight."
    )


class LimitSettings(Group):
    """What a client may send and how much the proxy takes on."""

    body_bytes: Size = Field(
        default=defaults.LIMIT_BODY_BYTES,
        ge=1,
        description="Largest request body in bytes, or with a unit (64MiB); past it 413, nothing forwarded.",
    )
    head_bytes: Size = Field(
        default=defaults.LIMIT_HEAD_BYTES,
        ge=1024,
        le=1 << 24,
        description="Largest request head (line and headers) in bytes, or with a unit; past it 431.",
    )
    max_connections: Count | None = Field(
        default=None,
        description="Client connections at once; past it new ones are closed. Default: no limit.",
    )
    max_in_flight: Count | None = Field(
        default=None,
        description="Requests at once through the whole proxy; past it 503 with Retry-After. "
        "Default: no limit.",
    )
    pipelined: Count = Field(
        default=defaults.LIMIT_PIPELINED,
        description="Requests a client may send ahead on one connection before the proxy stops reading.",
    )


class TimeoutSettings(Group):
    """How long to wait, in seconds. None of them limits how long a generation takes."""

    connect_s: Seconds = Field(
        default=defaults.CONNECT_S, description="To connect to a backend, TLS included."
    )
    response_header_s: Seconds | None = Field(
        default=None,
        description="From the request sent to the reply's head; a long prefill is silence too. Default: off.",
    )
    stream_idle_s: Seconds = Field(
        default=defaults.STREAM_IDLE_S,
        description="Between two pieces of a reply; longer means the engine is gone.",
    )
    client_head_s: Seconds = Field(
        default=defaults.CLIENT_HEAD_S, description="For a client to send a whole request head."
    )
    client_body_s: Seconds = Field(
        default=defaults.CLIENT_BODY_S, description="Between two pieces of a request's body."
    )
    client_idle_s: Seconds = Field(
        default=defaults.CLIENT_IDLE_S, description="A client's connection kept open between two requests."
    )
    client_write_s: Seconds = Field(
        default=defaults.CLIENT_WRITE_S, description="A client that reads nothing of its reply."
    )
    upstream_idle_s: Seconds = Field(
        default=defaults.UPSTREAM_IDLE_S,
        lt=defaults.UPSTREAM_IDLE_LIMIT_S,
        description="A backend's connection kept for the next request; below 5, when uvicorn-based engines "
        "close it.",
    )
    shutdown_s: Number = Field(
        default=defaults.SHUTDOWN_S,
        ge=0,
        description="Given to running replies when asked to stop.",
    )


class RetrySettings(Group):
    """Trying again, which happens only before the first byte of a reply."""

    max: WholeNumber = Field(
        default=defaults.RETRIES_MAX,
        ge=0,
        le=10,
        description="Attempts of one request beyond the first; 0 is never.",
    )
    budget: Number = Field(
        default=defaults.RETRIES_BUDGET,
        ge=0,
        le=1,
        description="Retries as a share of all requests, 0 to 1, so that retries never double an outage.",
    )
    burst: WholeNumber = Field(
        default=defaults.RETRIES_BURST, ge=0, description="Retries that may be saved up beyond the share."
    )


class TlsSettings(Group):
    """TLS on the public port."""

    cert: ReadableFile = Field(description="PEM file of the certificate and its chain. Required.")
    key: ReadableFile = Field(description="PEM file of the private key. Required.")


class GatewayKey(Group):
    """A key that clients of the public port may use."""

    name: Name = Field(
        description="Whose key it is; the name is the tenant, the key is never shown. Required."
    )
    key: Key = Field(description="What the client sends as its API key. Required.")


class CorsSettings(Group):
    """Browsers that may call the public port from another origin."""

    allow_origins: Origins = Field(
        default=(), description="Origins such as https://app.example.com, or *. Default: none."
    )
