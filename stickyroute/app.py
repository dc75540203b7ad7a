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
import sys

import uvloop
from aiohttp import web

from stickyroute import __version__
from stickyroute.build import version_words
from stickyroute.control import Deps, build_admin
from stickyroute.control.insight import Insight
from stickyroute.errors import ConfigError
from stickyroute.fleet import Fleet
from stickyroute.http.server import Server
from stickyroute.http.sweeper import Sweeper
from stickyroute.live.build import backend_specs, gateway_keys, limits_of, listener_tls, rules_of, tuning_of
from stickyroute.live.live import Live, Origin, Parts
from stickyroute.live.reload import Reloader
from stickyroute.live.targets import Targets
from stickyroute.live.telemetry import Telemetry
from stickyroute.live.watches import Watches
from stickyroute.metrics import Metrics
from stickyroute.openai.routes import RouteTable
from stickyroute.proxy import Front, Observer, Proxy, Witness
from stickyroute.proxy.explain import Explainer
from stickyroute.routing.affinity import build_affinity
from stickyroute.routing.policies import build_policy
from stickyroute.routing.router import Router
from stickyroute.settings import Settings
from stickyroute.watch.discovery import DiscoveryWatch
from stickyroute.watch.watching import FleetWatch

log = logging.getLogger("stickyroute")

# Clients get an answer from the first moment: how long start-up waits for backends to tell their models.
_FIRST_ROUND_S = 1.5
_SWITCH_S = (
    0.0005  # how long a thread that reads a configuration may keep the loop waiting, a tenth of the usual
)


