"""A configuration that changes while requests run: what moves, what goes on, what stays.

Group H of what broke elsewhere is here and in `test_live_sources`, but for discovery.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.support.fake_backend import Call, events, fakes, held, stream
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import INDEX, run_proxy
from tests.wire.configured import config, homes, text
from tests.wire.inside import until


async def test_a_backend_that_joins_takes_its_part_of_the_keys_and_no_other_moves() -> None:
    async with fakes("a", "b", "c") as (a, b, c), run_proxy([a, b], policy="ring") as proxy:
        await proxy.put_config(text(a, b, policy="ring"))
        before = await homes(proxy)
        answer = (await proxy.put_config(text(a, b, c, policy="ring"))).json
        assert (answer["applied"], answer["added"], answer["needs_restart"]) == (True, ["c"], [])
        assert 0.2 < answer["moved_share"] == answer["minimum_share"] < 0.5
        assert answer["summary"].startswith(f"{answer['gains']['c'] * 100:.0f} % of keys move, c gains ")
        after = await homes(proxy)
        moved = {session for session in before if before[session] != after[session]}
        assert moved
        assert {after[session] for session in moved} == {"c"}


async def test_a_preview_changes_nothing() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a], policy="ring") as proxy:
        answer = (await proxy.put_config(text(a, b, policy="random"), "?dry_run=1")).json
        assert (answer["applied"], answer["added"], answer["generation"]) == (False, ["b"], 1)
        assert {change["path"]: change["live"] for change in answer["changes"]}["policy"] is True
        assert proxy.app.settings.policy == "ring"
        assert [one.name for one in proxy.app.fleet.backends] == ["a"]
        assert not b.probes


async def test_running_streams_go_on_when_their_backend_is_removed_and_when_it_moves() -> None:
    gate = asyncio.Event()
    async with fakes("a", "b") as (a, b), run_proxy([a]) as proxy, await proxy.client() as client:
        a.on(CHAT, held(gate, stream(events(3))))
        client.send(request(chat(stream=True)))
        await a.arrived()
        assert (await proxy.put_config(text(b))).json["removed"] == ["a"]
        moved = {"name": "b", "url": a.url}  # the name of one and the address of the other
        b.on(CHAT, held(gate, stream(events(3))))
        async with await proxy.client() as other:
            other.send(request(chat(stream=True)))
            await b.arrived()
            assert (await proxy.put_config(text(moved))).json["changed"] == ["b"]
            gate.set()
            for one in (client, other):
                reply = await one.response()
                assert (reply.status, reply.body) == (200, b"".join(events(3)))
        assert (await proxy.ask()).get("x-stickyroute-backend") == "b"
        assert len(a.requests) == 2, "under the name of b by now"
        targets = proxy.app._targets
        assert targets is not None
        await until(lambda: not targets._leaving)
        assert not [c for c in b.open if c in b.used], "connections of who moved are gone"


async def test_what_was_learned_survives_a_reload() -> None:
    """A conversation without any id is found by its last turn, wherever its beginning would send it."""
    async with fakes("a", "b", "c", "d") as backends, run_proxy(backends, policy="ring") as proxy:
        app = proxy.app
        parts = app.live._parts
        assert parts is not None
        await homes(proxy, 10)
        app.fleet.loads.trust[1] = 0.5
        kept = (
            parts.affinity.sessions,
            parts.affinity.anchors,
            parts.affinity.prefixes,
            app.fleet.loads,
            app.fleet.loads.index,
            app.fleet.available,
        )
        answer = (
            await proxy.put_config(text(*backends, policy="sticky", affinity={"sources": ["prefix"]}))
        ).json
        assert answer["needs_restart"] == []
        assert parts.affinity.needs == parts.router.needs
        assert kept == (
            parts.affinity.sessions,
            parts.affinity.anchors,
            parts.affinity.prefixes,
            app.fleet.loads,
            app.fleet.loads.index,
            app.fleet.available,
        )
        assert app.fleet.loads.trust[1] == 0.5
        await homes(proxy, 5)


async def test_what_needs_a_restart_says_so_and_keeps_its_value() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        other = text(
            fake, listen="127.0.0.1:1", sticky={"index_entries": 4096, "bound": 2}, ring={"vnodes": 7}
        )
        answer = (await proxy.put_config(other)).json
        assert answer["needs_restart"] == ["listen", "sticky.index_entries", "ring.vnodes"]
        assert "needs a restart: listen, sticky.index_entries, ring.vnodes" in answer["summary"]
        settings = proxy.app.settings
        assert (settings.listen, settings.sticky.index_entries, settings.sticky.bound) == (
            "127.0.0.1:0",
            INDEX["index_entries"],
            2,
        )
        assert (await config(proxy))["needs_restart"] == ["listen", "sticky.index_entries", "ring.vnodes"]
        assert (await proxy.ask()).status == 200


async def test_keys_origins_routes_limits_and_log_level_change_at_once() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        assert (await client.ask(request())).status == 200
        await proxy.put_config(
            text(
                fake,
                api_keys=[{"name": "team", "key": "sesame"}],
                cors={"allow_origins": ["https://app.example.com"]},
                extra_routes=["POST /v1/own"],
                limits={"body_bytes": 100},
            )
        )
        # On a connection that was there before.
        assert (await client.ask(request())).status == 401
        key = {"authorization": "Bearer sesame", "origin": "https://app.example.com"}
        reply = await client.ask(request(path="/v1/own", headers=key))
        assert reply.status == 200
        assert reply.get("access-control-allow-origin") == "https://app.example.com"
        assert (await client.ask(request(chat("x" * 200), headers=key))).status == 413


async def test_a_mistake_changes_nothing_at_all_and_is_told() -> None:
    """B92: one new backend is right, one is wrong, weights changed: nothing of it is applied."""
    async with fakes("a", "b") as (a, b), run_proxy([a]) as proxy:
        await proxy.put_config(text(a))
        bad = text(a.settings(weight=3), b, {"name": "c", "url": "ftp://x"}, policy="random")
        answer = await proxy.put_config(bad)
        assert answer.status == 400
        assert answer.json["error"]["message"] == "backends[2].url: must start with http:// or https://"
        assert [one.spec.weight for one in proxy.app.fleet.backends] == [1]
        assert proxy.app.settings.policy == "sticky"
        told = await config(proxy)
        assert (told["generation"], told["last_error"]) == (2, answer.json["error"]["message"])
        assert (await proxy.ask()).status == 200
        assert (await proxy.put_config("policy: [ring")).status == 400
        assert (await proxy.put_config("  ")).status == 400
        assert (await config(proxy))[
            "last_error"
        ] == "body, line 1, column 14: not YAML: expected ',' or ']', but got '<stream end>'"
        await proxy.put_config(text(a))
        assert (await config(proxy))["last_error"] is None


async def test_a_removed_backend_is_asked_nothing_any_more_and_its_series_are_gone() -> None:
    """B80 and B89."""
    async with (
        fakes("a", "b") as (a, b),
        run_proxy([a, b], models_interval_s=0.02, scrape={"interval_s": 0.02}) as proxy,
    ):
        quick = {"models_interval_s": 0.02, "scrape": {"interval_s": 0.02}}
        await b.until(lambda: len(b.probes) > 4)
        await proxy.put_config(text(a, **quick))
        seen = len(b.probes)
        count = len(a.probes)
        await a.until(lambda: len(a.probes) > count + 6)
        assert len(b.probes) <= seen + 1, "one that was under way may still arrive"
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_backend_available", backend="a") == 1
        assert 'backend="b"' not in (await proxy.admin("/metrics")).body.decode()


async def test_twenty_reloads_leave_tasks_and_descriptors_as_they_were(tmp_path: Path) -> None:
    async with fakes("a", "b", "c") as (a, b, c), run_proxy([a, b]) as proxy:

        async def once(i: int) -> None:
            both = [a, b, c][: 2 + i % 2]
            answer = await proxy.put_config(text(*both, policy=("sticky", "ring")[i % 2]))
            assert answer.status == 200
            assert (await proxy.ask()).status == 200

        async def settled() -> tuple[int, int]:
            targets = proxy.app._targets
            assert targets is not None
            targets.tidy()
            return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

        await once(0)
        before = await settled()
        for i in range(1, 21):
            await once(i)
        async with asyncio.timeout(10):
            while True:
                after = await settled()
                if after[0] <= before[0] and after[1] <= before[1] + 4:
                    break
                await asyncio.sleep(0.02)
        assert proxy.app.live.generation == 22


async def test_a_call_that_is_retried_after_its_backend_moved_goes_to_the_new_address() -> None:
    """A pooled connection that turns out dead is replaced by one to where the backend is by then."""
    gate = asyncio.Event()

    async def close(call: Call) -> None:
        await gate.wait()
        call.close()

    async with fakes("a", "b") as (a, b), run_proxy([a]) as proxy, await proxy.client() as client:
        assert (await client.ask(request())).status == 200
        a.on(CHAT, close)
        client.send(request())
        await a.arrived(2)
        await proxy.put_config(text({"name": "a", "url": b.url}))
        gate.set()
        reply = await client.response()
        assert (reply.status, reply.json["backend"]) == (200, "b")


async def test_exact_mode_begins_moves_and_ends_with_the_settings() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], policy="sticky") as proxy:

        async def sources(**settings: Any) -> list[str]:
            entries = [b.settings(), a.settings(events={"endpoint": "tcp://127.0.0.1:1"})]
            assert (await proxy.put_config(text(*entries, **settings))).status == 200
            assert (await proxy.ask()).status == 200
            exact = (await proxy.admin("/fleet")).json.get("exact", {"sources": []})
            return [source["source"] for source in exact["sources"]]

        watches = proxy.app._watches
        assert watches is not None
        assert watches.exact is None
        assert len(await sources(policy="sticky")) == 1
        first = watches.exact
        assert first is not None
        assert first.resident is not None
        # Nothing about it changed, so it goes on.
        await sources(policy="sticky", strict_json=False)
        assert watches.exact is first
        assert await sources(policy="ring") == []
        assert len(await sources(policy="sticky")) == 1
        assert watches.exact is not first


async def test_a_request_that_waits_for_a_backend_goes_to_one_that_a_reload_brings() -> None:
    async with fakes("a", "b") as (a, b):
        await a.refuse()
        async with (
            run_proxy([a], hold={"requests": 1, "wait_s": 30}) as proxy,
            await proxy.client() as client,
        ):
            client.send(request())
            await until(lambda: proxy.app._proxy is not None and len(proxy.app._proxy.hold) == 1)
            await proxy.put_config(text(b, hold={"requests": 1, "wait_s": 30}))
            reply = await client.response()
            assert (reply.status, reply.json["backend"]) == (200, "b")


async def test_what_an_operator_said_of_a_backend_outlives_reloads() -> None:
    async with fakes("a", "b", "c") as (a, b, c), run_proxy([a, b]) as proxy:
        fleet = proxy.app.fleet
        found = fleet.find("a")
        assert found is not None
        fleet.drain(found.slot, 0.0)
        await proxy.put_config(text(a.settings(weight=3), c, policy="ring"))
        assert fleet.state(found.slot).operator == "draining"
        assert set((await homes(proxy, 10)).values()) == {"c"}
