"""KV events over real ZMQ sockets: simulated engines, and a publisher that loses, repeats, restarts and lies."""

from __future__ import annotations

import asyncio
import logging
import random
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError
from stickyroute.routing.exact import Resident, chain, scope
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.keys import block_keys, namespace, token_buffer
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.server import RunningEngine, serve_engines
from stickyroute.watch import kv_events, kv_follow
from stickyroute.watch.kv_events import KvEventsWatch, KvSource, kv_sources
from tests.simulator.client import ask, chat
from tests.watch.kv_logs import batch, removed, stored
from tests.watch.kv_publisher import PATIENCE_S, Publisher

PLAIN = scope("", "")
SMALL = replace(DEMO, blocks=41, block_size=16)


class Heard:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.emptied_slots: list[int] = []

    def held(self, slot: int, block: int) -> None: ...
    def lost(self, slot: int, block: int) -> None: ...

    def emptied(self, slot: int) -> None:
        self.emptied_slots.append(slot)


class Following:
    """A watch over sources, and its sets."""

    def __init__(self, sources: Iterable[KvSource], check_s: float, replay_pause_s: float) -> None:
        sources = list(sources)
        self.heard = Heard()
        self.resident = Resident(
            [source.slot for source in sources], self.heard, limit_blocks=100_000, silence_s=PATIENCE_S
        )
        self.watch = KvEventsWatch(sources, self.resident, check_s=check_s, replay_pause_s=replay_pause_s)

    def count(self, name: str, source: int = 0) -> Any:
        return self.watch.state()[source][name]

    async def caught_up(self) -> None:
        """Wait until the first replay is over: what comes then comes live."""
        await self.until(lambda: self.resident.fresh(0, monotonic()))

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so; the test's own limit ends it if it never is."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def following(
    *sources: KvSource, check_s: float = 0.1, replay_pause_s: float = 0.0
) -> AsyncIterator[Following]:
    one = Following(sources, check_s, replay_pause_s)
    one.watch.start()
    try:
        yield one
    finally:
        await one.watch.stop()


def names(*tokens: int) -> set[int]:
    return {chain(array("I", [token] * 4), 4, PLAIN)[0] for token in tokens}


MakePublisher = Callable[..., Publisher]