class App:
    """One stickyroute process. `start` opens both ports, `stop` closes them in good order.

    `live` is how it is changed while it runs; `origin` is where its settings are read again from.
    """

    def __init__(self, settings: Settings, origin: Origin | None = None) -> None:
        self.live = Live(settings, origin)
        self.fleet = Fleet(
            backend_specs(settings), settings.ring.vnodes, tuning_of(settings), rules_of(settings)
        )
        self.metrics = Metrics(self.fleet, __version__)
        self.telemetry = Telemetry(settings, self.metrics, self.live)
        self.insight = Insight(settings, self.fleet, self.metrics)
        self.live.on_change.append(self.insight.retune)
        self.metrics.sources.discovery = self.live.discovery_figures
        self.observers: list[Observer] = [*self.insight.observers]  # of an exchange that is over
        self.witnesses: list[Witness] = [*self.insight.witnesses]  # of one that was sent
        self.port = 0
        self.admin_port = 0
        self.reloader = Reloader(self.live)
        self._targets: Targets | None = None
        self._server: Server | None = None
        self._proxy: Proxy | None = None
        self._explainer: Explainer | None = None
        self._sweeper: Sweeper | None = None
        self._watches: Watches | None = None
        self._discovery: DiscoveryWatch | None = None
        self._admin: web.AppRunner | None = None
        self._stopping = False

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self.live.settings

    async def start(self) -> None:
        """Open the admin port, look for backends and ask them for their models (briefly), then open the public
        port.

        Raises OSError when a port cannot be bound and ConfigError when a certificate cannot be read.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        limits = limits_of(settings)
        tls = listener_tls(settings)
        self._sweeper = sweeper = Sweeper(loop, limits.tick_s)
        self.observers += self.telemetry.open(settings)
        access_log = self.telemetry.access_log
        self._targets = targets = Targets(loop, limits, sweeper)
        targets.put(self.fleet.backends, targets.prepare(b.spec for b in self.fleet.backends))
        routes = RouteTable(settings.extra_routes)
        front = Front(
            self.fleet,
            routes,
            self.metrics,
            access_log,
            gateway_keys(settings),
            frozenset(settings.cors.allow_origins),
        )
        router = Router(build_policy(settings), random.Random())
        fleet_watch = FleetWatch(self.fleet, settings, targets.contexts)
        self._watches = watches = Watches(self.fleet, settings, router, fleet_watch)
        affinity = build_affinity(settings, router.needs)
        self._proxy = proxy = Proxy(
            settings,
            self.fleet,
            targets.by_slot,
            routes,
            affinity,
            router,
            front,
            self.metrics,
            access_log,
            watches.exact.offer if watches.exact is not None else None,
            tuple(self.observers),
            tuple(self.witnesses),
        )
        fleet_watch.answered_s = proxy.blame.answered_s
        self.telemetry.watch(proxy, loop)
        self._explainer = Explainer(proxy, self.fleet, front)
        self.insight.shadow.rule = lambda: proxy.affinity
        self._server = server = Server(loop, limits, sweeper, proxy.handle, front.refuse)
        self._discovery = discovery = DiscoveryWatch(self.fleet, self.live.refound)
        discovery.prepare(settings.discovery).follow()
        self.live.attach(
            Parts(
                fleet=self.fleet,
                proxy=proxy,
                front=front,
                affinity=affinity,
                router=router,
                targets=targets,
                limits=limits,
                sweeper=sweeper,
                listener_tls=tls,
                watches=watches,
                discovery=discovery,
            )
        )
        try:
            await self._open_admin()
            watches.start()
            self.insight.start()
            discovery.start()
            if settings.discovery:
                await discovery.first_round(_FIRST_ROUND_S)
                await self.live.refound()
            await fleet_watch.first_round(_FIRST_ROUND_S)
            sweeper.start()
            self.reloader.start()
            host, port = settings.listen_address
            try:
                self.port = await server.listen(host, port, tls)
            except OSError as exc:
                raise _not_opened("listen", settings.listen, exc) from exc
            self.live.serving = True
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
        await self.reloader.stop()
        if self._discovery is not None:
            await self._discovery.stop()
        if self._proxy is not None:
            self._proxy.close()
        if self._server is not None:
            dropped = await self._server.shut_down(
                self.settings.timeouts.shutdown_s if grace_s is None else grace_s
            )
        if self._watches is not None:
            await self._watches.stop()
        await self.insight.stop()
        if self._targets is not None:
            await self._targets.close()
        if self._sweeper is not None:
            self._sweeper.stop()
        if self._admin is not None:
            await self._admin.cleanup()
        await self.telemetry.close()
        return dropped

    async def _open_admin(self) -> None:
        assert self._watches is not None
        runner = web.AppRunner(
            build_admin(
                Deps(
                    fleet=self.fleet,
                    explainer=self._explainer,
                    decisions=self.insight.decisions,
                    doctor=self.insight.doctor,
                    config=self.live,
                    metrics=self.metrics,
                    settings=lambda: self.settings,
                    is_stopping=lambda: self._stopping,
                    exact=self._watches.exact_state,
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


def run(settings: Settings, origin: Origin | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then shut down gracefully; on SIGHUP read the configuration again from
    `origin`. Returns the process's exit code."""
    logging.basicConfig(
        level=settings.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        sys.setswitchinterval(_SWITCH_S)
        return uvloop.run(_serve(settings, origin))
    except (OSError, ConfigError) as exc:
        print(f"stickyroute: {exc}", file=sys.stderr)
        return 2


async def _serve(settings: Settings, origin: Origin | None) -> int:
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    app = App(settings, origin)
    loop.add_signal_handler(signal.SIGHUP, app.reloader.soon)
    await app.start()
    # What exists now lives as long as the process: out of the collector's sight, full collections stay short.
    gc.collect()
    gc.freeze()
    log.info(
        "stickyroute %s listening on %s (port %d), admin on %s (port %d), %d backends, policy %s",
        version_words(), settings.listen, app.port, settings.admin_listen, app.admin_port, len(app.fleet.backends),
        settings.policy,
    )  # fmt: skip
    number = await signals.get()
    log.info("%s: finishing running replies, up to %g s", number.name, app.settings.timeouts.shutdown_s)
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
