"""Group F of the field's bug reports, those on connections and health. Each test is named after its case."""

from __future__ import annotations

import asyncio

from tests.support.fake_backend import Call, FakeBackend, echo, fakes, held, reply
from tests.support.raw_client import CHAT, Response, chat
from tests.support.run_proxy import RunningProxy, run_proxy


async def die(*backends: FakeBackend) -> None:
    for backend in backends:
        await backend.die()


async def test_b66_client_errors_never_count_against_a_backend() -> None:
    async def picky(call: Call) -> None:
        await (reply(400, b'{"error":{"message":"too long"}}') if call.json.get("bad") else echo)(call)

    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, picky)
        bad = await asyncio.gather(*(proxy.ask(chat(f"{i}", bad=True)) for i in range(200)))
        assert {answer.status for answer in bad} == {400}
        good = await asyncio.gather(*(proxy.ask(chat(f"{i}")) for i in range(50)))
        assert {answer.status for answer in good} == {200}
        assert (await proxy.metrics()).sum("stickyroute_backend_available") == 2
        assert len(a.requests) + len(b.requests) == 250


async def test_b69_a_broken_fleet_is_a_503_and_only_an_unknown_model_a_404() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        await die(a, b)
        for _ in range(3):
            known, unknown = await proxy.ask(), await proxy.ask(chat(model="nope"))
            assert (known.status, unknown.status) == (503, 404)
            assert known.get("retry-after")
            assert known.json["error"]["type"]
            assert unknown.json["error"]["code"] == "model_not_found"


async def test_b70_a_fleet_that_died_under_load_is_used_again_by_itself() -> None:
    """Clients keep asking all the while; as soon as the backends are back, all is well without a restart."""
    async with fakes("a", "b", "c") as three, run_proxy(three, models_interval_s=1) as proxy:
        statuses: list[int] = []
        stop = asyncio.Event()

        async def keep_asking(user: int) -> None:
            while not stop.is_set():
                statuses.append((await proxy.ask(headers={"x-session-id": f"{user}"})).status)
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            for user in range(8):
                group.create_task(keep_asking(user))
            for fake in three:
                await fake.arrived(1)
            await die(*three)
            await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == 0)
            for fake in three:
                await fake.listen()
            await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == 3)
            statuses.clear()
            while len(statuses) < 100:
                await asyncio.sleep(0.01)
            stop.set()
        assert set(statuses) == {200}
        await proxy.settled()


async def test_b72_a_hung_backend_stalls_only_its_own_requests() -> None:
    gate = asyncio.Event()
    async with fakes("a", "b", "c") as three, run_proxy(three, policy="ring") as proxy:
        homes = {f"{i}": (await proxy.ask(headers={"x-session-id": f"{i}"})).backend for i in range(30)}
        three[0].on(CHAT, held(gate))
        stuck = [k for k, home in homes.items() if home == "a"]
        fine = [k for k, home in homes.items() if home != "a"]
        assert stuck
        waiting = [asyncio.create_task(proxy.ask(headers={"x-session-id": key})) for key in stuck]
        await three[0].until(lambda: len(three[0].requests) == 2 * len(stuck))
        for _ in range(5):
            answers = await asyncio.gather(*(proxy.ask(headers={"x-session-id": key}) for key in fine))
            assert [answer.backend for answer in answers] == [homes[key] for key in fine]
        assert not any(task.done() for task in waiting)
        gate.set()
        assert {(await task).backend for task in waiting} == {"a"}


async def test_b75_a_slow_probe_neither_ejects_nor_cuts() -> None:
    gate, probes = asyncio.Event(), asyncio.Event()
    look = {"interval_s": 1, "timeout_s": 0.3}
    async with fakes() as fake, run_proxy([fake], models_interval_s=1, probe=look, scrape=look) as proxy:
        fake.on(CHAT, held(gate))
        running = [asyncio.create_task(proxy.ask()) for _ in range(20)]
        await fake.arrived(20)
        for path in ("/v1/models", "/health", "/metrics"):
            fake.on(path, held(probes))
        seen = len(fake.probes)
        await fake.until(lambda: len(fake.probes) > seen)
        await fake.until(lambda: any(call.gone.is_set() for call in fake.probes[seen:]), 15)  # it gave up
        assert (await proxy.metrics()).sum("stickyroute_backend_available") == 1
        gate.set()
        assert {(await task).status for task in running} == {200}
        probes.set()


async def test_b77_a_fleet_with_members_missing_starts_and_adopts_them_later() -> None:
    async with fakes("a", "b", "c") as (a, b, c):
        await b.refuse()
        await c.refuse()
        async with run_proxy([a, b, c], policy="round_robin", room={"slow_start_s": 0}) as proxy:
            assert (await proxy.admin("/readyz")).status == 200
            assert {(await proxy.ask()).backend for _ in range(5)} == {"a"}
            await b.listen()
            await c.listen()
            await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == 3)
            assert {(await proxy.ask()).backend for _ in range(6)} == {"a", "b", "c"}


async def _home(proxy: RunningProxy) -> str:
    return (await proxy.ask(headers={"x-session-id": "k"})).backend


async def test_b78_the_death_of_a_home_costs_its_users_nothing_and_they_come_back() -> None:
    async with fakes("a", "b", "c") as three, run_proxy(three, models_interval_s=1) as proxy:
        home = await _home(proxy)
        fake = next(f for f in three if f.name == home)
        answers: list[Response] = []
        stop = asyncio.Event()

        async def keep_asking() -> None:
            while not stop.is_set():
                answers.append(await proxy.ask(headers={"x-session-id": "k"}))
                await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            group.create_task(keep_asking())
            await fake.arrived(10)
            await fake.die()
            died_at = len(answers)
            while len(answers) < died_at + 20:
                await asyncio.sleep(0.005)
            stop.set()
        assert {answer.status for answer in answers} == {200}
        assert len({answer.backend for answer in answers[died_at + 1 :]}) == 1  # one stable second choice
        assert answers[-1].backend != home
        await fake.listen()
        await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == 3)
        assert await _home(proxy) == home


async def test_b79_no_attempt_goes_where_one_failed() -> None:
    async with fakes("a", "b", "c") as three, run_proxy(three) as proxy:
        home = await _home(proxy)
        first = next(f for f in three if f.name == home)
        others = [f for f in three if f is not first]
        await first.refuse()
        first.drop_idle()
        others[0].on(CHAT, reply(503, b"busy"))
        others[1].on(CHAT, echo)
        before = len(first.connections)
        assert (await proxy.ask(headers={"x-session-id": "k"})).backend == others[1].name
        assert len(others[0].requests) <= 1
        assert len(others[1].requests) == 1
        assert len(first.connections) == before


async def test_b76_a_backend_that_wants_a_key_on_every_path_gets_it_and_nobody_else_sees_it() -> None:
    async with fakes("a", models_status=200) as fake:
        guarded: list[str | None] = []

        async def models(call: Call) -> None:
            guarded.append(call.get("authorization"))
            ok = call.get("authorization") == "Bearer engine-key-B"
            await (reply(200, b'{"object":"list","data":[{"id":"m"}]}') if ok else reply(401, b"no"))(call)

        fake.on("/v1/models", models)
        async with run_proxy([fake.settings(api_key="engine-key-B")]) as proxy:
            assert (await proxy.ask()).status == 200
            assert (await proxy.ask(chat(model="nope"))).status == 404  # its models are known
            for path in ("/metrics", "/fleet", "/readyz"):
                assert b"engine-key-B" not in (await proxy.admin(path)).body
        assert set(guarded) == {"Bearer engine-key-B"}
