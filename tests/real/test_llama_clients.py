"""The `openai` and `anthropic` clients through stickyroute in front of three real llama.cpp servers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from tests.real.conftest import NAMES, Served, serve
from tests.support.real import clients
from tests.support.real.clients import (
    ANTHROPIC_WAYS,
    OPENAI_WAYS,
    WAYS,
    Way,
    anthropic_client,
    async_anthropic_client,
    async_openai_client,
    openai_client,
    way_id,
)
from tests.support.real.engines import MODEL, LlamaServer, fetch

TOO_LONG = "x " * 20_000  # tokens; a slot has 16,384
Fleet = Served[LlamaServer]


def prompt_of(name: str) -> str:
    """A few hundred tokens that differ from the first word on, so that nobody else's cache helps."""
    return f"{name} asks: " + " ".join(f"{name} has {i} questions about routing." for i in range(20))


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_the_second_request_of_a_user_finds_its_prompt_cached(fleet: Fleet, way: Way) -> None:
    name = way_id(way)
    first = way.ask(fleet.url, prompt_of(name), user=name)
    engine = fleet.engine(first.backend)
    cached_before = engine.cached_tokens
    second = way.ask(fleet.url, prompt_of(name), user=name)
    assert second.backend == first.backend
    assert second.reason in ("home", "warm")
    assert second.cached_tokens == second.prompt_tokens - 1, "all of it but the last token"
    assert first.cached_tokens < first.prompt_tokens / 2, "the chat template's head at most, and a few words"
    assert engine.cached_tokens - cached_before == second.cached_tokens, "the engine itself says so"
    assert second.text == first.text
    assert second.completion_tokens == first.completion_tokens == 8
    assert first.request_id != second.request_id


@pytest.mark.parametrize("ways", [OPENAI_WAYS, ANTHROPIC_WAYS], ids=["openai", "anthropic"])
def test_every_way_of_a_client_gives_what_the_engine_gives(fleet: Fleet, ways: list[Way]) -> None:
    """And all of them reach the same engine, being the same user."""
    prompt = prompt_of("everybody")
    expected = ways[0].ask(fleet.engines[0].url, prompt, user="everybody")
    said = [way.ask(fleet.url, prompt, user="everybody") for way in ways]
    assert {s.text for s in said} == {expected.text}
    assert {s.finish for s in said} == {expected.finish}
    assert {s.prompt_tokens for s in said} == {expected.prompt_tokens}
    assert len({s.backend for s in said}) == 1


def test_a_conversation_stays_and_pays_for_its_new_turn_only(fleet: Fleet) -> None:
    with openai_client(fleet.url) as client:
        messages: list[dict[str, Any]] = [{"role": "system", "content": prompt_of("conversation")}]
        backends, earlier_tokens = set(), 0
        for turn in range(3):
            messages.append({"role": "user", "content": f"Question {turn}: what is a ring?"})
            raw = client.chat.completions.with_raw_response.create(
                model=MODEL, messages=messages, max_tokens=8, temperature=0, user="conversation"
            )
            reply = raw.parse()
            backends.add(raw.headers["x-stickyroute-backend"])
            if turn:
                assert reply.usage.prompt_tokens_details.cached_tokens >= earlier_tokens
            earlier_tokens = reply.usage.prompt_tokens
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        assert len(backends) == 1


def test_without_any_id_the_prompt_keeps_its_home(fleet: Fleet) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt_of("nobody")}], "max_tokens": 4}
    replies = [fetch(fleet.url, "/v1/chat/completions", body) for _ in range(3)]
    assert len({reply.headers["x-stickyroute-backend"] for reply in replies}) == 1
    cached = [reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    assert cached[1] == cached[2] > cached[0]


@pytest.mark.parametrize(
    "prompt",
    ["one two three", ["one two", "three"], [10, 11, 12, 300, 301], [[10, 11, 12], [300, 301]]],
    ids=["text", "texts", "tokens", "lists of tokens"],
)
def test_completions_of_every_kind_of_prompt(fleet: Fleet, prompt: Any) -> None:
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 6, "temperature": 0}
    expected = [
        choice["text"] for choice in fleet.engines[0].fetch("/v1/completions", asked).json()["choices"]
    ]
    with openai_client(fleet.url) as client:
        whole = client.completions.create(**asked)
        assert [choice.text for choice in whole.choices] == expected
        if len(expected) == 1:  # llama.cpp streams several prompts as no client expects them
            streamed = client.completions.create(**asked, stream=True)
            assert "".join(event.choices[0].text for event in streamed) == expected[0]


async def test_responses_streamed_and_not(fleet: Fleet) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": prompt_of("responses"),
        "max_output_tokens": 6,
        "temperature": 0,
    }
    async with async_openai_client(fleet.url) as client:
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
    assert whole.status == "completed"
    assert whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.input_tokens_details.cached_tokens == whole.usage.input_tokens - 1


