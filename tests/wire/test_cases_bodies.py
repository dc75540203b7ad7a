"""Group E of the field's bug reports: bodies and odd inputs. Each test is named after its case."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import unicodedata
from typing import Any

import pytest

from tests.support.fake_backend import fakes
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

MIB = 1 << 20


async def ask(proxy: RunningProxy, path: str, body: Any) -> str:
    """The name of the backend that answered; the answer must be a 200."""
    answer = await proxy.ask(json.dumps(body).encode(), path=path)
    assert answer.status == 200, (path, body, answer.body)
    return answer.backend


@pytest.mark.parametrize("prompt", ["hi", ["a", "b"], [1, 2, 3], [[1, 2], [3]], [], "", [[]], [""], None])
async def test_b53_every_shape_of_prompt_is_relayed(prompt: Any) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        await ask(proxy, "/v1/completions", {"model": "m", "prompt": prompt})


async def test_b53_equal_token_prefixes_share_a_home() -> None:
    async with fakes("a", "b", "c") as three, run_proxy(three, prefix={"block_bytes": 64}) as proxy:
        homes = []
        for start in range(12):
            ids = list(range(start * 1000, start * 1000 + 400))
            same = {
                await ask(proxy, "/v1/completions", {"model": "m", "prompt": [*ids, tail]})
                for tail in range(5)
            }
            assert len(same) == 1
            homes += same
        assert len(set(homes)) > 1


async def test_b54_no_route_is_ever_a_router_500() -> None:
    bodies: list[Any] = [
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "user", "content": None}, {}, 5, None, "x", []]},
        {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "text"}, {"type": "image_url"}, 1, None]}],
        },
        {"model": "m", "messages": {"role": "user"}, "tools": 5, "system": 7},
        {"model": "m", "prompt": "hi"},
        {"model": "m", "prompt": {"a": [1, {"b": None}]}},
        {"model": "m", "input": "hi"},
        {"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        {"model": "m", "input": [1, [2, "x"]], "metadata": "x", "user": {"a": 1}},
        {"model": "m", "input": 5, "metadata": {"user_id": [1]}, "tools": [{"a": [1e308, -0.0]}]},
    ]
    paths = [
        CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/rerank",
        "/v1/audio/transcriptions", "/tokenize", "/generate", "/v1/score", "/unknown/path",
    ]  # fmt: skip
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy, await proxy.client() as client:
        for path in paths:
            for body in bodies:
                answer = await client.ask(request(json.dumps(body).encode(), path=path))
                assert answer.status < 500, (path, body, answer.body)
                assert (answer.status == 404) == (path == "/unknown/path")


async def test_b55_the_original_bytes_are_forwarded() -> None:
    body = (
        b'{"z":1e2,"a":100, "b" : 1.0,\n\t"messages":[{"content":"\\u00e9\\u4f60 \\/","role":"user"}],'
        b'"model":"m",'
        b'"chat_template_kwargs":{"enable_thinking":false},"return_token_ids":true,"new_thing":[null,-0.0,1E400]}'
    )
    async with fakes() as fake, run_proxy([fake], strict_json=False) as proxy, await proxy.client() as client:
        for asked in (request(body), request(chunks=[body[:50], body[50:]])):
            assert (await client.ask(asked)).status == 200
            assert fake.requests[-1].sha256 == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "\u4f60\u597d\u4e16\u754c",
        "\U0001f469\u200d\U0001f469\u200d\U0001f466",
        "e\u0301a\u0308",
        "\u00e9\u00e4",
    ],
)
async def test_b58_a_cut_inside_a_character_breaks_nothing(text: str) -> None:
    async with fakes("a", "b", "c") as three, run_proxy(three, prefix={"block_bytes": 64}) as proxy:
        for shift in range(-4, 5):
            prompt = "x" * (40 + shift) + text * 40
            homes = {
                await ask(
                    proxy, CHAT, {"model": "m", "messages": [{"role": "user", "content": prompt + tail}]}
                )
                for tail in ("", " \U0001f600")  # a third would show the head to be common
            }
            assert len(homes) == 1
        for form in ("NFC", "NFD"):
            await ask(
                proxy, "/v1/completions", {"model": "m", "prompt": unicodedata.normalize(form, text * 40)}
            )


async def test_b58_lone_surrogates_and_bad_utf_8_are_no_router_error() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        for text in (b"\\ud800", b"\\udfff\\ud800", b"\xff\xfe", b"\xc3", b"\\u0000"):
            body = b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}'
            answer = await proxy.ask(body)
            assert answer.status in (200, 400)
            if answer.status == 400:
                assert answer.json["error"]["type"] == "invalid_request_error"
        assert all(call.body for call in fake.requests)


async def test_b59_an_image_of_20_mib_passes() -> None:
    image = base64.b64encode(os.urandom(15 * MIB)).decode()
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert (await proxy.ask(body)).status == 200
        assert fake.requests[0].sha256 == hashlib.sha256(body).hexdigest()


async def test_b59_above_the_cap_the_answer_is_a_413_that_is_counted() -> None:
    async with fakes() as fake, run_proxy([fake], limits={"body_bytes": "1MiB"}) as proxy:
        answer = await proxy.ask(chat("x" * MIB))
        assert answer.status == 413
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert (await proxy.metrics()).sum("stickyroute_requests_total", status="4xx") == 1
        assert fake.requests == []


ABSENT: list[Any] = ["absent", None, 5, [], {}, "nope", "", True, "x" * 100_000]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"])
async def test_b62_a_bad_model_is_a_4xx_here(path: str) -> None:
    async with fakes("a", "b", models=("m", "n")) as (a, b), run_proxy([a, b]) as proxy:
        for model in ABSENT:
            body = {
                "messages": [{"role": "user", "content": "hi"}],
                "prompt": "hi",
                "input": "hi",
                "max_tokens": 1,
            }
            if model != "absent":
                body["model"] = model
            answer = await proxy.ask(json.dumps(body).encode(), path=path)
            assert answer.status in (400, 404), (model, answer.body)
            assert answer.json["error"]["type"]
            assert answer.json["error"]["message"]
            assert len(answer.body) < 1000
        assert a.requests == b.requests == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b"null", b'"x"', b"{}", b"\xff\xfe{}", b'{"model":"m"} x', b"[" * 100_000],
)
async def test_malformed_json_is_a_400_in_the_api_s_shape(body: bytes) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        answer = await proxy.ask(body)
        assert answer.status in (400, 404)
        assert answer.json["error"]["type"] == "invalid_request_error"
        anthropic = await proxy.ask(body, path="/v1/messages")
        assert anthropic.status in (400, 404)
        assert anthropic.json["type"] == "error"
        assert fake.requests == []


def picture(text: str, image: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
    return {"model": "m", "messages": [{"role": "user", "content": parts}]}


async def test_b63_images_are_part_of_the_key() -> None:
    async with fakes("a", "b", "c", "d") as four, run_proxy(four, policy="ring") as proxy:
        data = [f"data:image/png;base64,{base64.b64encode(os.urandom(3000)).decode()}" for _ in range(20)]
        homes = [await ask(proxy, CHAT, picture("what is it?", image)) for image in data]
        assert len(set(homes)) >= 3
        assert homes == [await ask(proxy, CHAT, picture("what is it?", image)) for image in data]
        talk = picture("what is it?", data[0])
        turns = set()
        for turn in range(5):
            turns.add(await ask(proxy, CHAT, talk))
            talk["messages"] += [
                {"role": "assistant", "content": f"a {turn}"},
                {"role": "user", "content": f"q {turn}"},
            ]
        assert turns == {homes[0]}


@pytest.mark.parametrize("size", [29_000, 31_000, 127_000, 129_000, 1_000_000, 4_000_000])
async def test_b64_prompts_of_any_size_below_the_cap_pass(size: int) -> None:
    body = chat("x" * size)
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        step = max(1, size // 997)
        pieces = [body[i : i + step] for i in range(0, len(body), step)]
        for asked in (request(body), request(chunks=pieces)):
            assert (await client.ask(asked)).status == 200
            assert fake.requests[-1].sha256 == hashlib.sha256(body).hexdigest()


async def test_b64_a_body_that_comes_in_tiny_writes_passes() -> None:
    body = chat("x" * 30_000)
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        whole = request(chunks=[body[i : i + 11] for i in range(0, len(body), 11)])
        for at in range(0, len(whole), 64):
            client.send(whole[at : at + 64])
            if at % 4096 == 0:
                await asyncio.sleep(0)
        assert (await client.response()).status == 200
        assert fake.requests[0].body == body


async def test_an_unparsed_route_forwards_whatever_it_is_given() -> None:
    async with fakes() as fake, run_proxy([fake], strict_models=True) as proxy:
        for body in (b"", b"\0\xff", b"{", b'{"model":"nope"}'):
            answer = await proxy.ask(body, path="/tokenize")
            assert answer.status == 200
            assert fake.requests[-1].body == body
