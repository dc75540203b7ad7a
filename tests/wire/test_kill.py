"""No request is lost or run twice when a backend is killed under load, but streams begun on it are cut.

The backends are processes, killed with SIGKILL. Each writes down what it began and what it finished.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.fake_backend import DONE
from tests.support.fake_process import FakeProcess, fake_process
from tests.support.raw_client import RawClient, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

WORKERS = 40


@dataclass
class Seen:
    """What clients saw: ids of the requests that ended well, and of the streams that were cut."""

    well: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)


async def one(proxy: RunningProxy, client: RawClient, number: int, seen: Seen) -> RawClient:
    """Send one request, every other streamed; returns the connection to go on with."""
    streams, name = bool(number % 2), f"r{number}"
    client.send(request(chat(f"user {number % 50}", stream=streams), headers={"x-request-id": name}))
    try:
        reply = await client.response()
    except Truncated as cut:
        begun = cut.response is not None and streams
        (seen.cut if begun else seen.other).append(name)
        client.close()
        return await proxy.client()
    whole = reply.status == 200 and (reply.body.endswith(DONE) if streams else b"backend" in reply.body)
    (seen.well if whole else seen.other).append(name)
    return client


async def load(proxy: RunningProxy, numbers: list[int], seen: Seen) -> None:
    """Work through `numbers` on one connection after the other."""
    client = await proxy.client()
    while numbers:
        client = await one(proxy, client, numbers.pop(), seen)
    client.close()


async def kill_under_load(
    proxy: RunningProxy, backends: list[FakeProcess], count: int, *, die_at: int
) -> Seen:
    """Ask `count` times from many clients; kill the first backend once `die_at` requests were answered."""
    seen = Seen()
    numbers = list(range(count))
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(load(proxy, numbers, seen))
        while len(seen.well) < die_at:
            await asyncio.sleep(0.001)
        await backends[0].kill()
    return seen


async def written_down(*processes: FakeProcess) -> None:
    """A client may have the last byte before its backend has written that down; wait for that."""
    async with asyncio.timeout(10):
        while any(set(process.begun) - set(process.ended) for process in processes):
            await asyncio.sleep(0.01)


async def test_nothing_is_lost_or_run_twice_when_a_backend_is_killed_under_load(tmp_path: Path) -> None:
    async with (
        fake_process("a", tmp_path) as a,
        fake_process("b", tmp_path) as b,
        fake_process("c", tmp_path) as c,
        run_proxy([{"name": p.name, "url": p.url} for p in (a, b, c)]) as proxy,
    ):
        count = 450
        seen = await kill_under_load(proxy, [a, b, c], count, die_at=150)
        assert seen.other == []
        assert len(seen.well) + len(seen.cut) == count
        assert set(seen.cut) <= set(a.begun)  # only what had begun on the dead one was cut, and visibly
        await written_down(b, c)
        ended = Counter(a.ended + b.ended + c.ended)
        assert max(ended.values()) == 1  # nothing was done twice
        # And nothing was answered that was not done; the dead one may not have come to write down its last.
        assert set(seen.well) <= set(a.begun + b.ended + c.ended)
        assert not set(seen.cut) & set(b.begun + c.begun)  # a stream that had begun was not begun again
        begun = Counter(a.begun + b.begun + c.begun)
        assert {name for name, times in begun.items() if times > 1} <= set(a.begun) - set(a.ended)
        assert a.ended  # it did work before
        assert len(b.ended) > 25
        await proxy.settled()
        assert (await proxy.metrics()).sum("stickyroute_backend_available") == 2

        async with fake_process("a2", tmp_path, port=a.port) as back:  # and when it returns it works again
            await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == 3)
            numbers, after = list(range(count, count + 100)), Seen()
            await asyncio.gather(*(load(proxy, numbers, after) for _ in range(20)))
            assert (len(after.well), after.cut, after.other) == (100, [], [])
            assert back.ended
