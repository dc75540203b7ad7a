"""Cases of group G: what went wrong elsewhere with metrics. Each test names its case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stickyroute.clock import monotonic
from tests.support.fake_backend import fakes, reply
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

KEYLESS = {"affinity": {"sources": ["header:x-user-id"]}}
KV_NAMES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")


def told(name: str, value: float) -> bytes:
    """An engine's /metrics with one gauge of KV utilization."""
    return f'# TYPE {name} gauge\n{name}{{model_name="m",engine="0"}} {value}\n'.encode()


async def lines(proxy: RunningProxy) -> int:
    return (await proxy.admin("/metrics")).body.count(b"\n")


async def test_b80_a_removed_backend_has_no_series_and_an_unavailable_one_shows_0() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for user in range(8):
            await proxy.ask(headers={"x-user-id": str(user)})
        slots = {backend.name: backend.slot for backend in proxy.app.fleet.backends}
        proxy.app.fleet.record_refused(slots["b"], monotonic(), 1.0)
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_backend_available", backend="b") == 0
        assert samples.sum("stickyroute_backend_available", backend="a") == 1
        assert samples.sum("stickyroute_requests_total", backend="b") > 0
        only_a = proxy.app.fleet.plan(
            [backend.spec for backend in proxy.app.fleet.backends if backend.name == "a"]
        )
        proxy.app.fleet.apply(only_a, monotonic())
        assert b'backend="b"' not in (await proxy.admin("/metrics")).body


@pytest.mark.parametrize("policy", ["bounded_ring", "sticky", "least_tokens", "least_requests"])
async def test_b82_every_name_of_kv_utilization_is_read_and_keeps_keyless_traffic_away(policy: str) -> None:
    """Three engines that are 95 % full, one name each; the fourth, at 5 %, gets most of what has no key."""
    async with fakes("full-0", "full-1", "full-2", "free") as fleet:
        for fake, name, value in zip(fleet, (*KV_NAMES, KV_NAMES[0]), (0.95, 0.95, 0.95, 0.05), strict=True):
            fake.on("/metrics", reply(200, told(name, value), fields=[("Content-Type", "text/plain")]))
        # One look at each, which counts for 15 s: this machine may be too busy for a second one.
        async with run_proxy(fleet, policy=policy, **KEYLESS) as proxy:
            seen = await proxy.until_metrics(
                lambda samples: samples.sum("stickyroute_backend_kv_utilization") > 2.89
            )
            assert [seen.sum("stickyroute_backend_kv_utilization", backend=fake.name) for fake in fleet] == [
                0.95, 0.95, 0.95, 0.05,
            ]  # fmt: skip
            assert seen.sum("stickyroute_backend_effective_weight", backend="free") == 1
            assert seen.sum("stickyroute_backend_effective_weight") < 3.5
            async with await proxy.client() as client:
                for _ in range(12):
                    assert (await client.ask(request(chat()))).status == 200
            asked = [sum(1 for call in fake.requests if call.path == CHAT) for fake in fleet]
            assert asked[3] >= 10, asked


@pytest.mark.parametrize("strict", [True, False])
async def test_b83_names_that_clients_make_up_become_no_series(strict: bool) -> None:
    """Model names, one of a megabyte, and paths: not 20 lines more, and none of them holds a made-up name.

    tests/metrics/test_form.py does the same with 5000 names.
    """
    async with fakes() as fake, run_proxy([fake], strict_models=strict) as proxy:
        await proxy.ask()
        await proxy.ask(chat(model="typo"))
        await proxy.ask(path="/v1/typo")
        before = await lines(proxy)
        async with await proxy.client() as client:
            for number in range(100):
                await client.ask(request(chat(model=f"evil-{number}")))
                await client.ask(request(chat(), path=f"/v1/evil-{number}"))
            await client.ask(request(chat(model="evil" * 250_000)))
        text = (await proxy.admin("/metrics")).body
        assert text.count(b"\n") < before + 20
        assert b"evil" not in text


KILLED = """
import os, signal
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.metrics import Metrics
metrics = Metrics(Fleet([BackendSpec("a", "http", "127.0.0.1", 1)], 8), "1")
metrics.record("", "a", "/", 200, "home", 0.1, 1.0, 1, 1)
assert b"stickyroute_requests_total" in b"".join(metrics.text())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_b86_metrics_keep_no_files_so_a_killed_process_leaves_none(tmp_path: Path) -> None:
    """Even where the environment asks prometheus_client for them."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env=env, check=False, cwd=Path(__file__).parents[2]
    )
    assert killed.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


async def test_b87_figures_that_grow_old_count_for_nothing_and_only_theirs() -> None:
    """A told that it is full, then its /metrics fails: it serves on, and in time has its whole share again; B's figures
    stay fresh."""
    settings = {"scrape": {"interval_s": 0.03}, "room": {"slow_start_s": 0, "cool_down_s": 0}}
    async with fakes("a", "b") as (a, b), run_proxy([a, b], **settings, **KEYLESS) as proxy:
        plain = [("Content-Type", "text/plain")]
        a.on("/metrics", reply(200, told(KV_NAMES[0], 0.97), fields=plain))
        b.on("/metrics", reply(200, told(KV_NAMES[0], 0.1), fields=plain))
        await proxy.until_metrics(lambda samples: samples.sum("stickyroute_backend_kv_utilization") > 1.06)
        await proxy.until_metrics(
            lambda samples: samples.sum("stickyroute_backend_effective_weight", backend="a") < 0.9
        )
        a.on("/metrics", reply(500, b"broken"))
        age = "stickyroute_backend_sample_age_seconds"
        await proxy.until_metrics(
            lambda samples: samples.sum(age, backend="a") > 0.2 > samples.sum(age, backend="b")
        )
        proxy.app.fleet.tick(monotonic() + 60)
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_backend_effective_weight", backend="a") == 1
        assert samples.sum("stickyroute_backend_available", backend="a") == 1
        async with await proxy.client() as client:
            for _ in range(20):
                assert (await client.ask(request(chat()))).status == 200
        asked = [sum(1 for call in fake.requests if call.path == CHAT) for fake in (a, b)]
        assert min(asked) >= 4, asked  # fair, not more