def test_embeddings_of_several_texts(fleet: Fleet) -> None:
    with openai_client(fleet.url) as client:
        reply = client.embeddings.create(
            model=MODEL, input=["the ring", "another one"], encoding_format="float"
        )
    assert [row.index for row in reply.data] == [0, 1]
    assert [len(row.embedding) for row in reply.data] == [64, 64]
    assert reply.data[0].embedding != reply.data[1].embedding


def test_tokens_of_a_message_are_counted(fleet: Fleet) -> None:
    message = [{"role": "user", "content": "hello"}]
    expected = (
        fleet.engines[0].fetch("/v1/messages/count_tokens", {"model": MODEL, "messages": message}).json()
    )
    with anthropic_client(fleet.url) as client:
        assert (
            client.messages.count_tokens(model=MODEL, messages=message).input_tokens
            == expected["input_tokens"]
        )


async def test_both_clients_list_the_models(fleet: Fleet) -> None:
    with openai_client(fleet.url) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
    async with async_openai_client(fleet.url) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
    with anthropic_client(fleet.url) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
    async with async_anthropic_client(fleet.url) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]


def test_a_model_is_listed_with_every_field_of_the_engine(fleet: Fleet) -> None:
    (row,) = fetch(fleet.url, "/v1/models").json()["data"]
    own = [engine.fetch("/v1/models").json()["data"][0] for engine in fleet.engines]
    assert row["meta"] == own[0]["meta"]
    assert set(row) >= set(own[0])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_prompt_that_is_too_long_fails_in_the_engines_own_words(
    fleet: Fleet, path: str, stream: bool
) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": TOO_LONG}],
        "max_tokens": 4,
        "stream": stream,
    }
    direct, proxied = fleet.engines[0].fetch(path, body), fetch(fleet.url, path, body)
    assert direct.status == proxied.status == 400
    assert proxied.body == direct.body
    assert proxied.headers["content-type"] == direct.headers["content-type"]
    assert json.loads(proxied.body)["error"]["type"] == "exceed_context_size_error"


def test_the_clients_raise_what_they_raise_without_a_proxy(fleet: Fleet) -> None:
    long = [{"role": "user", "content": TOO_LONG}]
    with openai_client(fleet.url) as client:
        with pytest.raises(clients.openai.BadRequestError, match="exceeds the available context size"):
            client.chat.completions.create(model=MODEL, messages=long, max_tokens=4)
        with pytest.raises(clients.openai.NotFoundError) as unknown:
            client.chat.completions.create(model="another", messages=[{"role": "user", "content": "hi"}])
        assert unknown.value.code == "model_not_found"
    with anthropic_client(fleet.url) as other:
        with pytest.raises(clients.anthropic.BadRequestError, match="exceeds the available context size"):
            other.messages.create(model=MODEL, messages=long, max_tokens=4)
        with pytest.raises(clients.anthropic.NotFoundError) as missing:
            other.messages.create(model="another", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        assert missing.value.body["type"] == "error"


async def test_users_at_the_same_time_spread_and_come_back(fleet: Fleet) -> None:
    """A dozen users at once, then one by one: each engine gets some, and who was at home comes back to it."""
    users = [f"user-{number}" for number in range(12)]

    async def ask(client: clients.openai.AsyncOpenAI, user: str) -> tuple[str, str, int]:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": prompt_of(user)}], user=user, max_tokens=8
        )
        cached = raw.parse().usage.prompt_tokens_details.cached_tokens
        return raw.headers["x-stickyroute-backend"], raw.headers["x-stickyroute-reason"], cached

    async with async_openai_client(fleet.url) as client:
        first = await asyncio.gather(*(ask(client, user) for user in users))
        second = [await ask(client, user) for user in users]
    shares = Counter(backend for backend, _, _ in first)
    assert set(shares) == set(NAMES)
    stayed = [(was, now) for was, now in zip(first, second, strict=True) if was[1] == "home"]
    assert {now[1] for _, now in stayed} == {"home"}, "one at a time there is no reason to leave"
    assert all(now[0] == was[0] and now[2] > was[2] for was, now in stayed)


async def test_a_user_who_floods_their_home_spills_within_the_bound(fleet: Fleet) -> None:
    """9 streams of one user held open: no engine has more than ceil(1.25 * 9 / 3) = 4 of them, its slots."""
    with serve(fleet.engines, "--policy=bounded_ring") as proxy:
        async with async_openai_client(proxy.url) as client:
            streams, places = [], []
            for _ in range(9):
                raw = await client.chat.completions.with_raw_response.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "flood"}],
                    user="flood",
                    max_tokens=16_000,
                    stream=True,
                )
                places.append((raw.headers["x-stickyroute-backend"], raw.headers["x-stickyroute-reason"]))
                streams.append(raw.parse())
            for stream in streams:
                await stream.close()
    home = places[0][0]
    assert {place for place in places if place[0] == home} == {(home, "home")}
    assert {reason for backend, reason in places if backend != home} == {"spill"}
    shares = Counter(backend for backend, _ in places)
    assert set(shares) == set(NAMES)
    assert max(shares.values()) <= 4
