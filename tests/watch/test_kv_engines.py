"""KV events of simulated engines over real ZMQ sockets: what is followed is what they cached."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from stickyroute.clock import monotonic
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.keys import block_keys, namespace, token_buffer
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.server import RunningEngine, serve_engines
from stickyroute.watch.kv_events import KvSource
from tests.simulator.client import ask, chat
from tests.watch.following import PLAIN, following

SMALL = replace(DEMO, blocks=41, block_size=16)


Start = Callable[..., Awaitable[RunningEngine]]


@pytest.fixture
async def start(tmp_path: Any) -> AsyncIterator[Start]:
    engines: list[RunningEngine] = []

    async def one(**fields: Any) -> RunningEngine:
        folder = tmp_path / str(len(engines))
        folder.mkdir()
        config = EngineConfig(
            **{
                "model": "tiny",
                "speedup": 50.0,
                "profile": SMALL,
                "kv_events": f"ipc://{folder}/kv",
                "kv_replay": f"ipc://{folder}/replay",
                "kv_topic": "kv@tiny",
                **fields,
            }
        )
        engines.extend(await serve_engines([config]))
        return engines[-1]

    yield one
    for engine in engines:
        await engine.close()


def source_of(engine: RunningEngine, slot: int = 0) -> KvSource:
    assert engine.kv_events is not None
    return KvSource(
        slot, f"gpu-{slot}", engine.kv_events.endpoint, engine.kv_events.replay_endpoint, "kv@tiny"
    )


def true_blocks(engine: RunningEngine) -> int:
    return len(engine.engine.cache.resident())


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_the_sets_are_the_engines_caches_after_a_workload(start: Start, dialect: str) -> None:
    """Two engines, forty requests of growing and evicted conversations; one engine is followed late."""
    fields = {"dialect": dialect, "page_size": 16}
    engines = [await start(**fields), await start(**fields)]
    rand = random.Random(7)
    talks = [f"talk {number} " * 30 for number in range(8)]

    async def some() -> None:
        for _ in range(20):
            number = rand.randrange(len(talks))
            await chat(engines[number % 2], talks[number], max_tokens=rand.randrange(1, 20))
            talks[number] += f"more {rand.random()} "

    await some()
    async with following(*(source_of(engine, slot) for slot, engine in enumerate(engines))) as followed:
        await some()
        held = followed.resident
        for slot, engine in enumerate(engines):
            await followed.until(
                lambda slot=slot, engine=engine: len(held.blocks_of(slot)) == true_blocks(engine)
            )
            assert held.complete(slot)
            assert held.fresh(slot, monotonic())
        for number, talk in enumerate(talks):
            engine = engines[number % 2]
            body = {"model": "tiny", "messages": [{"role": "user", "content": talk}]}
            tokens = token_buffer((await ask(engine, "POST", "/tokenize", body)).json()["tokens"])
            cache = engine.engine.cache
            keys = block_keys(tokens, 16, namespace("tiny"))
            assert held.lookup(tokens, PLAIN)[number % 2] == cache.lookup(cache.open(keys), len(tokens) + 1)
        assert followed.count("losses") == followed.count("gaps") == followed.count("garbled") == 0


async def test_an_engine_that_crashes_comes_back_empty(start: Start) -> None:
    engine = await start()
    async with following(source_of(engine)) as followed:
        held = followed.resident
        await chat(engine, "one two three " * 20, max_tokens=1)
        await followed.until(lambda: len(held.blocks_of(0)) == true_blocks(engine) > 0)
        engine.crash()
        await engine.restart()
        await chat(engine, "other " * 30, max_tokens=1)
        await followed.until(lambda: len(held.blocks_of(0)) == true_blocks(engine) and held.complete(0))
        await ask(engine, "POST", "/reset_prefix_cache")
        await followed.until(lambda: held.blocks == 0)
        assert held.complete(0)
