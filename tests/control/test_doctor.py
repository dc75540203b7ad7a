"""The doctor behind the proxy: it hears of requests, tells what it found, and takes no more than its share."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stickyroute.control.doctor import Ward
from tests.support.fake_backend import fakes
from tests.support.raw_client import RawClient, request
from tests.support.run_proxy import RunningProxy, run_proxy

TEXT = "Bread is baked each morning. " * 20


def asked(user: str, turn: int, clock: bool) -> bytes:
    messages = [{"role": "system", "content": (f"It is 12:00:{turn:02}. " if clock else "") + TEXT}]
    messages += [
        {"role": "user", "content": f"What of day {number} of the week, as {user} would say?"}
        for number in range(turn + 1)
    ]
    return json.dumps({"model": "m", "user": user, "messages": messages}).encode()


async def doctor(proxy: RunningProxy, query: str = "") -> Any:
    async with await RawClient.connect(proxy.admin_port) as client:
        sent = request(
            method="GET", path=f"/doctor{query}", headers={"Connection": "close"}, host="127.0.0.1"
        )
        return await client.ask(sent, method="GET")


async def found(proxy: RunningProxy, requests: int) -> Any:
    """The report once so many requests were looked at."""
    async with asyncio.timeout(10):
        while (told := (await doctor(proxy)).json)["requests"] < requests:
            await asyncio.sleep(0.02)
    return told


@pytest.mark.parametrize("policy", ["bounded_ring", "sticky", "round_robin"])
async def test_who_breaks_prefixes_is_named_and_nobody_else(policy: str) -> None:
    keys = [{"name": "good", "key": "key-of-good"}, {"name": "clocked", "key": "key-of-clocked"}]
    async with fakes("a", "b") as two, run_proxy(two, policy=policy, api_keys=keys) as proxy:
        for turn in range(4):
            for name in ("good", "clocked"):
                headers = {"Authorization": f"Bearer key-of-{name}"}
                await proxy.ask(asked(f"{name} user", turn, name == "clocked"), headers=headers)
        told = await found(proxy, 8)
        text = (await doctor(proxy, "?format=text")).body.decode()
        metrics = (await proxy.admin("/metrics")).body.decode()
    (finding,) = told["findings"]
    assert (finding["tenant"], finding["place"], finding["kind"]) == (
        "clocked",
        "system",
        "timestamp or date",
    )
    assert finding["breaks"] == 3
    assert finding["lost_tokens_per_hour"] > 0
    assert "Bread" not in json.dumps(told)
    assert "tenant clocked" in text
    assert 'place="system"' in metrics


async def test_the_tenant_header_names_who_asked() -> None:
    affinity = {"tenant_header": "x-team"}
    async with fakes("a") as fake, run_proxy([fake], affinity=affinity) as proxy:
        for turn in range(2):
            await proxy.ask(asked("u", turn, True), headers={"X-Team": "blue"})
        told = await found(proxy, 2)
    assert [finding["tenant"] for finding in told["findings"]] == ["blue"]


async def test_samples_are_shown_behind_the_token_only() -> None:
    settings = {"doctor": {"samples": True}, "admin_token": "the-token-of-the-operator"}
    async with fakes("a") as fake, run_proxy([fake], **settings) as proxy:
        for turn in range(2):
            await proxy.ask(asked("u", turn, True))
        told = await found(proxy, 2)
        assert "samples" not in told["findings"][0]
        assert (await doctor(proxy, "?samples=1")).status == 401
        async with await RawClient.connect(proxy.admin_port) as client:
            headers = {"Connection": "close", "Authorization": "Bearer the-token-of-the-operator"}
            sent = request(method="GET", path="/doctor?samples=1", headers=headers, host="127.0.0.1")
            shown = (await client.ask(sent, method="GET")).json
    assert "12:00:01" in shown["findings"][0]["samples"][0]


async def test_off_looks_at_nothing() -> None:
    async with fakes("a") as fake, run_proxy([fake], doctor={"enabled": False}) as proxy:
        await proxy.ask(asked("u", 0, True))
        ward: Ward = proxy.app.insight.doctor
        assert not ward._waiting
        assert (await doctor(proxy)).json["requests"] == 0
        assert b"The doctor is off" in (await doctor(proxy, "?format=text")).body


async def test_what_waits_is_bounded_and_fewer_conversations_are_looked_at() -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        ward: Ward = proxy.app.insight.doctor
        ward.waiting_most = 8
        await ward.stop()
        async with await proxy.client() as client:
            for number in range(12):
                await client.ask(request(asked(f"user {number}", 0, False)))
        assert len(ward._waiting) == 8
        ward._reviewed_s -= 60.0
        ward._review()
        assert ward.mask == 1
        while ward._waiting:
            ward.work(1.0)
        assert ward._waiting_bytes == 0
        ward._granted_s = 1.0  # as if it had run for a minute with a sixtieth of a core
        ward._reviewed_s -= 60.0
        ward._review()
        assert ward.mask == 0
