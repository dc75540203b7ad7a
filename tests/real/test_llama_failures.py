"""What clients see when a llama.cpp server is killed under them, and what it sees when they leave."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Served, serve
from tests.real.test_llama_clients import prompt_of
from tests.support.real import clients
from tests.support.real.clients import (
    OpenAISync,
    anthropic_client,
    async_openai_client,
    broken_stream,
    openai_client,
)
from tests.support.real.engines import MODEL, LlamaServer, fetch, llama_server_again, refuses, until

LONG = 16_000  # tokens: seconds of work, far more than any of these tests waits for
Fleet = Served[LlamaServer]


def test_a_killed_server_breaks_its_streams_and_loses_nobody_else(
    mortal_fleet: Fleet, model: tuple[Path, Path], tmp_path: Path
) -> None:
    fleet = mortal_fleet
    ask = OpenAISync().ask
    homes = {
        user: ask(fleet.url, prompt_of(user), user=user).backend for user in (f"user-{i}" for i in range(12))
    }
    user = next(iter(homes))
    victim = fleet.engine(homes[user])
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "long"}],
        "max_tokens": LONG,
    }

    with openai_client(fleet.url) as client:
        stream = iter(client.chat.completions.create(**body, user=user, stream=True))
        next(stream)
        victim.kill()
        with pytest.raises(broken_stream()):
            for _ in stream:
                pass

    for other, home in homes.items():
        said = ask(fleet.url, prompt_of(other), user=other)
        assert said.text
        if home == victim.name:
            assert said.backend != victim.name
            assert said.reason == "failover"
        else:
            assert (said.backend, said.reason) == (home, "home")
            assert said.cached_tokens == said.prompt_tokens - 1
    assert fetch(fleet.url, "/v1/models").json()["data"], "a server that is gone hides nobody's models"
    again = ask(fleet.url, prompt_of(user), user=user)
    assert again.cached_tokens == again.prompt_tokens - 1, "the next on the ring keeps the user meanwhile"

    with llama_server_again(model[1], victim, tmp_path / "again.log"):
        until(
            lambda: ask(fleet.url, prompt_of(user), user=user).backend == victim.name, "its users come home"
        )
    assert fleet.in_flight == 0


async def test_a_server_killed_under_load_takes_only_its_own_requests_with_it(mortal_fleet: Fleet) -> None:
    """48 requests, whole and streamed, while a server dies: each is answered in full or fails visibly."""
    fleet = mortal_fleet
    victim = fleet.engines[1]
    expected = OpenAISync().ask(fleet.engines[0].url, "count", user="x", max_tokens=200).text
    killed = asyncio.Event()

    async def whole(client: clients.openai.AsyncOpenAI, asked: dict[str, Any]) -> str:
        reply = await client.chat.completions.create(**asked)
        return reply.choices[0].message.content or ""

    async def streamed(client: clients.openai.AsyncOpenAI, asked: dict[str, Any]) -> str:
        text, finished = "", False
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            text += chunk.choices[0].delta.content or ""
            finished = finished or bool(chunk.choices[0].finish_reason)
        assert finished, "a stream that ended well without its last word"
        return text

    async def one(client: clients.openai.AsyncOpenAI, number: int) -> str | None:
        message = [{"role": "user", "content": "count"}]
        asked = {
            "model": MODEL,
            "messages": message,
            "user": f"u{number}",
            "max_tokens": 200,
            "temperature": 0,
        }
        if number >= 24:
            await killed.wait()
        try:
            return await (streamed if number % 2 else whole)(client, asked)
        except broken_stream():
            return None
        except clients.openai.InternalServerError as error:
            assert error.status_code == 502, "begun on the killed server, and never run twice"
            return None

    async with async_openai_client(fleet.url) as client:
        requests = [asyncio.ensure_future(one(client, number)) for number in range(48)]
        while not any(request.done() for request in requests):
            await asyncio.sleep(0)
        victim.kill()
        killed.set()
        texts = await asyncio.gather(*requests)
    assert {text for text in texts if text is not None} == {expected}
    assert None not in texts[24:], "what came after the kill was served by the others"
    assert fleet.in_flight == 0


def test_an_anthropic_stream_fails_too_and_with_every_server_gone_clients_are_told_to_come_back(
    mortal_fleet: Fleet,
) -> None:
    with anthropic_client(mortal_fleet.url) as client:
        messages: list[Any] = [{"role": "user", "content": "long"}]
        raw = client.messages.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=LONG, stream=True, metadata={"user_id": "ann"}
        )
        stream = iter(raw.parse())
        next(stream)
        mortal_fleet.engine(raw.headers["x-stickyroute-backend"]).kill()
        with pytest.raises(broken_stream()):
            for _ in stream:
                pass
        for engine in mortal_fleet.engines:
            engine.kill()
        with pytest.raises(clients.anthropic.InternalServerError) as refused:
            client.messages.create(model=MODEL, messages=messages, max_tokens=4)
    assert refused.value.status_code == 503
    assert refused.value.body["type"] == "error"
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_a_client_that_leaves_its_stream_frees_its_slot(fleet: Fleet) -> None:
    """Long before the answer would have been complete: the engine stopped working on it.

    (llama.cpp computes an answer that isn't streamed to its end whoever has left; vLLM's tests have both.)
    """
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "leave"}],
        "max_tokens": LONG,
        "stream": True,
        "user": "leaver",
    }
    until(lambda: not any(engine.running for engine in fleet.engines), "what earlier tests left has ended")
    steps_before = sum(engine.steps for engine in fleet.engines)
    connection = http.client.HTTPConnection(fleet.url.removeprefix("http://"), timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().read(20)
    connection.close()
    until(lambda: not any(engine.running for engine in fleet.engines), "no engine works on it any more")
    assert sum(engine.steps for engine in fleet.engines) - steps_before < LONG / 2
    until(lambda: fleet.in_flight == 0, "the proxy forgot it as well")


def test_a_proxy_that_is_told_to_stop_finishes_its_streams(fleet: Fleet) -> None:
    with serve(fleet.engines) as proxy:
        with openai_client(proxy.url) as client:
            stop: Any = [{"role": "user", "content": "stop"}]
            asked: Any = {"model": MODEL, "messages": stop, "max_tokens": 2_000, "stream": True}
            chunks = iter(client.chat.completions.create(**asked))
            next(chunks)
            proxy.process.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(proxy.url), "new connections are refused")
            last = list(chunks)[-1]
        assert last.choices[0].finish_reason == "length"
        assert proxy.process.process.wait(30) == 0
