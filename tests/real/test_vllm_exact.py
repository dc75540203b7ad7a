"""Exact mode beside a real vLLM: what its KV events say is what it finds cached. Part of `make test-real`."""

from __future__ import annotations

import asyncio
import json
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stickyroute.routing.exact import scope
from tests.cli.commands import free_port
from tests.support.real.engines import MODEL, build_tiny, fetch
from tests.support.real.vllm import BLOCK_TOKENS, VllmServer, vllm_servers, vllm_venv
from tests.support.run_proxy import run_proxy
from tests.wire.inside import watches_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, dict[str, Any]]]:
    """One server with KV events, and the `events` that a configuration needs to read them."""
    folder = tmp_path_factory.mktemp("vllm-exact")
    model, _ = build_tiny(folder)
    events = {
        "endpoint": f"ipc://{folder}/kv",
        "replay": f"tcp://127.0.0.1:{free_port()}",
        "topic": "kv@tiny",
    }
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events["endpoint"],
        "replay_endpoint": events["replay"],
        "topic": events["topic"],
    }
    with vllm_servers(
        vllm_venv(), Path(model), ["vllm-exact"], folder, "--kv-events-config", json.dumps(config)
    ) as (server,):
        yield server, events


async def test_events_tell_what_the_next_request_finds_cached(
    published: tuple[VllmServer, dict[str, Any]],
) -> None:
    """Five conversations share the room of two or so; each reply's cached tokens are what was held just before."""
    server, events = published
    backend = {"name": server.name, "url": server.url, "events": events}
    rand = random.Random(11)
    talks = [[{"role": "user", "content": f"Talk {number}: " + "so it goes, " * 250}] for number in range(5)]
    async with run_proxy([backend], policy="sticky", exact={"check_s": 1.0}) as proxy:
        exact = watches_of(proxy).exact
        assert exact is not None
        held = exact.resident
        hits = 0
        for turn in range(24):
            talk = talks[rand.randrange(len(talks))]
            asked = {"model": MODEL, "messages": talk}
            tokens = array(
                "I", (await asyncio.to_thread(fetch, server.url, "/tokenize", asked)).json()["tokens"]
            )
            expected = min(
                held.lookup(tokens, scope("", ""))[0], (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            )
            body = json.dumps({**asked, "max_tokens": 40, "temperature": 0}).encode()
            answer = await proxy.ask(body)
            assert answer.status == 200, answer.body
            assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == expected, turn
            hits += expected
            whole = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
            async with asyncio.timeout(PATIENCE_S):
                while held.lookup(tokens, scope("", ""))[0] < whole:
                    await asyncio.sleep(0.01)
            talk += [answer.json["choices"][0]["message"], {"role": "user", "content": f"And {turn}?"}]
            del talk[5:]
        assert hits > 5000
        state = exact.state()
        assert state["prompts_learned"] >= len(talks)
        assert state["corrections"] > 0
        (source,) = state["sources"]
        assert source["complete"]
        assert (source["garbled"], source["passed_over"], source["losses"]) == (0, 0, 0)
