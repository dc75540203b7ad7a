"""What a trace tells of a request, taken from its exchange when it is over.

Owns the names of attributes: OpenTelemetry's own where it has one, else `stickyroute.`. No prompt, key or header gets
there; the affinity key is its hash.
"""

from __future__ import annotations

from time import time_ns

from stickyroute.http.words import COMPLETE, REFUSED
from stickyroute.openai.usage import Usage
from stickyroute.proxy.exchange import Exchange
from stickyroute.tracing import Finished, Tracer

__all__ = ["Traced"]


class Traced:
    """An observer of exchanges, for `tracer`."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, exchange: Exchange, end: str, now_s: float, usage: Usage | None) -> None:
        trace = exchange.trace
        if trace is None:
            return
        request, keys, lease = exchange.request, exchange.keys, exchange.lease
        method = request.method.decode("latin-1")
        status = exchange.status
        key = None if keys.affinity is None else f"{keys.affinity:016x}"
        expected = None
        if lease is not None and keys.chain:
            expected = round(lease.tokens - lease.missing_tokens)
        tokens = {
            "gen_ai.usage.input_tokens": None if usage is None else usage.prompt_tokens,
            "gen_ai.usage.output_tokens": None if usage is None else usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": None if usage is None else usage.cached_tokens,
        }
        self._tracer.finish(
            Finished(
                trace=trace,
                name=f"{method} {exchange.route.template}",
                wall_ns=time_ns(),
                now_s=now_s,
                started_s=request.started_s,
                first_token_s=exchange.first_token_s if exchange.streams else 0.0,
                failed=status >= 500 or end not in (COMPLETE, REFUSED),
                attributes={
                    "http.request.method": method,
                    "http.route": exchange.route.template,
                    "http.response.status_code": status or None,
                    "client.address": exchange.client.peer,
                    "gen_ai.request.model": exchange.model,
                    "stickyroute.request_id": request.request_id.decode("latin-1"),
                    "stickyroute.pool": exchange.pool.label,
                    "stickyroute.attempts": exchange.attempts,
                    "stickyroute.end": end,
                    **tokens,
                },
                decision={
                    "stickyroute.reason": exchange.reason or None,
                    "stickyroute.key": key,
                    "stickyroute.key_source": keys.source or None,
                    "stickyroute.expected_cached_tokens": expected,
                },
                stream=tokens,
            )
        )
