"""All sources together: what is told, when, and what is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stickyroute.fleet import Fleet
from stickyroute.settings import DiscoverySettings
from stickyroute.watch.discovery import DiscoveryWatch, file, watch
from stickyroute.watch.discovery.watch import DiscoveryWatch as Watch


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "POLL_S", 0.01)
    monkeypatch.setattr(watch, "GATHER_S", 0.01)


def entry(path: Path, **options: object) -> DiscoverySettings:
    return DiscoverySettings(kind="file", path=path, **options)


def names(found: Watch) -> list[str]:
    return [one.spec.name for one in found.found()]


async def test_a_change_that_could_not_be_taken_up_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "backends.json"
    path.write_text(json.dumps(["http://a:1"]))
    calls: list[list[str]] = []
    done = asyncio.Event()

    async def changed() -> None:
        calls.append(names(discovery))
        if len(calls) == 1:
            raise RuntimeError("not now")
        done.set()

    discovery = DiscoveryWatch(Fleet([], 16), changed)
    discovery.prepare([entry(path)]).follow()
    discovery.start()
    try:
        async with asyncio.timeout(10):
            await done.wait()
    finally:
        await discovery.stop()
    assert calls == [["a:1"], ["a:1"]]


async def test_a_burst_of_changes_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = asyncio.Queue[list[str]]()

    async def changed() -> None:
        told.put_nowait(names(discovery))

    discovery = DiscoveryWatch(Fleet([], 16), changed)
    discovery.prepare([entry(tmp_path / "none")]).follow()
    discovery.start()
    try:
        (one,) = discovery._followed
        for number in range(100):
            one.found([file.Place(f"n{number}", "h", 1)])
        async with asyncio.timeout(10):
            assert await told.get() == ["n99"]
        assert told.empty()
    finally:
        await discovery.stop()


async def test_nothing_happens_before_prepared_entries_are_followed(tmp_path: Path) -> None:
    async def changed() -> None:
        raise AssertionError("nobody was followed")

    path = tmp_path / "backends.json"
    path.write_text(json.dumps(["http://a:1"]))
    discovery = DiscoveryWatch(Fleet([], 16), changed)
    discovery.start()
    try:
        prepared = discovery.prepare([entry(path)])
        assert (prepared.found, discovery.state()) == ((), [])
    finally:
        await discovery.stop()
