"""Traces of requests for OpenTelemetry: what travels in `traceparent`, and spans made in a thread of their own.

Owns the queue, the thread and the shape of spans. A finished request costs one tuple on the queue; span objects,
their attributes and the sending are the thread's. The queue is bounded: what does not fit, or cannot be sent, is
counted. Off costs nothing: the composition root builds no Tracer then, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import logging
import os
import random
import re
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stickyroute.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["Finished", "Trace", "Tracer", "build_exporter"]

log = logging.getLogger(__name__)

BATCH_SPANS = 512
SPANS_EACH = 4
"""Spans of a request that nothing went wrong with and that streams: itself, decide, attempt, stream."""
FLUSH_S = 2.0
"""Longest time a span waits in the queue while the exporter keeps up."""
STOP_TIMEOUT_S = 2.0

_PARENT = re.compile(rb"[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[^ \t]*)?[ \t]*")
_SAMPLED = 1


@dataclass(slots=True)
class Attempt:
    """One attempt: its span's id, the backend's name, and when it began (monotonic seconds)."""

    span_id: int
    backend: str
    began_s: float


@dataclass(slots=True)
class Trace:
    """One request that is traced. `parent_id` is the client's span, 0 for a trace that begins here."""

    trace_id: int
    parent_id: int
    span_id: int
    began_s: float
    attempts: list[Attempt] = field(default_factory=list)


class Finished(NamedTuple):
    """A traced request that is over. `wall_ns` (Unix time) and `now_s` (monotonic) are the same moment; `name` the
    route's, `attributes` of the whole request, `decision` of the decision, `stream` of the stream."""

    trace: Trace
    name: str
    wall_ns: int
    now_s: float
    started_s: float
    first_token_s: float
    failed: bool
    attributes: dict[str, Any]
    decision: dict[str, Any]
    stream: dict[str, Any]


class Tracer:
    """Begins traces, and sends what they come to through `exporter`. `sample` is the share of requests, 0 to 1, that
    begin one; who brings a sampled `traceparent` is always traced, who brings one that is not is never.

    `limit` spans may wait. `close` sends what is left.
    """

    def __init__(self, exporter: SpanExporter, sample: float = 1.0, limit: int = 8192) -> None:
        from opentelemetry.sdk.resources import Resource

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        self._resource = Resource.create({} if named else {"service.name": "stickyroute"})
        self._exporter = exporter
        self._sample = sample
        self._limit = max(1, limit // SPANS_EACH)  # requests
        self._rand = random.Random()
        self._unqueued = 0  # spans, counted on the loop
        self._unsent = 0  # spans, counted by the thread
        self._queue: deque[Finished] = deque()
        self._some = threading.Event()
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    # On the loop.

    def begin(self, traceparent: bytes | None, now_s: float) -> Trace | None:
        """A request came with this header; None if it is not to be traced."""
        parent = _PARENT.fullmatch(traceparent) if traceparent is not None else None
        if parent is not None and parent[1] != b"ff" and int(parent[2], 16) and int(parent[3], 16):
            if not int(parent[4], 16) & _SAMPLED:
                return None
            return Trace(int(parent[2], 16), int(parent[3], 16), self._id(64), now_s)
        if self._sample < 1.0 and self._rand.random() >= self._sample:
            return None
        return Trace(self._id(128), 0, self._id(64), now_s)

    def attempt(self, trace: Trace, backend: str, now_s: float) -> bytes:
        """An attempt begins; the value of `traceparent` that goes with it."""
        span_id = self._id(64)
        trace.attempts.append(Attempt(span_id, backend, now_s))
        return b"00-%032x-%016x-01" % (trace.trace_id, span_id)

    def finish(self, finished: Finished) -> None:
        """A traced request is over."""
        waiting = len(self._queue)
        if waiting >= self._limit:
            self._unqueued += SPANS_EACH
            return
        self._queue.append(finished)
        if waiting == BATCH_SPANS // SPANS_EACH:
            self._some.set()

    @property
    def dropped(self) -> int:
        """Spans that were lost so far."""
        return self._unqueued + self._unsent

    def _id(self, bits: int) -> int:
        return self._rand.getrandbits(bits) or 1

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send what is left and end; wait at most `timeout_s` seconds for a collector that is stuck."""
        self._closing = True
        self._some.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._exporter.shutdown()  # ends what it is waiting for, if it can
            log.warning("tracing: the collector is stuck, the last spans are lost")

    # The thread.

    def _run(self) -> None:
        while not self._closing:
            self._some.wait(FLUSH_S)
            self._some.clear()
            self._flush()
        self._flush()
        self._exporter.shutdown()

    def _flush(self) -> None:
        while self._queue:
            spans: list[ReadableSpan] = []
            while self._queue and len(spans) < BATCH_SPANS:
                spans += self._spans(self._queue.popleft())
            self._send(spans)

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
            why = "the collector took nothing"
        except Exception as error:
            sent, why = False, str(error)
        if not sent:
            self._unsent += len(spans)
            if not self._failing:
                log.warning("tracing: spans cannot be sent (%s), dropping them until they can", why)
        self._failing = not sent

    def _spans(self, finished: Finished) -> list[ReadableSpan]:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        trace = finished.trace
        scope = InstrumentationScope("stickyroute")

        def context(span_id: int, remote: bool = False) -> SpanContext:
            return SpanContext(trace.trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED))

        def at(moment_s: float) -> int:
            return finished.wall_ns - round((finished.now_s - moment_s) * 1e9)

        def span(
            name: str,
            span_id: int,
            parent: SpanContext | None,
            kind: SpanKind,
            began_s: float,
            ended_s: float,
            attributes: dict[str, Any],
            failed: bool = False,
        ) -> ReadableSpan:
            return ReadableSpan(
                name=name,
                context=context(span_id),
                parent=parent,
                resource=self._resource,
                attributes={key: value for key, value in attributes.items() if value is not None},
                kind=kind,
                status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
                start_time=at(began_s),
                end_time=at(max(began_s, ended_s)),
                instrumentation_scope=scope,
            )

        above = context(trace.parent_id, remote=True) if trace.parent_id else None
        mine = context(trace.span_id)
        attempts = trace.attempts
        first_s = attempts[0].began_s if attempts else finished.now_s
        made = [
            span(finished.name, trace.span_id, above, SpanKind.SERVER, finished.started_s, finished.now_s,
                 finished.attributes, finished.failed),
            span("decide", self._id(64), mine, SpanKind.INTERNAL, trace.began_s, first_s, finished.decision),
        ]  # fmt: skip
        for number, attempt in enumerate(attempts):
            last = number + 1 == len(attempts)
            ended_s = finished.now_s if last else attempts[number + 1].began_s
            made.append(
                span("attempt", attempt.span_id, mine, SpanKind.CLIENT, attempt.began_s, ended_s,
                     {"stickyroute.backend": attempt.backend, "stickyroute.attempt": number + 1},
                     not last or finished.failed)
            )  # fmt: skip
        if finished.first_token_s and attempts:
            made.append(
                span("stream", self._id(64), context(attempts[-1].span_id), SpanKind.INTERNAL,
                     finished.first_token_s, finished.now_s, finished.stream)
            )  # fmt: skip
        return made


def build_exporter(endpoint: str | None) -> SpanExporter:
    """OTLP over HTTP to `endpoint`, None for what OTEL_EXPORTER_OTLP_ENDPOINT and its kin say. Raises ConfigError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError("tracing: needs OpenTelemetry; pip install 'stickyroute[tracing]'") from None
    # It logs every try of every batch; the tracer says once that spans cannot be sent.
    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=endpoint)
