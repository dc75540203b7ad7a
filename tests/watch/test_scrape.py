"""The scrape over real sockets: what becomes of each answer, and that no backend delays another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from stickyroute.clock import monotonic
from stickyroute.fleet import Fleet
from stickyroute.fleet.sample import Sample
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.faults import parse
from stickyroute.simulator.server import serve_engines
from stickyroute.watch import scrape as watch_scrape
from stickyroute.watch.scrape import ScrapeWatch
from tests.watch.engines import Answer, engine, fixed
from tests.watch.test_models import fleet_of, spec, until, unused_port

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
VLLM = (CAPTURES / "vllm2-metrics-after-evict.txt").read_bytes()
NEVER_S = 3600.0


@asynccontextmanager
async def scraping(
    fleet: Fleet,
    interval_s: float = NEVER_S,
    timeout_s: float = 30.0,
    on_failed: Callable[[int], object] = lambda slot: None,
) -> AsyncIterator[list[tuple[int, Sample, float]]]:
    """What was recorded, as it comes."""
    seen: list[tuple[int, Sample, float]] = []
    watch = ScrapeWatch(
        fleet,
        lambda *told: seen.append(told),
        interval_s=interval_s,
        timeout_s=timeout_s,
        on_failed=on_failed,
    )
    watch.start()
    try:
        yield seen
    finally:
        await watch.stop()


def in_turn(*answers: Answer) -> Answer:
    """Each answer once, the last for good."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


async def hang(request: web.Request) -> web.Response:
    await until(lambda: request.transport is None)
    return web.Response()


async def test_a_page_becomes_a_sample_with_its_time() -> None:
    before_s = monotonic()
    async with (
        engine(fixed(VLLM), path="/metrics") as running,
        scraping(fleet_of(spec("a", running.port))) as seen,
    ):
        await until(lambda: bool(seen))
    slot, sample, now_s = seen[0]
    assert (slot, sample.blocks, sample.dialect) == (0, 140, "vllm")
    assert before_s <= now_s <= monotonic()  # a loop's own time is in whole milliseconds


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_simulated_engine_of_either_kind(dialect: str) -> None:
    (simulated,) = await serve_engines([EngineConfig(model="m", dialect=dialect)])  # type: ignore[arg-type]
    try:
        async with scraping(fleet_of(spec("a", simulated.port))) as seen:
            await until(lambda: bool(seen))
    finally:
        await simulated.close()
    sample = seen[0][1]
    assert sample.dialect == dialect
    assert sample.running == sample.waiting == 0
    assert sample.kv_utilization == 0.0
    assert sample.capacity_tokens
    assert sample.capacity_tokens == (sample.blocks or 0) * (sample.block_size_tokens or 0)


async def test_an_sglang_without_metrics_tells_its_load_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    (simulated,) = await serve_engines([EngineConfig(model="m", dialect="sglang")])
    simulated.inject(parse("metrics_missing"))
    try:
        async with scraping(fleet_of(spec("a", simulated.port)), interval_s=0.01) as seen:
            await until(lambda: len(seen) >= 3)
    finally:
        await simulated.close()
    assert seen[0][1].capacity_tokens == simulated.engine.cache.capacity_tokens
    assert (seen[0][1].running, seen[0][1].kv_utilization) == (0, 0.0)
    assert caplog.text.count("its /v1/loads is read") == 1


async def test_one_hung_backend_delays_no_other() -> None:
    async with (
        engine(hang, path="/metrics") as hung,
        engine(fixed(VLLM), path="/metrics") as well,
        scraping(fleet_of(spec("hung", hung.port), spec("well", well.port)), interval_s=0.01) as seen,
    ):
        await until(lambda: len(hung.asked) == 1 and len(seen) >= 5)
        assert {slot for slot, _, _ in seen} == {1}


async def test_a_backend_that_hangs_is_asked_again_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        engine(in_turn(hang, fixed(VLLM)), path="/metrics") as running,
        scraping(fleet_of(spec("a", running.port)), interval_s=0.01, timeout_s=0.05) as seen,
    ):
        await until(lambda: bool(seen))
    assert "its /metrics cannot be read: no answer in time" in caplog.text


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (fixed("no", 404), "SGLang needs --enable-metrics"),
        (fixed("no", 500), "answered 500"),
        (fixed("up 1\n"), "names nothing that is known"),
        (fixed(b"#" * 2000), "is too long"),
    ],
)
async def test_what_is_no_page_is_said_once_and_recorded_never(
    answer: Answer, told: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_scrape, "PAGE_BYTES", 1000)
    async with (
        engine(answer, path="/metrics") as running,
        scraping(fleet_of(spec("a", running.port)), interval_s=0.001) as seen,
    ):
        await until(lambda: len(running.asked) >= 4)
    assert not seen
    assert [
        record.getMessage().count(told) for record in caplog.records if "backend a" in record.getMessage()
    ] == [1]


async def test_what_cannot_be_read_is_asked_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(watch_scrape, "asyncio", SimpleNamespace(sleep=noted))
    answer = in_turn(*[fixed("no", 404)] * 9, fixed(VLLM))
    async with (
        engine(answer, path="/metrics") as running,
        scraping(fleet_of(spec("a", running.port)), interval_s=1.0) as seen,
    ):
        await until(lambda: len(seen) >= 2)
    for pause_s, usual_s in zip(pauses, [2, 4, 8, 16, 32, 60, 60, 60, 60, 1, 1], strict=False):
        assert 0.9 * usual_s <= pause_s <= 1.1 * usual_s


async def test_a_backend_that_was_down_is_scraped_in_the_usual_time_after_its_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    fleet = fleet_of(spec("a", unused_port()))

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            fleet.record_refused(0, 0.0, 0.0)
        await asyncio.sleep(0)

    monkeypatch.setattr(watch_scrape, "asyncio", SimpleNamespace(sleep=noted))
    async with scraping(fleet, interval_s=1.0):
        await until(lambda: len(pauses) >= 8)
    assert pauses[5] > 30  # nobody has said yet that it is down
    assert pauses[7] < 1.2


async def test_a_backend_that_is_unavailable_is_left_alone_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with engine(fixed(VLLM), path="/metrics") as running:
        fleet = fleet_of(spec("gone", unused_port()), spec("a", running.port))
        fleet.record_refused(1, 0.0, 0.0)
        failed: list[int] = []
        async with scraping(fleet, interval_s=0.001, on_failed=failed.append) as seen:
            await until(lambda: 0 in failed)
            assert not running.asked
            fleet.record_reachable(1)
            await until(lambda: bool(seen))
    assert "gone" not in caplog.text, "that nobody listens there is said once, and not of its metrics"


async def test_the_key_and_the_path_of_a_backend_are_used() -> None:
    async with (
        engine(fixed(VLLM), path="/deep/metrics") as running,
        scraping(fleet_of(spec("a", running.port, base_path="/deep/", api_key="sk-1"))) as seen,
    ):
        await until(lambda: bool(seen))
        assert running.asked[0].headers["Authorization"] == "Bearer sk-1"


async def test_the_log_tells_when_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        engine(in_turn(fixed("no", 404), fixed(VLLM)), path="/metrics") as running,
        scraping(fleet_of(spec("a", running.port)), interval_s=0.001) as seen,
    ):
        await until(lambda: len(seen) >= 3)
    assert caplog.text.count("is read as vllm's") == 1
