"""Exact mode from end to end: simulated engines publish what they hold, and a conversation goes where it is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from stickyroute.errors import ConfigError
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.server import RunningEngine, serve_engines
from stickyroute.watch import kv_events
from stickyroute.watch.exact_mode import ExactMode
from tests.simulator.client import ask
from tests.support.run_proxy import RunningProxy, run_proxy
from tests.wire.inside import watches_of

LONG = "The quick brown fox jumps over the lazy dog. " * 200
PATIENCE_S = 20.0


@asynccontextmanager
async def engines(folder: Any, count: int, **config: Any) -> AsyncIterator[list[RunningEngine]]:
    configs = [
        EngineConfig(
            **{
                "model": "m",
                "speedup": 50.0,
                "kv_events": f"ipc://{folder}/kv{number}",
                "kv_replay": f"ipc://{folder}/replay{number}",
                "kv_topic": "kv@m",
                **config,
            }
        )
        for number in range(count)
    ]
    running = await serve_engines(configs)
    try:
        yield running
    finally:
        for engine in running:
            await engine.close()


def entry(engine: RunningEngine, number: int, *, replay: bool = True) -> dict[str, Any]:
    published = engine.kv_events
    assert published is not None
    events = {"endpoint": published.endpoint, "topic": "kv@m"}
    if replay:
        events["replay"] = published.replay_endpoint
    return {"name": f"b{number}", "url": engine.url, "events": events}


def exact_of(proxy: RunningProxy) -> ExactMode:
    exact = watches_of(proxy).exact
    assert exact is not None
    return exact


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.005)


async def told(proxy: RunningProxy, running: list[RunningEngine]) -> None:
    """Wait until every event of every engine has been taken up."""
    held = exact_of(proxy).resident
    for slot, engine in enumerate(running):
        await until(
            lambda slot=slot, engine=engine: len(held.blocks_of(slot)) == len(engine.engine.cache.resident())
        )


async def say(
    proxy: RunningProxy, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> tuple[int, int]:
    """Which backend answered, and how many tokens it had cached."""
    answer = await proxy.ask(json.dumps(body).encode(), path=path)
    assert answer.status == 200
    place = answer.get("x-stickyroute-backend")
    assert place is not None
    return int(place[1:]), answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


CHAT = {"model": "m", "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
IDS = {"model": "m", "prompt": list(range(2000)), "max_tokens": 4}


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", IDS)], ids=["chat", "ids"]
)
async def test_a_prompt_goes_where_it_is_and_not_where_it_was(
    tmp_path: Any, dialect: str, path: str, body: dict[str, Any]
) -> None:
    """Somebody else has it computed on the other engine, and the first one loses it: no reply told of either."""
    async with (
        engines(tmp_path, 2, dialect=dialect, page_size=16) as running,
        run_proxy(
            [entry(engine, number) for number, engine in enumerate(running)],
            policy="sticky",
            response_headers=True,
            exact={"check_s": 0.1},
        ) as proxy,
    ):
        exact = exact_of(proxy)
        await say(proxy, body, path)
        # The size of an engine's blocks is known with its first event, so it may take a second turn to learn.
        await told(proxy, running)
        first, cached = await say(proxy, body, path)
        assert cached > 1900
        await until(lambda: exact.state()["prompts_learned"] == 1)
        other = 1 - first
        await ask(running[other], "POST", path, body)
        await ask(running[first], "POST", "/flush_cache" if dialect == "sglang" else "/reset_prefix_cache")
        await told(proxy, running)
        place, cached = await say(proxy, body, path)
        assert place == other
        assert cached > 1900
        assert exact.state()["prompts_learned"] == 1  # a prompt that is known is not asked about again
        shown = (await proxy.admin("/fleet")).json["exact"]
        assert [source["source"] for source in shown["sources"]] == ["b0", "b1"]
        assert all(source["complete"] and source["fresh"] for source in shown["sources"])
        assert shown["corrections"] > 0


async def test_what_is_evicted_is_not_expected(tmp_path: Any) -> None:
    """An engine with room for one and a half of two prompts of 2,250 tokens. Its metrics tell no size, so only
    events tell what is gone."""
    small = replace(DEMO, blocks=200, block_size=16)
    other = {**CHAT, "messages": [{"role": "user", "content": "Another one. " + LONG}]}
    async with (
        engines(tmp_path, 1, profile=small, faults=((0.0, "metrics_missing"),)) as running,
        run_proxy(
            [entry(running[0], 0)], policy="sticky", response_headers=True, exact={"check_s": 0.1}
        ) as proxy,
    ):
        exact = exact_of(proxy)
        for body in (CHAT, CHAT, other, other):
            await say(proxy, body)
            await told(proxy, running)
        await until(lambda: exact.state()["prompts_learned"] == 2)
        for body in (CHAT, other, CHAT):
            before = await proxy.metrics()
            _, cached = await say(proxy, body)
            assert 500 < cached < 1500
            await told(proxy, running)
            after = await proxy.metrics()
            name = "stickyroute_expected_cached_tokens_total"
            assert after.sum(name) - before.sum(name) == pytest.approx(cached, abs=100)


async def test_a_policy_that_does_not_look_at_caches_says_so(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        engines(tmp_path, 1) as running,
        run_proxy([entry(running[0], 0)], policy="round_robin") as proxy,
    ):
        assert watches_of(proxy).exact is None
    assert "round_robin does not look at what is cached" in caplog.text


async def test_without_the_packages_it_does_not_start(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(kv_events, "import_module", missing)
    async with engines(tmp_path, 1) as running:
        with pytest.raises(ConfigError, match=r"stickyroute\[events\]"):
            async with run_proxy([entry(running[0], 0)], policy="sticky"):
                raise AssertionError("it started")


async def test_an_engine_that_publishes_nothing_is_routed_to_as_ever(tmp_path: Any) -> None:
    async with engines(tmp_path, 2, kv_events=None, kv_replay=None) as running:
        backends = [
            {
                "name": f"b{number}",
                "url": engine.url,
                "events": {
                    "endpoint": f"ipc://{tmp_path}/nobody{number}",
                    "replay": f"ipc://{tmp_path}/none",
                },
            }
            for number, engine in enumerate(running)
        ]
        async with run_proxy(backends, policy="sticky", response_headers=True) as proxy:
            first, _ = await say(proxy, CHAT)
            assert await say(proxy, CHAT) == (first, pytest.approx(2250, abs=100))
            state = exact_of(proxy).state()
            assert [source["fresh"] for source in state["sources"]] == [False, False]
            assert state["prompts_learned"] == 0
