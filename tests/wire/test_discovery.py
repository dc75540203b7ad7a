"""Backends that come and go by discovery, behind a proxy that serves meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stickyroute.watch.discovery import dns, file, places, watch
from tests.support.fake_backend import FakeBackend, events, fakes, held, stream
from tests.support.fake_dns import fake_dns
from tests.support.fake_kubernetes import PODS, fake_kubernetes, pod
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy
from tests.wire.inside import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "POLL_S", 0.01)
    monkeypatch.setattr(watch, "GATHER_S", 0.01)
    monkeypatch.setattr(watch, "FAILED_TICK_S", 0.02)
    monkeypatch.setattr(dns, "LEAST_S", 0.02)
    monkeypatch.setattr(places, "_FIRST_PAUSE_S", 0.01)


def names(proxy: RunningProxy) -> list[str]:
    return sorted(backend.name for backend in proxy.app.fleet.backends)


async def states(proxy: RunningProxy) -> dict[str, Any]:
    fleet = (await proxy.admin("/fleet")).json
    return {one["source"]: one for one in fleet["discovery"]}


async def test_a_file_of_backends_is_followed_and_its_mistakes_are_not(tmp_path: Path) -> None:
    path = tmp_path / "backends.json"
    found = [{"kind": "file", "path": str(path), "weight": 2, "api_key": "engine-key"}]
    async with fakes("a", "b") as (a, b), run_proxy([], discovery=found) as proxy:
        assert (await proxy.ask()).status == 503, "none yet"
        assert (await proxy.admin("/readyz")).status == 503
        path.write_text(json.dumps([a.settings(), b.settings(weight=1)]))
        await until(lambda: names(proxy) == ["a", "b"])
        assert {one.name: one.spec.weight for one in proxy.app.fleet.backends} == {"a": 2, "b": 1}
        assert (await proxy.ask()).status == 200
        assert (a.requests + b.requests)[0].get("authorization") == "Bearer engine-key"
        path.write_text(json.dumps([a.settings(), {"url": "ftp://x"}]))
        state: dict[str, Any] = {}

        async def failed() -> bool:
            state.update((await states(proxy))[f"file:{path}"])
            return state["failures"] > 1

        async with asyncio.timeout(10):
            while not await failed():
                await asyncio.sleep(0.01)
        assert state["error"] == (
            f"{path}: backends[1].url: must start with http:// or https://; the last 2 backends stay"
        )
        path.write_text("backends: []\n")
        await until(lambda: "found no backend" in proxy.app.live.discovery_state()[0]["error"])
        assert names(proxy) == ["a", "b"]
        path.write_text(f"backends:\n- {{name: b, url: '{b.url}'}}\n")
        await until(lambda: names(proxy) == ["b"])
        assert (await proxy.ask()).json["backend"] == "b"


async def test_an_empty_answer_may_mean_nobody(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    async with fakes("a") as a:
        path.write_text(json.dumps([a.url]))
        async with run_proxy(
            [], discovery=[{"kind": "file", "path": str(path), "on_empty": "drop"}]
        ) as proxy:
            assert (await proxy.ask()).status == 200
            path.write_text("[]")
            await until(lambda: names(proxy) == [])
            reply = await proxy.ask()
            assert (reply.status, reply.get("retry-after") is not None) == (503, True)


async def test_a_backend_whose_address_changes_in_dns_is_found_again() -> None:
    """B93: no connection to the old address is used again, and users keep their home."""
    async with fake_dns() as server, fakes("a") as a, fakes("b", host="127.0.0.2") as b:
        server.ttl_s = 300
        server.records = {
            ("vllm.test", "SRV"): [f"0 1 {a.port} vllm-0.test."],
            ("vllm-0.test", "A"): ["127.0.0.1"],
        }
        found = [{"kind": "dns", "host": "vllm.test", "record": "SRV", "resolver": server.address}]
        async with run_proxy([], discovery=found) as proxy:
            await until(lambda: names(proxy))
            assert (await proxy.ask()).json["backend"] == "a"
            name = f"vllm-0.test:{a.port}"
            server.records["vllm.test", "SRV"] = [f"0 1 {b.port} vllm-0.test."]
            server.records["vllm-0.test", "A"] = ["127.0.0.2"]
            assert names(proxy) == [name]
            await a.die()
            await proxy.ask()  # finds that nobody listens there any more
            await until(lambda: names(proxy) == [f"vllm-0.test:{b.port}"])
            assert (await proxy.ask()).json["backend"] == "b"
            assert len(a.requests) == 1


async def test_a_pod_that_comes_back_under_its_name_gets_its_users_back(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.touch()
    async with (
        fakes("a", "b", "c") as (a, b, c),
        fakes("new", host="127.0.0.2") as new,
        fake_kubernetes(kubeconfig) as api,
    ):
        found = [
            {
                "kind": "kubernetes",
                "selector": "app=vllm",
                "kubeconfig": str(kubeconfig),
                "namespace": "default",
            }
        ]

        def put(name: str, fake: FakeBackend, **more: Any) -> None:
            api.put(PODS, pod(name, fake.host, ports=(("http", fake.port),), **more))

        for name, fake in (("vllm-0", a), ("vllm-1", b), ("vllm-2", c)):
            put(name, fake)

        async with run_proxy([], discovery=found, policy="ring", response_headers=True) as proxy:

            async def homes() -> list[str | None]:
                async with await proxy.client() as client:
                    return [
                        (await client.ask(request(headers={"x-session-id": f"s{i}"}))).get(
                            "x-stickyroute-backend"
                        )
                        for i in range(30)
                    ]

            await until(lambda: len(names(proxy)) == 3)
            before = await homes()
            assert set(before) == {"vllm-0", "vllm-1", "vllm-2"}
            gate = asyncio.Event()
            a.on(CHAT, held(gate, stream(events(3))))
            async with await proxy.client() as client:
                session = f"s{before.index('vllm-0')}"
                client.send(request(chat(stream=True), headers={"x-session-id": session}))
                seen = len(a.requests)
                await a.arrived(seen + 1)
                put("vllm-0", a, ending=True, ready=False)
                await until(lambda: not proxy.app.fleet.available[proxy.app.fleet.find("vllm-0").slot])
                during = await homes()
                assert "vllm-0" not in during
                assert [was for was, now in zip(before, during, strict=True) if was != now] == [
                    "vllm-0"
                ] * before.count("vllm-0")
                put("vllm-9", new, ending=True, ready=False)
                api.delete(PODS, "vllm-0")
                await until(lambda: names(proxy) == ["vllm-1", "vllm-2"])
                gate.set()
                reply = await client.response()
                assert (reply.status, reply.body) == (200, b"".join(events(3)))
            put("vllm-0", new)
            await until(lambda: names(proxy) == ["vllm-0", "vllm-1", "vllm-2"])
            assert await homes() == before
            assert len(new.requests) == before.count("vllm-0")


async def test_sources_come_go_and_change_their_options_with_the_configuration(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    ports = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    async with fakes("a", "b") as (a, b):
        one.write_text(json.dumps([a.settings()]))
        other.write_text(json.dumps([b.settings()]))

        def told(*entries: dict[str, Any], **more: Any) -> str:
            return json.dumps(
                {**ports, "discovery": [{"kind": "file", **entry} for entry in entries], **more}
            )

        async with run_proxy([], discovery=[{"kind": "file", "path": str(one)}]) as proxy:
            assert names(proxy) == ["a"]
            await proxy.put_config(told({"path": str(one), "weight": 5}))
            assert [backend.spec.weight for backend in proxy.app.fleet.backends] == [5]
            await proxy.put_config(told({"path": str(one)}, {"path": str(other)}))
            await until(lambda: names(proxy) == ["a", "b"])
            await proxy.put_config(told({"path": str(other)}))
            assert names(proxy) == ["b"]
            # Another file in the place of the first: nobody is lost until it was read.
            await proxy.put_config(told({"path": str(one)}))
            assert names(proxy) == ["b"]
            await until(lambda: names(proxy) == ["a"])
            await proxy.put_config(json.dumps({**ports, "backends": [b.settings()]}))
            assert names(proxy) == ["b"]
            assert (await proxy.ask()).json["backend"] == "b"
        running = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("discovery")]
        assert not running


async def test_what_the_configuration_names_comes_before_what_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "backends.yaml"
    async with fakes("a", "b", "c") as (a, b, c):
        path.write_text(
            json.dumps([{"name": "a", "url": c.url}, {"name": "again", "url": a.url}, b.settings()])
        )
        async with run_proxy([a], discovery=[{"kind": "file", "path": str(path)}]) as proxy:
            assert {one.name: one.spec.url for one in proxy.app.fleet.backends} == {"a": a.url, "b": b.url}
            assert list(proxy.app.fleet.loads.room) == [1.0, 1.0], "nobody was served before b was found"
            assert (await states(proxy))[f"file:{path}"]["left_out"] == ["a", "again"]
            path.write_text(json.dumps([{"name": "a", "url": c.url}, {"name": "d", "url": b.url}]))
            await until(lambda: names(proxy) == ["a", "d"])
            assert proxy.app.fleet.loads.room[proxy.app.fleet.find("d").slot] < 1.0
        assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
            f"discovery file:{path}: backend a is left out: the configuration has one of that name",
            f"discovery file:{path}: backend again is left out: the configuration has {a.url} as a",
        ]
