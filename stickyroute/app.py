"""The composition root: builds every part from the settings, owns their start and their stop.

`App` is used in-process by the demo, the tests and the benchmark; `run` is the whole life of `stickyroute
serve`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import ssl
import sys

import uvloop
from aiohttp import web

from stickyroute import __version__
from stickyroute.accesslog import AccessLog
from stickyroute.control import Deps, build_admin
from stickyroute.control.insight import Insight
from stickyroute.errors import ConfigError
from stickyroute.fleet import BackendSpec, Fleet, Tuning
from stickyroute.http.limits import Limits
from stickyroute.http.pool import BackendPool
from stickyroute.http.server import Server
from stickyroute.http.sweeper import Sweeper
from stickyroute.metrics import Metrics
from stickyroute.openai.routes import RouteTable
from stickyroute.proxy import Front, Observer, Proxy, Target, Witness
from stickyroute.proxy.explain import Explainer
from stickyroute.routing.affinity import build_affinity
from stickyroute.routing.keys import Needs
from stickyroute.routing.policies import build_policy
from stickyroute.routing.router import Router
from stickyroute.settings import BackendSettings, Settings
from stickyroute.watch.exact_mode import ExactMode
from stickyroute.watch.kv_events import kv_sources
from stickyroute.watch.models import ModelsWatch
from stickyroute.watch.scrape import ScrapeWatch

log = logging.getLogger("stickyroute")

# Clients get an answer from the first moment: how long start-up waits for backends to tell their models.
_FIRST_ROUND_S = 1.5


class App:
    """One stickyroute process. `start` opens both ports, `stop` closes them in good order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        specs = [_spec(backend) for backend in settings.backends]
        self.fleet = Fleet(specs, settings.ring.vnodes, _tuning(settings))
        self.metrics = Metrics(self.fleet, __version__)
        self.insight = Insight(settings, self.fleet)
        self.observers: list[Observer] = [*self.insight.observers]  # of an exchange that is over
        self.witnesses: list[Witness] = [*self.insight.witnesses]  # of one that was sent
        self.port = 0
        self.admin_port = 0
        self._access_log: AccessLog | None = None
        self._pools: list[BackendPool] = []
        self._server: Server | None = None
        self._explainer: Explainer | None = None
        self._sweeper: Sweeper | None = None
        self._watch: ModelsWatch | None = None
        self._scrape: ScrapeWatch | None = None
        self._exact: ExactMode | None = None
        self._admin: web.AppRunner | None = None
        self._stopping = False

    async def start(self) -> None:
        """Open the admin port, ask the backends for their models (briefly), then open the public port.

        Raises OSError when a port cannot be bound and ConfigError when a certificate cannot be read.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        limits = _limits(settings)
        listener_tls = _listener_tls(settings)
        self._sweeper = sweeper = Sweeper(loop, limits.tick_s)
        self._access_log = (
            AccessLog(settings.access_log, settings.access_log_path) if settings.access_log != "off" else None
        )
        targets = [self._target(loop, spec, limits) for spec in (b.spec for b in self.fleet.backends)]
        for pool in self._pools:
            sweeper.add(pool)
        routes = RouteTable(settings.extra_routes)
        front = Front(
            self.fleet,
            routes,
            self.metrics,
            self._access_log,
            {k.key.get_secret_value().encode(): k.name for k in settings.api_keys},
            frozenset(settings.cors.allow_origins),
        )
        router = Router(build_policy(settings), random.Random())
        self._exact = _exact_mode(self.fleet, settings, router)
        proxy = Proxy(
            settings,
            self.fleet,
            targets,
            routes,
            build_affinity(settings, router.needs),
            router,
            front,
            self.metrics,
            self._access_log,
            self._exact.offer if self._exact is not None else None,
            tuple(self.observers),
            tuple(self.witnesses),
        )
        self._explainer = Explainer(proxy, self.fleet, front)
        self._server = server = Server(loop, limits, sweeper, proxy.handle, front.refuse)
        self._watch = ModelsWatch(self.fleet, interval_s=settings.models_interval_s)
        self._scrape = ScrapeWatch(
            self.fleet,
            self.fleet.record_sample,
            interval_s=settings.scrape.interval_s,
            timeout_s=settings.scrape.timeout_s,
        )
        try:
            await self._open_admin()
            self._watch.start()
            self._scrape.start()
            if self._exact is not None:
                self._exact.start()
            await self._watch.first_round(_FIRST_ROUND_S)
            sweeper.start()
            host, port = settings.listen_address
            try:
                self.port = await server.listen(host, port, listener_tls)
            except OSError as exc:
                raise _not_opened("listen", settings.listen, exc) from exc
        except BaseException:
            await self.stop(0.0)
            raise

    async def stop(self, grace_s: float | None = None) -> int:
        """Accept no more, let running replies finish for `grace_s` seconds (default: the setting), close
        everything.

        Returns how many connections had to be cut.
        """
        self._stopping = True
        dropped = 0
        if self._server is not None:
            dropped = await self._server.shut_down(
                self.settings.timeouts.shutdown_s if grace_s is None else grace_s
            )
        for watch in (self._watch, self._scrape, self._exact):
            if watch is not None:
                await watch.stop()
        for pool in self._pools:
            await pool.close()
        if self._sweeper is not None:
            self._sweeper.stop()
        if self._admin is not None:
            await self._admin.cleanup()
        if self._access_log is not None:
            self._access_log.close()
        return dropped

    async def _open_admin(self) -> None:
        exact = self._exact.state if self._exact is not None else None
        runner = web.AppRunner(
            build_admin(
                Deps(
                    fleet=self.fleet,
                    explainer=self._explainer,
                    decisions=self.insight.decisions,
                    metrics=self.metrics,
                    settings=lambda: self.settings,
                    is_stopping=lambda: self._stopping,
                    exact=exact,
                )
            ),
            access_log=None,
        )
        await runner.setup()
        self._admin = runner
        host, port = self.settings.admin_address
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as exc:
            raise _not_opened("admin_listen", self.settings.admin_listen, exc) from exc
        self.admin_port = int(runner.addresses[0][1])

    def _target(self, loop: asyncio.AbstractEventLoop, spec: BackendSpec, limits: Limits) -> Target:
        pool = BackendPool(loop, spec.name, spec.host, spec.port, _backend_tls(spec), limits)
        self._pools.append(pool)
        host = f"[{spec.host}]" if ":" in spec.host else spec.host
        usual = 443 if spec.scheme == "https" else 80
        authority = host if spec.port == usual else f"{host}:{spec.port}"
        credential = f"Authorization: Bearer {spec.api_key}\r\n".encode() if spec.api_key else None
        return Target(
            pool, spec.base_path.rstrip("/").encode(), f"Host: {authority}\r\n".encode(), credential
        )


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, then shut down gracefully. Returns the process's exit code."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        return uvloop.run(_serve(settings))
    except (OSError, ConfigError) as exc:
        print(f"stickyroute: {exc}", file=sys.stderr)
        return 2


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    app = App(settings)
    await app.start()
    # What exists now lives as long as the process: out of the collector's sight, full collections stay short.
    gc.collect()
    gc.freeze()
    log.info(
        "listening on %s (port %d), admin on %s (port %d), %d backends, policy %s",
        settings.listen, app.port, settings.admin_listen, app.admin_port, len(settings.backends),
        settings.policy,
    )  # fmt: skip
    number = await signals.get()
    log.info("%s: finishing running replies, up to %g s", number.name, settings.timeouts.shutdown_s)
    stopping = asyncio.create_task(app.stop(), name="stop")
    again = asyncio.create_task(signals.get(), name="second signal")
    await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not stopping.done():
        log.warning("second signal: cutting what still runs")
        stopping.cancel()
        await asyncio.wait({stopping})
        await app.stop(0.0)
        return 1
    dropped = stopping.result()
    if dropped:
        log.warning("stopped; %d connections were cut at the limit", dropped)
    else:
        log.info("stopped")
    return 0


def _not_opened(setting: str, address: str, exc: OSError) -> OSError:
    """Why a port could not be opened, in the operator's words: asyncio's name a socket, not the setting."""
    # A name that cannot be resolved has a negative number of getaddrinfo's and a text of its own.
    why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
    return OSError(f"{setting}: {address} cannot be opened: {why}")


def _spec(backend: BackendSettings) -> BackendSpec:
    """A backend of the settings as the fleet wants it."""
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
    )


def _tuning(settings: Settings) -> Tuning:
    sticky = settings.sticky
    return Tuning(
        index_entries=sticky.index_entries,
        prefill_tokens_s=sticky.prefill_tokens_s,
        kv_tokens=sticky.kv_tokens,
        bytes_per_token=sticky.bytes_per_token,
        kappa=sticky.kappa,
    )


def _exact_mode(fleet: Fleet, settings: Settings, router: Router) -> ExactMode | None:
    """Exact mode, if a backend publishes KV events and the policy reads the index they correct."""
    given = [
        (slot, backend, backend.events)
        for slot, backend in enumerate(settings.backends)
        if backend.events is not None
    ]
    if not given:
        return None
    if router.needs & Needs.CHAIN != Needs.CHAIN:
        log.warning(
            "backends have events, but the policy %s does not look at what is cached", settings.policy
        )
        return None
    sources = [
        source
        for slot, backend, events in given
        for source in kv_sources(
            slot, backend.name, events.endpoint, events.replay, events.topic, events.ranks
        )
    ]
    exact = settings.exact
    return ExactMode(
        fleet, sources, limit_blocks=exact.blocks, check_s=exact.check_s, tokenize=exact.tokenize
    )


def _limits(settings: Settings) -> Limits:
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


def _listener_tls(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.tls
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"tls: cannot load {tls.cert} and {tls.key}: {exc}; give a PEM chain and its key"
        ) from exc
    context.set_alpn_protocols(["http/1.1"])
    return context


def _backend_tls(spec: BackendSpec) -> ssl.SSLContext | None:
    if spec.scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=spec.ca)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"backend {spec.name}: cannot read the CA file {spec.ca}: {exc}") from exc
    if not spec.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
