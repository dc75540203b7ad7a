"""What tells of the process to the outside, as one object: the access log, traces, the loop's lag, and where the
metrics find figures that others keep.

Owns their making from the settings, their start and their end.
"""

from __future__ import annotations

import asyncio

from stickyroute.accesslog import AccessLog
from stickyroute.live.live import Live
from stickyroute.metrics import ConfigFigures, LoopLag, Metrics, Prices
from stickyroute.proxy import Observer, Proxy
from stickyroute.proxy.traced import Traced
from stickyroute.settings import Settings
from stickyroute.tracing import Tracer, build_exporter

__all__ = ["Telemetry"]


class Telemetry:
    """Of one app. `open` before the proxy is made, `watch` once it is."""

    def __init__(self, settings: Settings, metrics: Metrics, live: Live) -> None:
        self._live = live
        self._metrics = metrics
        self._lag: LoopLag | None = None
        self.access_log: AccessLog | None = None
        self.tracer: Tracer | None = None
        self._retune(settings)
        metrics.sources.config = self._config
        live.on_change.append(self._retune)

    def open(self, settings: Settings) -> tuple[Observer, ...]:
        """Open the access log and begin to trace, where they are on; returns the observers of exchanges.

        Raises ConfigError.
        """
        sources = self._metrics.sources
        if settings.access_log != "off":
            log = self.access_log = AccessLog(
                settings.access_log, settings.access_log_path, settings.access_log_sample
            )
            sources.log_lines_dropped = lambda: log.dropped
        if not settings.tracing.enabled:
            return ()
        tracing = settings.tracing
        tracer = self.tracer = Tracer(build_exporter(tracing.endpoint), tracing.sample, tracing.queue)
        sources.spans_dropped = lambda: tracer.dropped
        return (Traced(tracer),)

    def watch(self, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        """The proxy is there: trace what goes through it, and look at its loop."""
        proxy.tracer = self.tracer
        self._metrics.sources.held_requests = lambda: len(proxy.hold)
        self._lag = LoopLag(loop, self._metrics.lag)
        self._lag.start()

    async def close(self) -> None:
        """Let what is left be written and sent, without holding the loop for it."""
        if self._lag is not None:
            self._lag.stop()
        ends = [part.close for part in (self.access_log, self.tracer) if part is not None]
        await asyncio.gather(*(asyncio.to_thread(end) for end in ends))

    def _config(self) -> ConfigFigures:
        live = self._live
        return ConfigFigures(
            live.generation, live.applied, live.refused, live.loaded_at_s, live.last_error is not None
        )

    def _retune(self, settings: Settings) -> None:
        prices = settings.prices
        per_token = {model: price / 1e6 for model, price in prices.input_per_million.items()}
        self._metrics.price(Prices(per_token, prices.cache_read, prices.cache_write))
        if self.access_log is not None:
            self.access_log.retune(settings.access_log_sample)
