"""The end of an exchange in the books: its lease, what its reply told of tokens, the counters, the log line.

Owns no decision and sends nothing; each exchange comes here once, however it ended. Whoever else wants to know
of it (decisions, doctor, traces) is an observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time

from stickyroute.accesslog import AccessLog
from stickyroute.clock import monotonic
from stickyroute.defaults import BYTES_PER_TOKEN
from stickyroute.fleet import Fleet, Lease
from stickyroute.http.words import COMPLETE
from stickyroute.metrics import Metrics
from stickyroute.openai.routes import Shape
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

    __slots__ = ("_access_log", "_fleet", "_metrics", "_observers", "_tells_cached")

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
        # Who was heard to tell cached tokens: the backend's name by slot and API.
        self._tells_cached: dict[tuple[int, Shape], str] = {}

    def close(self, exchange: Exchange, end: str) -> None:
        """The exchange is over; `end` is a word of `http.relay`."""
        request = exchange.request
        now_s = monotonic()
        duration_s = now_s - request.started_s
        backend = self._fleet.at(exchange.slot).name if exchange.slot >= 0 else ""
        lease, usage, expected = exchange.lease, None, None
        if end == COMPLETE and 200 <= exchange.status < 300:
            usage = exchange.usage()
            if usage is not None and lease is not None:
                usage = self._learn(exchange, lease, usage, backend, now_s)
                if lease.keys.chain and lease.tokens:
                    # A part of the prompt, so that an error in its estimated length is not taken for one in the index.
                    expected = usage.prompt_tokens * (1.0 - lease.missing_tokens / lease.tokens)
            exchange.release(now_s)
        else:
            exchange.release()
        ttft_s = inter_token_s = None
        prompt_tokens = 0.0
        if exchange.streams:
            # Where replies are not looked at, the first byte has to do; a stream that is searched still had no token.
            began_s = exchange.first_token_s or (0.0 if exchange.looking else exchange.first_byte_s)
            if began_s:
                ttft_s = began_s - request.started_s
                prompt_tokens = _prompt_tokens(exchange, lease, usage)
                if usage is not None and usage.completion_tokens is not None and usage.completion_tokens > 1:
                    inter_token_s = (now_s - began_s) / (usage.completion_tokens - 1)
        template, pool = exchange.route.template, exchange.pool.label
        self._metrics.record(
            pool, backend, template, exchange.status, exchange.reason, ttft_s, duration_s,
            request.wire_bytes, exchange.bytes_out, inter_token_s, prompt_tokens, usage, expected,
        )  # fmt: skip
        if end != COMPLETE:
            if end.startswith("client"):
                self._metrics.client_disconnects += 1
            elif end.startswith("upstream"):
                self._metrics.upstream_failures(backend, end)
        if self._access_log is not None:
            told = (None, None, None) if usage is None else usage[:3]
            self._access_log.add((
                time(), request.request_id, exchange.client.peer, request.method, template, exchange.model, pool,
                exchange.keys.affinity, exchange.keys.source, backend, exchange.reason, exchange.attempts,
                exchange.status, ttft_s, duration_s, request.wire_bytes, exchange.bytes_out, told[0], told[1],
                _believed(lease) if expected is None else expected, told[2], end,
            ))  # fmt: skip
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

    def _learn(self, exchange: Exchange, lease: Lease, usage: Usage, backend: str, now_s: float) -> Usage:
        """Tell the fleet, where somebody goes by it, what a whole reply says of its tokens; returns it completed."""
        cached = usage.cached_tokens
        if cached is None or cached:
            tells = (exchange.slot, exchange.route.shape)
            if cached:
                self._tells_cached[tells] = backend
            elif self._tells_cached.get(tells) == backend:
                # Older engines leave the field out where there were none.
                usage = usage._replace(cached_tokens=0)
        if exchange.learns:
            lease.usage(usage, now_s)
        return usage


def _believed(lease: Lease | None) -> float | None:
    """How many of the prompt's tokens were believed to be cached, by its estimated length; None where nobody looked."""
    if lease is None or not lease.keys.chain:
        return None
    return lease.tokens - lease.missing_tokens


def _prompt_tokens(exchange: Exchange, lease: Lease | None, usage: Usage | None) -> float:
    """The length of the prompt: as told, as estimated, or as the request's size suggests."""
    if usage is not None:
        return usage.prompt_tokens
    if lease is not None and lease.tokens:
        return lease.tokens
    return exchange.request.wire_bytes / BYTES_PER_TOKEN
