"""The end of an exchange in the books: its lease, what its reply told of tokens, the counters, the log line.

Owns no decision and sends nothing; each exchange comes here once, however it ended. Whoever else wants to know
of it (decisions, doctor, traces) is an observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stickyroute.accesslog import AccessLog
from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.http.relay import COMPLETE
from stickyroute.metrics import Metrics
from stickyroute.openai.usage import Usage
from stickyroute.proxy.exchange import Exchange

log = logging.getLogger(__name__)

Observer = Callable[[Exchange, str, float, Usage | None], None]
"""Hears of an exchange that is over: how it ended (a word of `http.relay`), when, and what its reply said of
its tokens, if it was whole and said so. Must cost microseconds and keep nothing of the exchange."""


class Ledger:
    """Closes exchanges; `access_log` is None where none is written.

    An observer that raises is logged and not called again: what watches must never break what it watches.
    """

    __slots__ = ("_access_log", "_fleet", "_metrics", "_observers")

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        access_log: AccessLog | None,
        observers: tuple[Observer, ...] = (),
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._access_log = access_log
        self._observers = observers

    def close(self, exchange: Exchange, end: str) -> None:
        """The exchange is over; `end` is a word of `http.relay`."""
        request = exchange.request
        now_s = monotonic()
        duration_s = now_s - request.started_s
        backend = self._fleet.at(exchange.slot).name if exchange.slot >= 0 else ""
        lease, usage = exchange.lease, None
        if end is COMPLETE and 200 <= exchange.status < 300:
            usage = self._take_usage(exchange, backend, now_s)
            exchange.release(now_s)
        else:
            exchange.release()
        ttft_s = None
        if exchange.streams and exchange.first_byte_s:
            ttft_s = exchange.first_byte_s - request.started_s
        template, pool = exchange.route.template, exchange.pool.label
        sizes = request.wire_bytes, exchange.bytes_out
        self._metrics.record(
            pool, backend, template, exchange.status, exchange.reason, ttft_s, duration_s, *sizes
        )
        if end is not COMPLETE:
            if end.startswith("client"):
                self._metrics.client_disconnects += 1
            elif end.startswith("upstream"):
                self._metrics.upstream_failures(backend, end)
        if self._access_log is not None:
            self._access_log.write(
                request_id=request.request_id,
                peer=exchange.client.peer,
                method=request.method,
                route=template,
                model=exchange.model,
                pool=pool,
                key=exchange.keys.affinity,
                key_source=exchange.keys.source,
                backend=backend,
                reason=exchange.reason,
                attempts=exchange.attempts,
                status=exchange.status,
                ttft_s=ttft_s,
                duration_s=duration_s,
                bytes_in=request.wire_bytes,
                bytes_out=exchange.bytes_out,
                end=end,
            )
        if self._observers:
            exchange.lease = lease  # released, but what was believed of the prompt stands in it
            self._tell(exchange, end, now_s, usage)

    def _tell(self, exchange: Exchange, end: str, now_s: float, usage: Usage | None) -> None:
        for observer in self._observers:
            try:
                observer(exchange, end, now_s, usage)
            except Exception:
                log.exception("an observer of requests failed and is not asked again")
                self._observers = tuple(other for other in self._observers if other is not observer)

    def _take_usage(self, exchange: Exchange, backend: str, now_s: float) -> Usage | None:
        """Tell the fleet, and count, what a whole reply says of its tokens."""
        usage, lease = exchange.usage(), exchange.lease
        if usage is None or lease is None:
            return usage
        lease.usage(usage, now_s)
        if usage.cached_tokens is not None:
            # A part of the prompt, so that an error in its estimated length is not taken for one in the index.
            part = 1.0 - lease.missing_tokens / lease.tokens if lease.tokens else 0.0
            self._metrics.prompt(
                exchange.pool.label,
                backend,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.prompt_tokens * part,
            )
        return usage
