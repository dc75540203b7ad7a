"""The same promises in front of two real vLLM servers: `make test-real`, not part of CI.

docs/engines.md tells what was seen here, and on which machine.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import VLLM_NAMES, Served, serve
from tests.real.test_llama_clients import prompt_of
from tests.support.real import clients
from tests.support.real.clients import (
    WAYS,
    OpenAISync,
    Way,
    anthropic_client,
    async_openai_client,
    openai_client,
    way_id,
)
from tests.support.real.engines import MODEL, fetch, refuses, until
from tests.support.real.vllm import BLOCK_TOKENS, QUEUED, RUNNING, VllmServer, vllm_servers

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
LONG = 3_000  # tokens: several seconds of work
GONE_S = 0.1
Fleet = Served[VllmServer]


@pytest.fixture(scope="module")
def fleet(venv: Path, model: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two servers behind one proxy, for tests that leave them alive."""
    folder = tmp_path_factory.mktemp("vllm")
    with (
        vllm_servers(venv, model[0], VLLM_NAMES, folder, f"--max-num-queued-reqs={QUEUED}") as engines,
        serve(engines) as served,
    ):
        for engine in engines:  # the first request of a fresh vLLM takes seconds
            OpenAISync().ask(engine.url, "warm up", user="nobody")
        yield served


@pytest.fixture(autouse=True)
def _idle(fleet: Fleet) -> None:
    """Each test finds the engines at rest."""
    until(lambda: not any(e.running or e.waiting for e in fleet.engines), "what earlier tests left has ended")


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_the_second_request_of_a_user_finds_its_prompt_cached(fleet: Fleet, way: Way) -> None:
    name = f"{way_id(way)} at {time.monotonic_ns()}"
    first = way.ask(fleet.url, prompt_of(name), user=name)
    engine = fleet.engine(first.backend)
    hits_before = engine.hits
    second = way.ask(fleet.url, prompt_of(name), user=name)
    assert second.backend == first.backend
    assert first.reason == second.reason == "home"
    assert second.text == first.text
    assert first.cached_tokens == 0
    assert second.cached_tokens == (second.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS, (
        "every full block"
    )
    until(lambda: engine.hits - hits_before == second.cached_tokens, "the engine's own counter says so")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_stops_the_engine_at_once(fleet: Fleet, stream: bool) -> None:
    """Within 100 ms. The best of five, since other programs of this machine have their turn as well."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "leave"}], "max_tokens": LONG}
    took_s = [leave(fleet, json.dumps({**body, "user": f"u{n}", "stream": stream})) for n in range(5)]
    print(f"{'stream' if stream else 'whole'}: running is 0 after", [f"{s * 1000:.0f} ms" for s in took_s])
    assert min(took_s) < GONE_S
    until(lambda: fleet.in_flight == 0, "the proxy forgot them as well")


def leave(fleet: Fleet, body: str) -> float:
    """Leave a request as soon as an engine runs it; seconds until `vllm:num_requests_running` is 0."""
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=30)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = None
    if json.loads(body)["stream"]:
        answer = connection.getresponse()
        assert answer.read(20)
    found: list[VllmServer] = []
    until(lambda: found.extend(e for e in fleet.engines if e.running) or found, "it has begun")
    engine = found[0]
    completed_before = engine.completed
    left_s = time.monotonic()
    if answer is not None:
        answer.close()
    connection.close()
    until(lambda: engine.running == 0, "the engine stopped")
    took_s = time.monotonic() - left_s
    assert engine.completed == completed_before, "it was stopped, and did not just come to its end"
    return took_s


async def test_what_a_full_engine_refuses_is_served_by_the_other(fleet: Fleet) -> None:
    """One long request of a user after the other, until their home answers 503: that one goes elsewhere."""
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "crowd"}], "user": "crowd"}
    places: list[str] = []
    streams = []
    with serve(fleet.engines, "--policy=ring") as proxy:
        async with async_openai_client(proxy.url) as client:
            while len(set(places)) < 2 and len(places) < 4 * (RUNNING + QUEUED):
                raw = await client.chat.completions.with_raw_response.create(
                    **asked, max_tokens=LONG, stream=True
                )
                places.append(raw.headers["x-stickyroute-backend"])
                streams.append(raw.parse())
            async for _ in streams[-1]:
                break
            retried = proxy.metrics().sum("stickyroute_retries_total", kind="busy")
            for stream in streams:
                await stream.close()
    home, other = places[0], places[-1]
    assert other != home
    assert set(places[:-1]) == {home}
    assert retried == 1
    assert fleet.engine(home).metrics().sum("vllm:admission_rejections_total") >= 1


async def test_when_both_are_full_the_engines_own_503_reaches_the_client(fleet: Fleet) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "crowd"}], "max_tokens": 200}
    async with async_openai_client(fleet.url) as client:
        create = client.chat.completions.create
        outcomes = await asyncio.gather(*(create(**asked) for _ in range(80)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(outcome, clients.openai.InternalServerError) for outcome in refused), refused
    assert {outcome.status_code for outcome in refused} == {503}
    assert all("currently busy" in str(outcome) for outcome in refused)
    assert 0 < len(refused) < len(outcomes)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_prompt_that_is_too_long_fails_in_the_engines_own_words(fleet: Fleet, path: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x " * 6000}], "max_tokens": 4}
    direct, proxied = fleet.engines[0].fetch(path, body), fetch(fleet.url, path, body)
    assert direct.status == proxied.status == 400
    assert proxied.body == direct.body


def test_the_other_routes(fleet: Fleet) -> None:
    ids: Any = [10, 11, 12, 300, 301]
    with openai_client(fleet.url) as client:
        from_ids = client.completions.create(model=MODEL, prompt=ids, max_tokens=6, temperature=0)
        body = {"model": MODEL, "prompt": ids, "max_tokens": 6, "temperature": 0}
        own = fleet.engines[0].fetch("/v1/completions", body).json()
        assert from_ids.choices[0].text == own["choices"][0]["text"]
        response = client.responses.create(model=MODEL, input="hello", max_output_tokens=6, temperature=0)
        assert response.output_text
        assert [model.id for model in client.models.list()] == [MODEL]
    with anthropic_client(fleet.url) as other:
        assert [model.id for model in other.models.list()] == [MODEL]
        hello: Any = [{"role": "user", "content": "hello"}]
        assert other.messages.count_tokens(model=MODEL, messages=hello).input_tokens > 0
    asked = {"model": MODEL, "prompt": "hello"}
    assert fetch(fleet.url, "/tokenize", asked).json() == fleet.engines[0].fetch("/tokenize", asked).json()
    assert fetch(fleet.url, "/version").json() == {"version": "0.32.0"}
    assert fetch(fleet.url, "/reset_prefix_cache", {}).status == 404, "administration stays inside"


def test_a_proxy_that_is_told_to_stop_finishes_its_streams(fleet: Fleet) -> None:
    with serve(fleet.engines) as proxy:
        with openai_client(proxy.url) as client:
            asked: Any = {
                "model": MODEL,
                "messages": [{"role": "user", "content": "stop"}],
                "max_tokens": 500,
            }
            chunks = iter(
                client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            )
            next(chunks)
            proxy.process.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(proxy.url), "new connections are refused")
            last = list(chunks)[-1]
        assert last.usage.completion_tokens == 500
        assert proxy.process.process.wait(30) == 0
