"""The whole configuration as one frozen value, and the checks between its parts.

Owns the top-level keys. Reads no file and no environment: `stickyroute.settings.load` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from stickyroute import defaults
from stickyroute.settings.addresses import Address, split_host_port
from stickyroute.settings.checks import (
    Key,
    Listen,
    Number,
    Problem,
    Problems,
    Routes,
    Seconds,
    WholeNumber,
    off_is_a_word,
    split_commas,
)
from stickyroute.settings.discovery import DiscoverySettings
from stickyroute.settings.fleet import HealthSettings, RoomSettings
from stickyroute.settings.groups import (
    AffinitySettings,
    BackendSettings,
    BoundedRingSettings,
    CorsSettings,
    ExactSettings,
    GatewayKey,
    LimitSettings,
    PrefixSettings,
    RetrySettings,
    RingSettings,
    ScrapeSettings,
    StickySettings,
    TimeoutSettings,
    TlsSettings,
)
from stickyroute.settings.insight import DoctorSettings
from stickyroute.settings.telemetry import PriceSettings, TracingSettings, UsageSettings
from stickyroute.settings.waiting import HoldSettings, ProbeSettings

PolicyName = Literal[
    "sticky",
    "bounded_ring",
    "ring",
    "least_tokens",
    "least_requests",
    "power_of_two",
    "round_robin",
    "random",
    "least_loaded",  # what least_requests was called before
]

_NO_ENGINE = (
    "is missing; name an engine: in the file, in STICKYROUTE_BACKENDS, or with --backend URL; or say under "
    "`discovery` where they are found"
)


class Settings(BaseSettings):
    """The configuration. Built from arguments alone; `load_settings` adds the file and the environment."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a secret
        env_prefix="STICKYROUTE_",
        env_nested_delimiter="__",
        validate_default=False,
    )

    listen: Listen = Field(
        default=defaults.LISTEN,
        description="HOST:PORT of the public port; '[::]:8080' for IPv6; port 0 takes a free one.",
    )
    admin_listen: Listen = Field(
        default=defaults.ADMIN_LISTEN,
        description="HOST:PORT of the admin port: metrics, the fleet, the dashboard. Reading asks for no key.",
    )
    admin_token: Key | None = Field(
        default=None,
        description="What the admin port wants to see before it changes anything or shows a prompt. Default: "
        "nothing on loopback; elsewhere it then changes nothing.",
    )
    backends: Annotated[tuple[BackendSettings, ...], BeforeValidator(split_commas)] = Field(
        default=(),
        description="The engines. In the environment: their URLs with commas between, or JSON. May be empty with "
        "`discovery` only.",
    )
    discovery: tuple[DiscoverySettings, ...] = Field(
        default=(), description="Where further engines are found. Default: nowhere."
    )
    affinity: AffinitySettings = Field(
        default_factory=AffinitySettings, description="What keeps a user in one place."
    )
    prefix: PrefixSettings = Field(
        default_factory=PrefixSettings, description="How prompts are cut and remembered."
    )
    policy: PolicyName = Field(
        default=defaults.POLICY,
        description="How a backend is chosen: sticky (where the first token costs least), bounded_ring (home, past "
        "the load bound the next on the ring), ring (home only), least_tokens, least_requests, power_of_two, "
        "round_robin, random.",
    )
    bounded_ring: BoundedRingSettings = Field(
        default_factory=BoundedRingSettings, description="For bounded_ring."
    )
    sticky: StickySettings = Field(
        default_factory=StickySettings, description="For sticky, and for counting tokens."
    )
    ring: RingSettings = Field(default_factory=RingSettings, description="For sticky, ring and bounded_ring.")
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Sizes and counts.")
    timeouts: TimeoutSettings = Field(default_factory=TimeoutSettings, description="Waits, in seconds.")
    retries: RetrySettings = Field(default_factory=RetrySettings, description="Trying again.")
    tls: TlsSettings | None = Field(default=None, description="TLS on the public port. Default: plain HTTP.")
    api_keys: tuple[GatewayKey, ...] = Field(
        default=(), description="Keys that the public port asks for. Default: none, open to everybody."
    )
    cors: CorsSettings = Field(default_factory=CorsSettings, description="Browsers.")
    strict_models: bool = Field(
        default=True, description="Whether a model that no backend serves is a 404 here, without asking one."
    )
    strict_json: bool = Field(
        default=True, description="Whether a body that is not JSON is a 400 here, without asking a backend."
    )
    extra_routes: Routes = Field(
        default=(),
        description="More routes to forward, 'METHOD /path' with {id} for one segment; others are a 404.",
    )
    response_headers: bool = Field(
        default=False, description="Whether replies tell x-stickyroute-backend and x-stickyroute-reason."
    )
    access_log: Annotated[Literal["off", "text", "json"], BeforeValidator(off_is_a_word)] = Field(
        default=defaults.ACCESS_LOG, description="One line for each request: off, text or json."
    )
    access_log_path: Path | None = Field(
        default=None, description="Where the access log goes. Default: stdout."
    )
    access_log_sample: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=defaults.ACCESS_LOG_SAMPLE,
        description="Share of the requests that have a line, 0 to 1; those that went wrong always have one.",
    )
    usage: UsageSettings = Field(default_factory=UsageSettings, description="What replies tell of tokens.")
    prices: PriceSettings = Field(
        default_factory=PriceSettings, description="What prompt tokens cost, to tell what the cache saves."
    )
    tracing: TracingSettings = Field(default_factory=TracingSettings, description="OpenTelemetry traces.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default=defaults.LOG_LEVEL,
        description="What the proxy tells about itself: debug, info, warning, error.",
    )
    reload_on_change: bool = Field(
        default=True, description="Whether the configuration's file is read again when it changes."
    )
    models_interval_s: Seconds = Field(
        default=defaults.MODELS_INTERVAL_S,
        description="Seconds between two looks at each backend's /v1/models.",
    )
    scrape: ScrapeSettings = Field(
        default_factory=ScrapeSettings, description="What each backend's /metrics says."
    )
    probe: ProbeSettings = Field(
        default_factory=ProbeSettings, description="Asking each backend whether it is well."
    )
    health: HealthSettings = Field(default_factory=HealthSettings, description="When a backend is out.")
    room: RoomSettings = Field(
        default_factory=RoomSettings, description="How much of its share a backend gets."
    )
    hold: HoldSettings = Field(
        default_factory=HoldSettings, description="Requests that wait while no backend can take them."
    )
    exact: ExactSettings = Field(
        default_factory=ExactSettings, description="What backends with KV events hold."
    )
    decisions: WholeNumber = Field(
        default=defaults.DECISIONS,
        ge=0,
        le=1_000_000,
        description="How many past decisions the admin port shows; 0 keeps none.",
    )
    shadow: PolicyName | None = Field(
        default=None,
        description="A policy that decides too and changes nothing, to compare it in metrics. Default: none.",
    )
    shadow_share: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=defaults.SHADOW_SHARE,
        description="Share of the users that the shadow policy decides for, 0 to 1.",
    )
    doctor: DoctorSettings = Field(
        default_factory=DoctorSettings, description="What tells why prefixes break."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only, so that a test's settings do not depend on the machine it runs on."""
        return (init_settings,)

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        problems = [
            *backend_problems(tuple(enumerate(self.backends)), found=bool(self.discovery)),
            *key_problems(tuple(enumerate(self.api_keys))),
            *listen_problems(self.listen, self.admin_listen),
            *discovery_problems(self.discovery),
        ]
        if problems:
            raise Problems(problems)
        return self

    @property
    def listen_address(self) -> Address:
        """`listen` in parts."""
        return split_host_port(self.listen)

    @property
    def admin_address(self) -> Address:
        """`admin_listen` in parts."""
        return split_host_port(self.admin_listen)


def backend_problems(
    backends: Sequence[tuple[int, BackendSettings]], *, found: bool, given: bool | None = None
) -> Iterator[Problem]:
    """What is wrong between backends; each comes with its place in the list, since some may be missing.

    `found`: others are found by discovery. `given`: whether any was named, though it may be wrong by itself.
    """
    if not found and not (bool(backends) if given is None else given):
        yield Problem(("backends",), _NO_ENGINE)
    yield from _twice("backends", "name", ((index, backend.name) for index, backend in backends))
    yield from _twice("backends", "url", ((index, str(backend.address)) for index, backend in backends))
    if backends and not found and not any(backend.weight for _, backend in backends):
        yield Problem(
            ("backends",), "every weight is 0, so nobody can be served; give at least one a weight above 0"
        )


def key_problems(keys: Sequence[tuple[int, GatewayKey]]) -> Iterator[Problem]:
    """What is wrong between gateway keys."""
    yield from _twice("api_keys", "name", ((index, key.name) for index, key in keys))
    yield from _twice("api_keys", "key", ((index, key.key.get_secret_value()) for index, key in keys))


def discovery_problems(entries: Sequence[DiscoverySettings]) -> Iterator[Problem]:
    """Whether two entries look at one place: its backends would be in the fleet once, with whose options?"""
    first: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry.label in first:
            yield Problem(
                ("discovery", index),
                f"looks at the same place as discovery[{first[entry.label]}]; leave one out",
            )
        first.setdefault(entry.label, index)


def listen_problems(listen: str, admin_listen: str) -> Iterator[Problem]:
    """Whether the two ports would take each other's connections."""
    public, admin = split_host_port(listen), split_host_port(admin_listen)
    same_host = public.host == admin.host or public.is_wildcard or admin.is_wildcard
    if public.port == admin.port != 0 and same_host:
        yield Problem(("admin_listen",), "is the public port too (listen); choose another port")


def _twice(group: str, key: str, values: Iterable[tuple[int, str]]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, value in values:
        if value in first:
            yield Problem(
                (group, index, key), f"is the same as {group}[{first[value]}].{key}; each must differ"
            )
        else:
            first[value] = index
