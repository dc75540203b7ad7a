"""Parts of the process made out of settings, at the start and at every change.

Owns the translation alone: nothing here is kept, started or changed.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Sequence

from stickyroute.errors import ConfigError
from stickyroute.fleet import (
    BackendSpec,
    Fleet,
    FleetRules,
    HealthRules,
    RoomRules,
    Tuning,
    WarningRules,
)
from stickyroute.http.limits import Limits
from stickyroute.routing.keys import Needs
from stickyroute.routing.router import Router
from stickyroute.settings import BackendSettings, Settings, TlsSettings
from stickyroute.watch.exact_mode import ExactMode
from stickyroute.watch.kv_events import KvSource, kv_sources

__all__ = [
    "backend_specs",
    "exact_mode",
    "exact_sources",
    "gateway_keys",
    "limits_of",
    "listener_tls",
    "load_certificate",
    "rules_of",
    "tuning_of",
]

log = logging.getLogger(__name__)


def backend_specs(settings: Settings) -> list[BackendSpec]:
    """The backends that the settings name, as the fleet wants them."""
    return [_spec(backend) for backend in settings.backends]


def _spec(backend: BackendSettings) -> BackendSpec:
    url = backend.address
    return BackendSpec(
        name=backend.name,
        scheme=url.scheme,
        host=url.host,
        port=url.port,
        base_path=url.base_path,
        weight=backend.weight,
        api_key=backend.api_key.get_secret_value() if backend.api_key is not None else None,
        ca=str(backend.ca) if backend.ca is not None else None,
        tls_verify=backend.tls_verify,
        models=backend.models,
        max_in_flight=backend.max_in_flight,
        engine=backend.engine,
    )


def tuning_of(settings: Settings) -> Tuning:
    """Where the fleet's learning starts."""
    sticky = settings.sticky
    return Tuning(
        index_entries=sticky.index_entries,
        prefill_tokens_s=sticky.prefill_tokens_s,
        kv_tokens=sticky.kv_tokens,
        bytes_per_token=sticky.bytes_per_token,
        kappa=sticky.kappa,
    )


def rules_of(settings: Settings) -> FleetRules:
    """When a backend is out, and how much room it has."""
    health, room = settings.health, settings.room
    return FleetRules(
        health=HealthRules(
            rise=health.rise,
            fall=health.fall,
            eject_after=health.eject_after,
            silent_after=health.silent_after,
            eject_first_s=health.eject_first_s,
            eject_last_s=max(health.eject_first_s, health.eject_last_s),
            recover=health.recover,
            panic=health.panic,
        ),
        room=RoomRules(
            kv_mark=room.kv_mark,
            waiting_mark=room.waiting_mark,
            waiting_full=room.waiting_full,
            floor=room.floor,
            cool_down_s=room.cool_down_s,
            sample_limit_s=3 * settings.scrape.interval_s,
            slow_start_s=room.slow_start_s,
        ),
        warnings=WarningRules(kv_mark=room.kv_mark),
    )


def gateway_keys(settings: Settings) -> dict[bytes, str]:
    """The keys that clients may use, and the name of each."""
    return {key.key.get_secret_value().encode(): key.name for key in settings.api_keys}


def exact_sources(fleet: Fleet, settings: Settings, router: Router) -> tuple[KvSource, ...]:
    """The publishers of KV events that are followed: none unless the policy reads the index they correct."""
    return tuple(_sources(fleet, settings)) if router.needs & Needs.CHAIN == Needs.CHAIN else ()


def _sources(fleet: Fleet, settings: Settings) -> Iterator[KvSource]:
    for backend in settings.backends:
        events, present = backend.events, fleet.find(backend.name)
        if events is not None and present is not None:
            where = (events.endpoint, events.replay, events.topic, events.ranks)
            yield from kv_sources(present.slot, backend.name, *where)


def exact_mode(fleet: Fleet, settings: Settings, sources: Sequence[KvSource]) -> ExactMode | None:
    """Exact mode over `sources`; None without any. Raises ConfigError without the packages it needs."""
    if not sources:
        if any(backend.events is not None for backend in settings.backends):
            log.warning(
                "backends have events, but the policy %s does not look at what is cached", settings.policy
            )
        return None
    exact = settings.exact
    return ExactMode(
        fleet, sources, limit_blocks=exact.blocks, check_s=exact.check_s, tokenize=exact.tokenize
    )


def limits_of(settings: Settings) -> Limits:
    """The data plane's limits."""
    sizes, times = settings.limits, settings.timeouts
    return Limits(
        body_bytes=sizes.body_bytes,
        head_bytes=sizes.head_bytes,
        max_connections=sizes.max_connections,
        pipelined=sizes.pipelined,
        connect_s=times.connect_s,
        response_header_s=times.response_header_s,
        stream_idle_s=times.stream_idle_s,
        client_head_s=times.client_head_s,
        client_body_s=times.client_body_s,
        client_idle_s=times.client_idle_s,
        client_write_s=times.client_write_s,
        upstream_idle_s=times.upstream_idle_s,
    )


def listener_tls(settings: Settings) -> ssl.SSLContext | None:
    """TLS of the public port; None for plain HTTP. Raises ConfigError for a certificate that is none."""
    if settings.tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, settings.tls)
    context.set_alpn_protocols(["http/1.1"])
    return context


def load_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """From the next handshake on `context` shows this certificate. Raises ConfigError, and then nothing changed."""
    try:
        # Into one of nobody's first: a chain that loads with a key that does not would leave half of each.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key)
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"tls: cannot load {tls.cert} and {tls.key}: {exc}; give a PEM chain and its key"
        ) from exc
