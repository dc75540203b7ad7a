"""KV events over real ZMQ sockets, by a publisher that loses, repeats, restarts and lies."""

from __future__ import annotations

import logging
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError
from stickyroute.routing.exact import Resident
from stickyroute.watch import kv_events, kv_follow
from stickyroute.watch.kv_events import KvEventsWatch, KvSource, kv_sources
from tests.watch.following import PLAIN, Heard, following, names
from tests.watch.kv_logs import batch, removed, stored
from tests.watch.kv_publisher import PATIENCE_S, Publisher

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
