"""Exact mode as a whole: when the index relies on a backend's events, and when no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.routing.index import Index
from stickyroute.watch import kv_follow
from stickyroute.watch.exact_mode import ExactMode
from tests.watch.kv_publisher import PATIENCE_S, Publisher


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """What the index was last told of each slot."""
    told: dict[int, bool] = {}
    monkeypatch.setattr(Index, "follow", lambda self, slot, followed: told.update({slot: followed}))
    monkeypatch.setattr(kv_follow, "ANSWER_S", 0.05)
    return told


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.005)


def exact_mode(publisher: Publisher) -> ExactMode:
    fleet = Fleet([BackendSpec(f"gpu-{slot}", "http", "127.0.0.1", 1 + slot) for slot in range(2)], vnodes=16)
    return ExactMode(fleet, [publisher.source], limit_blocks=100, check_s=0.02, tokenize=False)


async def test_the_index_relies_on_events_while_they_come(tmp_path: Any, followed: dict[int, bool]) -> None:
    publisher = Publisher(str(tmp_path))
    exact = exact_mode(publisher)
    exact.start()
    try:
        await until(lambda: followed == {0: True})
        await publisher.down()
        await until(lambda: followed == {0: False})
        publisher.up()
        await until(lambda: followed == {0: True})
        assert [source["fresh"] for source in exact.state()["sources"]] == [True]
    finally:
        await exact.stop()
        await publisher.close()


async def test_a_part_of_the_events_is_not_relied_on(tmp_path: Any, followed: dict[int, bool]) -> None:
    publisher = Publisher(str(tmp_path))
    for token in (1, 2, 3):
        publisher.store(token)
    del publisher.kept[0]  # who comes now has missed the beginning
    exact = exact_mode(publisher)
    exact.start()
    try:
        await until(lambda: exact.resident.blocks == 2)
        await until(lambda: exact.state()["sources"][0]["fresh"])
        followed.clear()
        await until(lambda: followed)
        assert followed == {0: False}
    finally:
        await exact.stop()
        await publisher.close()
