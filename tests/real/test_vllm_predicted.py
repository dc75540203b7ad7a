"""What is predicted to be cached, and what a real vLLM finds cached, request by request. Part of `make test-real`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.real.engines import MODEL, build_tiny
from tests.support.real.vllm import BLOCK_TOKENS, VllmServer, vllm_servers, vllm_venv
from tests.support.run_proxy import run_proxy

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NAMES = ("vllm-p", "vllm-q")
USERS = 6
TURNS = 7
PATIENCE_S = 60.0
WORDS = (
    "bread is baked each morning and sold until it is gone and who comes late may ask for the rest of it or for what "
    "was left of yesterday since nothing is thrown away here that anybody would still eat with butter or with soup"
).split()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    folder = tmp_path_factory.mktemp("vllm-predicted")
    model, _ = build_tiny(folder)
    with vllm_servers(vllm_venv(), Path(model), NAMES, folder, "--num-gpu-blocks-override=1200") as servers:
        yield servers


def text(rand: Random, words: int) -> str:
    return " ".join(rand.choices(WORDS, k=words))


async def test_predicted_cached_tokens_are_within_a_block_for_nearly_every_request(
    servers: list[VllmServer],
) -> None:
    rand = Random(4)
    system = {"role": "system", "content": text(rand, 120)}
    talks: list[list[dict[str, Any]]] = [[system] for _ in range(USERS)]
    backends = [{"name": server.name, "url": server.url} for server in servers]
    async with run_proxy(backends, policy="sticky", scrape={"interval_s": 0.5}) as proxy:
        async with asyncio.timeout(PATIENCE_S):  # the size of a block is in the engines' metrics
            while any(proxy.app.fleet.sample(slot) is None for slot in range(len(servers))):
                await asyncio.sleep(0.01)
        for turn in range(TURNS):
            for user, talk in enumerate(talks):
                talk.append(
                    {"role": "user", "content": f"{user} asks: {text(rand, 30 + 10 * (user + turn) % 90)}?"}
                )
                body = {
                    "model": MODEL,
                    "user": f"user {user}",
                    "messages": talk,
                    "max_tokens": 24,
                    "temperature": 0,
                }
                answer = await proxy.ask(json.dumps(body).encode())
                assert answer.status == 200, answer.body
                talk.append(answer.json["choices"][0]["message"])
        told = (await proxy.admin("/decisions?limit=1000")).json["decisions"]
    assert len(told) == USERS * TURNS
    off = [abs(row["predicted"]["cached_tokens"] - row["achieved"]["cached_tokens"]) for row in told]
    assert sum(row["achieved"]["cached_tokens"] for row in told) > 0.7 * sum(
        row["achieved"]["prompt_tokens"] for row in told
    )
    near = sum(1 for tokens in off if tokens <= BLOCK_TOKENS)
    assert near >= 0.95 * len(off), [
        (row["number"], row["backend"], row["predicted"], row["achieved"]) for row in reversed(told)
    ]
