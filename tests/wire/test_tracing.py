"""Tracing over real sockets: what the engine hears, and the spans of whole requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stickyroute.live import telemetry
from tests.openai.test_usage import body_of, events_of
from tests.support.fake_backend import drop, fakes, reply, stream
from tests.support.raw_client import CHAT, chat
from tests.support.run_proxy import run_proxy

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACED = {"tracing": {"enabled": True}, "usage": {"ask": True}}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans end here instead of at a collector."""
    memory = InMemorySpanExporter()
    monkeypatch.setattr(telemetry, "build_exporter", lambda endpoint: memory)
    return memory


async def test_a_stream_is_a_trace_that_the_engine_is_part_of(exporter: InMemorySpanExporter) -> None:
    async with fakes() as fake, run_proxy([fake], **TRACED) as proxy:
        fake.on(CHAT, stream(events_of(body_of("vllm-chat-stream-raw.txt"))))
        headers = {"traceparent": PARENT, "tracestate": "vendor=1", "x-user-id": "ann"}
        await proxy.ask(chat(stream=True), headers=headers)
        heard = fake.requests[0]
    spans: dict[str, Any] = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"POST /v1/chat/completions", "decide", "attempt", "stream"}
    assert heard.get("traceparent") == f"{PARENT[:36]}{spans['attempt'].context.span_id:016x}-01"
    assert heard.get("tracestate") == "vendor=1"
    root = dict(spans["POST /v1/chat/completions"].attributes)
    assert root["http.response.status_code"] == 200
    assert root["stickyroute.end"] == "complete"
    assert root["gen_ai.usage.input_tokens"] == 12
    assert spans["attempt"].attributes["stickyroute.backend"] == fake.name
    decision = dict(spans["decide"].attributes)
    assert decision["stickyroute.reason"] == "home"
    assert decision["stickyroute.key_source"] == "header:x-user-id"
    assert "ann" not in str(spans["decide"].attributes)
    assert spans["stream"].attributes["gen_ai.usage.output_tokens"] == 6


async def test_each_attempt_is_a_span_of_its_own(exporter: InMemorySpanExporter) -> None:
    async with fakes("a", "b") as fleet, run_proxy(fleet, **TRACED) as proxy:
        fleet[0].on(CHAT, drop())
        fleet[1].on(CHAT, drop())
        answer = await proxy.ask(chat())
        assert answer.status == 502
        told = [call.get("traceparent") for fake in fleet for call in fake.requests]
    attempts = [span for span in exporter.get_finished_spans() if span.name == "attempt"]
    assert {f"{span.context.span_id:016x}" for span in attempts} == {str(header)[36:52] for header in told}
    assert len(set(told)) == len(told) == len(attempts) >= 2


async def test_what_is_not_sampled_passes_as_it_came(exporter: InMemorySpanExporter) -> None:
    settings = {"tracing": {"enabled": True, "sample": 0.0}}
    async with fakes() as fake, run_proxy([fake], **settings) as proxy:
        await proxy.ask(chat(), headers={"traceparent": PARENT[:-1] + "0"})
        await proxy.ask(chat())
        assert [call.get("traceparent") for call in fake.requests] == [PARENT[:-1] + "0", None]
    assert exporter.get_finished_spans() == ()


async def test_off_the_client_s_header_passes_and_nothing_is_made() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        await proxy.ask(chat(), headers={"traceparent": PARENT})
        assert fake.requests[0].get("traceparent") == PARENT
        assert proxy.app.telemetry.tracer is None


async def test_spans_reach_a_collector_by_otlp() -> None:
    async with fakes("engine") as fake, fakes("collector") as collector:
        collector.on("/v1/traces", reply(200, b"", fields=[("Content-Type", "application/x-protobuf")]))
        settings = {"tracing": {"enabled": True, "endpoint": f"{collector.url}/v1/traces"}}
        async with run_proxy([fake], **settings) as proxy:
            await proxy.ask(chat())
        async with asyncio.timeout(10):
            await collector.arrived()
        sent = ExportTraceServiceRequest.FromString(collector.requests[0].body)
        (resource,) = sent.resource_spans
        assert {span.name for scope in resource.scope_spans for span in scope.spans} == {
            "POST /v1/chat/completions",
            "decide",
            "attempt",
        }