@pytest.fixture
async def publisher(tmp_path: Any) -> AsyncIterator[MakePublisher]:
    made: list[Publisher] = []

    def make(**options: bool) -> Publisher:
        made.append(Publisher(str(tmp_path), **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


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


# Simulated engines.


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


# A publisher that misbehaves.


async def test_lost_batches_are_replayed(publisher: MakePublisher) -> None:
    engine = publisher()
    engine.store(1)
    async with following(engine.source, check_s=PATIENCE_S) as followed:
        await engine.subscribed()
        await followed.caught_up()
        engine.store(2)
        engine.store(3, lost=True)
        engine.store(4, lost=True)
        engine.store(5)
        await followed.until(lambda: followed.resident.blocks == 5)
        assert followed.resident.blocks_of(0) == names(1, 2, 3, 4, 5)
        assert followed.resident.complete(0)
        assert (followed.count("gaps"), followed.count("losses")) == (1, 0)
        assert engine.asked == [0, 1]  # the second from the batch seen last: is it still the same process?


async def test_what_was_lost_at_the_end_is_found_in_the_silence(publisher: MakePublisher) -> None:
    engine = publisher()
    async with following(engine.source, check_s=0.02) as followed:
        await engine.subscribed()
        engine.store(1)
        await followed.until(lambda: followed.resident.blocks == 1)
        engine.store(2, lost=True)
        await followed.until(lambda: followed.resident.blocks == 2)
        assert followed.count("gaps") == followed.count("restarts") == 0


async def test_an_engine_that_has_published_nothing_is_empty_once(publisher: MakePublisher) -> None:
    """What was sent there meanwhile is not forgotten at each look."""
    engine = publisher()
    async with following(engine.source, check_s=0.01) as followed:
        await followed.until(lambda: followed.count("replays") > 3)
        assert followed.resident.complete(0)
        assert followed.heard.emptied_slots == [0]


async def test_replies_without_a_topic_frame(publisher: MakePublisher) -> None:
    engine = publisher(topic_frame=False)
    engine.store(1, 2)
    engine.store(3)
    async with following(engine.source) as followed:
        await followed.until(lambda: followed.resident.blocks == 3)
        assert followed.resident.complete(0)
        assert followed.count("garbled") == 0


@pytest.mark.parametrize("numbers", [1, 3, 9], ids=["fewer", "as many", "more"])
async def test_a_new_process_is_told_from_a_gap(publisher: MakePublisher, numbers: int) -> None:
    """It has published fewer batches than we saw of the old one, as many, or more."""
    engine = publisher()
    async with following(engine.source, check_s=0.02) as followed:
        await engine.subscribed()
        for token in (1, 2, 3):
            engine.store(token)
        await followed.until(lambda: followed.resident.blocks == 3)
        await engine.restart()
        new = range(11, 11 + numbers)
        for token in new:
            engine.store(token, lost=True)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(*new))
        assert followed.resident.complete(0)
        assert followed.count("restarts") == 1
        assert followed.heard.emptied_slots  # and the index with them


async def test_live_numbers_that_fall_are_a_new_process(publisher: MakePublisher) -> None:
    engine = publisher()
    async with following(engine.source, check_s=PATIENCE_S) as followed:
        await engine.subscribed()
        await followed.caught_up()
        for token in (1, 2, 3):
            engine.store(token)
        await followed.until(lambda: followed.resident.blocks == 3)
        await engine.restart()
        await engine.subscribed()
        engine.store(11)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(11))
        assert followed.resident.complete(0)


async def test_a_publisher_that_goes_is_not_fresh_until_it_is_back(
    publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_follow, "ANSWER_S", 0.05)
    engine = publisher()
    async with following(engine.source, check_s=0.02) as followed:
        held = followed.resident
        await followed.until(lambda: held.fresh(0, monotonic()))
        await engine.down()
        await followed.until(lambda: not held.fresh(0, monotonic()))
        engine.up()
        await followed.until(lambda: held.fresh(0, monotonic()))
        assert followed.count("restarts") == 0


async def test_without_replay_a_gap_voids_what_was_known(publisher: MakePublisher) -> None:
    engine = publisher(replays=False)
    async with following(engine.source) as followed:
        await engine.subscribed()
        engine.store(1)
        await followed.until(lambda: followed.resident.blocks == 1)
        assert followed.resident.complete(0)
        engine.store(2, lost=True)
        engine.store(3)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(3))
        assert not followed.resident.complete(0)
        engine.send(batch(removed(1), stored([4], [4] * 4, parent=1)))  # of what is not known any more
        engine.store(5)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(3, 5))


async def test_who_comes_late_without_replay_knows_a_part(publisher: MakePublisher) -> None:
    engine = publisher(replays=False)
    engine.store(1)
    async with following(engine.source) as followed:
        await engine.subscribed()
        engine.store(2)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(2))
        assert not followed.resident.complete(0)
        assert followed.count("restarts") == 0


async def test_who_comes_after_batches_were_dropped_knows_a_part(publisher: MakePublisher) -> None:
    engine = publisher()
    for token in range(5):
        engine.store(token)
    del engine.kept[:3]
    async with following(engine.source) as followed:
        await followed.until(lambda: followed.resident.blocks_of(0) == names(3, 4))
        assert not followed.resident.complete(0)


async def test_who_was_away_too_long_begins_anew(publisher: MakePublisher) -> None:
    engine = publisher()
    async with following(engine.source, check_s=PATIENCE_S) as followed:
        await engine.subscribed()
        await followed.caught_up()
        engine.store(1)
        await followed.until(lambda: followed.resident.blocks == 1)
        for token in range(2, 8):
            engine.store(token, lost=True)
        del engine.kept[:4]  # it keeps 5, 6 and 7
        engine.store(8)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(5, 6, 7, 8))
        assert not followed.resident.complete(0)
        assert followed.count("restarts") == 0


