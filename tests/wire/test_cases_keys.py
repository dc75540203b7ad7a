"""Groups A and B of the field's bug reports, as far as they are about keys and prefixes. Each test is named
after its case."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fake_backend import fakes
from tests.support.raw_client import CHAT
from tests.support.run_proxy import RunningProxy, run_proxy

SYSTEM = {"role": "system", "content": "You are a helpful assistant of the shop. " * 50}
POLICIES = ["sticky", "bounded_ring", "ring"]


@asynccontextmanager
async def proxied(count: int, **settings: Any) -> AsyncIterator[RunningProxy]:
    names = [f"b{number}" for number in range(count)]
    async with fakes(*names) as backends, run_proxy(backends, **settings) as proxy:
        yield proxy


async def ask(proxy: RunningProxy, messages: list[dict[str, str]], **more: Any) -> str:
    """The name of the backend that answered; the answer must be a 200."""
    headers: Mapping[str, str] = more.pop("headers", {})
    body = json.dumps({"model": "m", "messages": messages, **more}).encode()
    answer = await proxy.ask(body, path=CHAT, headers=headers)
    assert answer.status == 200, answer.body
    return answer.backend


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("policy", POLICIES)
async def test_b01_a_missing_key_is_no_error_and_spreads(policy: str) -> None:
    async with proxied(3, policy=policy) as proxy:
        places = Counter[str]()
        for number in range(50):
            more: dict[str, Any] = (
                {"user": ""} if 30 <= number < 40 else {"user": None} if number >= 40 else {}
            )
            places[await ask(proxy, [user(f"{number} is a number")], **more)] += 1
        assert len(places) == 3


@pytest.mark.parametrize("policy", POLICIES)
async def test_b11_a_conversation_without_ids_stays_from_its_first_turn_on(policy: str) -> None:
    """There is no length below which nothing is remembered."""
    async with proxied(4, policy=policy) as proxy:
        talks = [[SYSTEM, user(f"hello, I am number {number}")] for number in range(20)]
        homes = [await ask(proxy, talk) for talk in talks]
        places: list[set[str]] = [{home} for home in homes]
        for turn in range(6):
            for number, talk in enumerate(talks):
                talk += [{"role": "assistant", "content": f"{turn} " * 600}, user(f"and then {turn}?")]
                places[number].add(await ask(proxy, talk))
        assert [len(one) for one in places] == [1] * 20


async def test_b13_one_system_prompt_and_random_questions_stay_on_few_at_low_load() -> None:
    """The overlap keeps them together as long as nobody queues there."""
    async with proxied(4, policy="sticky") as proxy:
        places = Counter([await ask(proxy, [SYSTEM, user(f"{number}?")]) for number in range(200)])
        assert places.most_common(1)[0][1] >= 0.95 * 200


@pytest.mark.parametrize("policy", ["ring", "bounded_ring"])
async def test_a_common_head_does_not_collapse_the_fleet_in_its_first_minute(policy: str) -> None:
    """A handful of conversations without ids under one system prompt, and nothing before them."""
    async with proxied(4, policy=policy) as proxy:
        talks = [[SYSTEM, user(f"I am {number} and new here.")] for number in range(16)]
        homes = [await ask(proxy, talk) for talk in talks]
        assert max(Counter(homes).values()) <= 8
        for talk in talks:
            talk += [{"role": "assistant", "content": "Welcome! " * 50}, user("And now?")]
        assert [await ask(proxy, talk) for talk in talks] == homes, "where each of them stays"


async def test_b24_b25_a_named_session_needs_no_memory_and_no_time() -> None:
    """Nothing is stored, so nothing expires or fills up: the same backend after any number of others."""
    async with proxied(4, policy="ring") as proxy:
        live = await ask(proxy, [user("hi")], headers={"x-session-id": "live"})
        for number in range(300):
            await ask(proxy, [user("hi")], headers={"x-session-id": f"other {number}"})
        assert await ask(proxy, [user("something else")], headers={"x-session-id": "live"}) == live


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_clock_in_the_system_prompt_moves_nobody(policy: str) -> None:
    async with proxied(4, policy=policy) as proxy:
        places: list[set[str]] = [set() for _ in range(12)]
        for clock in ("2026-11-29T10:15:03Z", "2026-11-29T10:16", "9:59", "1764411303"):
            for number, found in enumerate(places):
                system = {"role": "system", "content": f"You help. It is {clock}. Be brief."}
                text = f"{number} wants to know all about {number} things. " * 20
                found.add(await ask(proxy, [system, user(text)]))
        assert [len(found) for found in places] == [1] * 12
