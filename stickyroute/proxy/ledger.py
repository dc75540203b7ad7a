"""The end of an exchange in the books: its lease, what its reply told of tokens, the counters, the log line.

Owns no decision and sends nothing; each exchange comes here once, however it ended.
"""

from __future__ import annotations

from stickyroute.accesslog import AccessLog
from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.http.relay import COMPLETE
from stickyroute.metrics import Metrics
from stickyroute.proxy.exchange import Exchange


class Ledger:
    """Closes exchanges; `access_log` is None where none is written."""

    __slots__ = ("_access_log", "_fleet", "_metrics")

    def __init__(self, fleet: Fleet, metrics: Metrics, access_log: AccessLog | None) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._access_log = access_log

    def close(self, exchange: Exchange, end: str) -> None:
        """The exchange is over; `end` is a word of `http.relay`."""
        request = exchange.request
        now_s = monotonic()
        duration_s = now_s - request.started_s
        backend = self._fleet.backends[exchange.slot].name if exchange.slot >= 0 else ""
        if end is COMPLETE and 200 <= exchange.status < 300:
            self._take_usage(exchange, backend, now_s)
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

    def _take_usage(self, exchange: Exchange, backend: str, now_s: float) -> None:
        """Tell the fleet, and count, what a whole reply says of its tokens."""
        usage, lease = exchange.usage(), exchange.lease
        if usage is None or lease is None:
            return
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