async def test_a_replay_with_holes_ends(publisher: MakePublisher) -> None:
    engine = publisher()
    for token in range(6):
        engine.store(token)
    del engine.kept[2:4]  # as when the replay socket's queue overran
    async with following(engine.source, check_s=PATIENCE_S) as followed:
        await engine.subscribed()
        await followed.until(lambda: followed.count("losses") > 0)
        engine.store(6)
        await followed.until(lambda: names(6) <= followed.resident.blocks_of(0))
        assert not followed.resident.complete(0)


async def test_garbage_is_survived(publisher: MakePublisher, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    engine = publisher()
    async with following(engine.source, check_s=PATIENCE_S) as followed:
        await engine.subscribed()
        await followed.caught_up()
        engine.store(1)
        engine._events.send_multipart([b"kv"])
        engine._events.send_multipart([b"kv", b"short", b"x"])
        engine._events.send_multipart([b"kv", b"1", b"2", b"3", b"4"])
        engine.send(b"\xc1 no message pack")
        engine.store(2)
        await followed.until(lambda: followed.resident.blocks_of(0) == names(2))
        assert followed.count("garbled") == 4
        assert followed.count("batches") == 3
        assert not followed.resident.complete(0)
    assert [record.name for record in caplog.records] == ["stickyroute.watch.kv_follow"]


async def test_what_is_lost_faster_than_it_can_be_replayed(publisher: MakePublisher) -> None:
    """Every second of a thousand batches is lost: one replay, and then it goes on without."""
    engine = publisher()
    async with following(engine.source, check_s=PATIENCE_S, replay_pause_s=1e9) as followed:
        await engine.subscribed()
        await followed.caught_up()
        for token in range(1000):
            engine.store(token, lost=bool(token % 2))
        engine.store(1000)
        await followed.until(lambda: names(1000) <= followed.resident.blocks_of(0))
        assert followed.count("replays") == 1
        assert followed.resident.blocks < 1000
        assert not followed.resident.complete(0)


async def test_ranks_publish_on_ports_that_count_up() -> None:
    one, two, three = kv_sources(4, "gpu-4", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5600", "kv", 3)
    assert one == KvSource(4, "gpu-4 rank 0", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5600", "kv")
    assert (two.endpoint, three.replay) == ("tcp://10.0.0.1:5558", "tcp://10.0.0.1:5602")
    (alone,) = kv_sources(0, "gpu-0", "ipc:///run/kv", None, "", 1)
    assert alone == KvSource(0, "gpu-0", "ipc:///run/kv", None, "")
    assert kv_sources(0, "gpu-0", "ipc:///run/kv", None, "", 2)[1].endpoint == "ipc:///run/kv_dp1"


async def test_each_rank_is_a_set_of_its_own(tmp_path: Any) -> None:
    ranks = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        ranks.append(Publisher(str(folder)))
        ranks[rank].source = replace(ranks[rank].source, name=f"gpu-0 rank {rank}")
        ranks[rank].store(1, 10 + rank)
    try:
        async with following(*(rank.source for rank in ranks)) as followed:
            held = followed.resident
            await followed.until(lambda: held.blocks == 4)
            assert held.lookup(array("I", [11] * 4), PLAIN) == {0: 4}
            await ranks[0].restart()
            await followed.until(lambda: held.blocks == 2)
            assert held.lookup(array("I", [1] * 4), PLAIN) == {0: 4}
            assert held.lookup(array("I", [10] * 4), PLAIN) == {0: 0}
    finally:
        for rank in ranks:
            await rank.close()


def test_without_the_packages_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(kv_events, "import_module", missing)
    resident = Resident([0], Heard(), limit_blocks=1, silence_s=1.0)
    with pytest.raises(ConfigError, match=r"stickyroute\[events\]"):
        KvEventsWatch([], resident, check_s=1.0)
