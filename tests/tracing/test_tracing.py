"""Traces: what travels on, the spans a request comes to, and that nothing waits for a collector."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from stickyroute.tracing import SPANS_EACH, Finished, Trace, Tracer, build_exporter

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WALL_NS = 1_800_000_000_000_000_000


def finished(trace: Trace, **changes: Any) -> Finished:
    values: dict[str, Any] = {
        "trace": trace,
        "name": "POST /v1/chat/completions",
        "wall_ns": WALL_NS,
        "now_s": 105.0,
        "started_s": 100.0,
        "first_token_s": 102.0,
        "failed": False,
        "attributes": {"http.response.status_code": 200, "gen_ai.request.model": None},
        "decision": {"stickyroute.reason": "home"},
        "stream": {"gen_ai.usage.output_tokens": 20},
    }
    return Finished(**values | changes)


def spans_of(
    tracer: Tracer, exporter: InMemorySpanExporter, *over: Finished
) -> dict[str, list[ReadableSpan]]:
    for one in over:
        tracer.finish(one)
    tracer.close()
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def test_a_client_s_trace_is_continued_and_the_engine_hears_of_the_attempt() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    trace = tracer.begin(PARENT, 100.5)
    assert trace is not None
    sent = [tracer.attempt(trace, name, at) for name, at in (("a", 101.0), ("b", 101.5))]
    spans = spans_of(tracer, exporter, finished(trace))
    (root,), (decide,), (stream,) = spans["POST /v1/chat/completions"], spans["decide"], spans["stream"]
    first, second = spans["attempt"]
    assert {span.context.trace_id for many in spans.values() for span in many} == {
        0x0AF7651916CD43DD8448EB211C80319C
    }
    assert root.parent is not None
    assert root.parent.span_id == 0xB7AD6B7169203331
    assert root.parent.is_remote
    assert [decide.parent, first.parent, second.parent] == [root.context] * 3
    assert stream.parent == second.context
    assert sent == [
        b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % span.context.span_id for span in (first, second)
    ]
    assert [span.kind for span in (root, decide, first)] == [
        SpanKind.SERVER,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
    ]


def test_times_are_wall_time_and_attributes_what_is_known() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    trace = tracer.begin(None, 100.5)
    assert trace is not None
    tracer.attempt(trace, "a", 101.0)
    tracer.attempt(trace, "b", 101.5)
    spans = spans_of(tracer, exporter, finished(trace))

    def seconds(span: ReadableSpan) -> tuple[float, float]:
        assert span.start_time is not None
        assert span.end_time is not None
        return (span.start_time - WALL_NS) / 1e9, (span.end_time - WALL_NS) / 1e9

    (root,) = spans["POST /v1/chat/completions"]
    assert root.parent is None
    assert seconds(root) == (-5.0, 0.0)
    assert seconds(spans["decide"][0]) == (-4.5, -4.0)
    assert [seconds(span) for span in spans["attempt"]] == [(-4.0, -3.5), (-3.5, 0.0)]
    assert seconds(spans["stream"][0]) == (-3.0, 0.0)
    assert dict(root.attributes or {}) == {"http.response.status_code": 200}
    assert dict(spans["attempt"][1].attributes or {}) == {
        "stickyroute.backend": "b",
        "stickyroute.attempt": 2,
    }
    assert [span.status.status_code for span in spans["attempt"]] == [StatusCode.ERROR, StatusCode.UNSET]
    assert root.resource.attributes["service.name"] == "stickyroute"


def test_a_request_that_nobody_took_has_a_decision_and_no_attempt() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    trace = tracer.begin(None, 100.5)
    assert trace is not None
    spans = spans_of(tracer, exporter, finished(trace, failed=True, first_token_s=0.0))
    assert spans.keys() == {"POST /v1/chat/completions", "decide"}
    assert spans["POST /v1/chat/completions"][0].status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"00-short-b7ad6b7169203331-01",
        b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        b"\xff" * 10_000,
    ],
)
def test_what_is_no_traceparent_begins_a_trace(header: bytes) -> None:
    tracer = Tracer(InMemorySpanExporter())
    trace = tracer.begin(header, 0.0)
    assert trace is not None
    assert trace.parent_id == 0
    assert trace.trace_id != 0x0AF7651916CD43DD8448EB211C80319C
    tracer.close()


def test_a_later_version_of_traceparent_is_read_as_far_as_it_is_known() -> None:
    tracer = Tracer(InMemorySpanExporter())
    trace = tracer.begin(b"01" + PARENT[2:] + b"-more", 0.0)
    assert trace is not None
    assert trace.parent_id == 0xB7AD6B7169203331
    tracer.close()


def test_the_client_decides_for_its_trace_and_the_sample_for_others() -> None:
    tracer = Tracer(InMemorySpanExporter(), sample=0.0)
    assert tracer.begin(None, 0.0) is None
    assert tracer.begin(PARENT, 0.0) is not None
    assert tracer.begin(PARENT[:-2] + b"00", 0.0) is None
    tracer.close()
    half = Tracer(InMemorySpanExporter(), sample=0.5)
    begun = sum(half.begin(None, 0.0) is not None for _ in range(2000))
    assert 800 < begun < 1200  # 1000 expected, standard deviation 22
    half.close()


class Stuck(SpanExporter):
    """A collector that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.gate.wait()
        return SpanExportResult.FAILURE


def test_a_collector_that_hangs_holds_nobody_and_memory_stays_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = Stuck()
    tracer = Tracer(exporter, limit=40)
    trace = tracer.begin(None, 0.0)
    assert trace is not None
    tracer.attempt(trace, "a", 1.0)
    for _ in range(1000):
        tracer.finish(finished(trace))
    assert tracer.dropped == (1000 - 40 // SPANS_EACH) * SPANS_EACH
    tracer._some.set()
    assert exporter.asked.wait(10)
    tracer.close(timeout_s=0.01)
    assert "stuck" in caplog.text
    exporter.gate.set()
    tracer._thread.join(10)
    assert tracer.dropped == 1000 * SPANS_EACH
    assert len(re.findall("cannot be sent", caplog.text)) == 1


class Broken(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("refused")


def test_an_exporter_that_raises_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer(Broken())
    trace = tracer.begin(None, 0.0)
    assert trace is not None
    for _ in range(300):
        tracer.finish(finished(trace))
    tracer.close()
    assert tracer.dropped == 300 * 2  # without an attempt: itself and the decision
    assert caplog.text.count("refused") == 1


def test_the_service_s_name_is_the_environment_s_where_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway")
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    trace = tracer.begin(None, 0.0)
    assert trace is not None
    spans = spans_of(tracer, exporter, finished(trace))
    assert spans["decide"][0].resource.attributes["service.name"] == "gateway"


def test_the_exporter_goes_where_the_setting_or_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    exporter: Any = build_exporter(None)
    assert exporter._endpoint == "http://collector:4318/v1/traces"
    exporter = build_exporter("http://other:1/v1/traces")
    assert exporter._endpoint == "http://other:1/v1/traces"
