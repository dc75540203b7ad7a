"""Looks at backends over real sockets: which route tells, what each answer means, and when asking is spared."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, BackendSpec, Fleet
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.faults import Fault
from stickyroute.simulator.server import serve_engines
from stickyroute.watch.probe import ProbeWatch
from tests.watch.engines import engine, fixed, raw_engine

OFTEN_S = 0.01
NEVER_S = 3600.0


def spec(name: str, port: int, **more: Any) -> BackendSpec:
    return BackendSpec(**{"name": name, "scheme": "http", "host": "127.0.0.1", "port": port, **more})


@asynccontextmanager
async def looking(
    fleet: Fleet,
    interval_s: float = OFTEN_S,
    timeout_s: float = 5.0,
    dialect: Callable[[Backend], str] = lambda backend: "",
    **more: Any,
) -> AsyncIterator[ProbeWatch]:
    watch = ProbeWatch(fleet, interval_s=interval_s, timeout_s=timeout_s, dialect=dialect, **more)
    watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.002)


def health(fleet: Fleet, slot: int = 0) -> str:
    return fleet.state(slot).health


@pytest.mark.parametrize("status", [200, 401, 404])
async def test_a_green_health_is_a_good_look_and_a_missing_one_falls_back(status: int) -> None:
    """The last resort, /v1/models, may want a key that we do not have: somebody works there all the same."""
    async with engine(fixed(b"", status), path="/health") as running:
        fleet = Fleet([spec("a", running.port)], 16)
        async with looking(fleet):
            await until(lambda: health(fleet) == "healthy")


async def test_only_several_bad_looks_in_a_row_take_a_backend_out_and_several_good_ones_bring_it_back() -> (
    None
):
    bad = False

    async def answer(request: Any) -> Any:
        return await fixed(b"", 503 if bad else 200)(request)

    async with engine(answer, path="/health") as running:
        fleet = Fleet([spec("a", running.port), spec("b", running.port, base_path="/b")], 16)
        back: list[int] = []
        async with looking(fleet, on_back=back.append):
            await until(lambda: health(fleet) == "healthy")
            bad = True
            await until(lambda: health(fleet) == "unhealthy")
            assert not fleet.available[0]
            assert "503" in fleet.state(0).why
            bad = False
            await until(lambda: health(fleet) == "healthy")
            assert fleet.available[0]
            assert 0 in back


async def test_sglang_is_not_made_to_generate() -> None:
    engines = await serve_engines([EngineConfig(dialect="sglang")])
    try:
        fleet = Fleet([spec("a", engines[0].port)], 16)
        async with looking(fleet, dialect=lambda backend: "sglang"):
            await until(lambda: health(fleet) == "healthy")  # at once: its /health takes a second
            engines[0].inject(Fault("engine_error"))
            await until(lambda: health(fleet) == "unhealthy")
    finally:
        await engines[0].close()


async def test_one_that_accepts_and_never_answers_is_down_and_delays_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with raw_engine(None) as hung, engine(fixed(b""), path="/health") as running:
        fleet = Fleet([spec("hung", hung.port), spec("a", running.port)], 16)
        async with looking(fleet, timeout_s=0.05):
            await until(lambda: len(running.asked) > 20)
            await until(lambda: health(fleet) == "unhealthy")
            await until(lambda: len(hung.asked) > 6)
        assert health(fleet, 1) == "healthy"
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["backend hung: 3 probes in a row failed: no answer in time"]


async def test_what_a_backend_answered_to_others_spares_a_look() -> None:
    answers, silent = 0, False

    def heard_s(slot: int) -> float:
        nonlocal answers
        answers += 1
        return 0.0 if silent else monotonic()

    async with engine(fixed(b""), path="/health") as running:
        fleet = Fleet([spec("a", running.port)], 16)
        async with looking(fleet, interval_s=0.02, heard_s=heard_s):
            await until(lambda: answers > 5)
            assert len(running.asked) == 1
            silent = True
            await until(lambda: len(running.asked) > 3)


async def test_nothing_spares_a_look_while_looks_fail() -> None:
    """An engine whose core died may still show its metrics."""
    async with engine(fixed(b"", 503), path="/health") as running:
        fleet = Fleet([spec("a", running.port)], 16)
        async with looking(fleet, heard_s=lambda slot: monotonic()):
            await until(lambda: health(fleet) == "unhealthy")


async def test_nor_while_it_is_on_its_way_back() -> None:
    """Found by bench/chaos: metrics were read more often than health was asked, and it never came back."""
    bad = True

    async def answer(request: Any) -> Any:
        return await fixed(b"", 503 if bad else 200)(request)

    async with engine(answer, path="/health") as running:
        fleet = Fleet([spec("a", running.port)], 16)
        async with looking(fleet, heard_s=lambda slot: monotonic()):
            await until(lambda: health(fleet) == "unhealthy")
            bad = False
            await until(lambda: health(fleet) == "healthy")
            seen = len(running.asked)
            await asyncio.sleep(10 * OFTEN_S)
            assert len(running.asked) <= seen + 1


async def test_the_backends_own_key_goes_with_the_question() -> None:
    async with engine(fixed(b""), path="/base/health") as running:
        fleet = Fleet([spec("a", running.port, base_path="/base", api_key="k")], 16)
        async with looking(fleet, interval_s=NEVER_S):
            await until(lambda: health(fleet) == "healthy")
        assert running.asked[0].headers["Authorization"] == "Bearer k"


async def test_b89_who_left_is_asked_no_more_and_who_came_or_moved_is() -> None:
    async with (
        engine(fixed(b""), path="/health") as one,
        engine(fixed(b""), path="/health") as two,
        engine(fixed(b""), path="/health") as three,
    ):
        fleet = Fleet([spec("a", one.port), spec("b", two.port)], 16)
        async with looking(fleet) as watch:
            await until(lambda: len(one.asked) > 2 and len(two.asked) > 2)
            fleet.apply(fleet.plan([spec("a", three.port), spec("c", one.port)]), monotonic())
            watch.sync()
            await until(lambda: len(three.asked) > 2)
            seen = len(two.asked)
            before = len(one.asked)
            await until(lambda: len(one.asked) > before + 5)
            assert len(two.asked) == seen
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert {name for name in names if name.startswith("probe:")} == {"probe:a", "probe:c"}
