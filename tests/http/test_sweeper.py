"""Time limits: who is watched is looked at, and nobody is judged by what was not read yet."""

from __future__ import annotations

import asyncio
import socket
import time

from stickyroute.http.sweeper import Sweeper


class Told(asyncio.Protocol):
    """A connection and its member of a sweeper: keeps the order of what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.swept = asyncio.Event()
        self.far: socket.socket | None = None

    def data_received(self, data: bytes) -> None:
        if self.far is not None and data == b"hold":
            self.far.send(b"in time")
            time.sleep(0.3)  # holds the loop up, until the next tick is overdue
            self.seen.clear()
        else:
            self.seen.append("read")

    def sweep(self, now_s: float) -> None:
        self.seen.append("swept")
        self.swept.set()


async def test_a_loop_that_was_held_up_reads_what_arrived_meanwhile_before_it_looks_who_is_overdue() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    transport, told = await loop.create_connection(Told, sock=ours)
    sweeper = Sweeper(loop, 0.25)
    sweeper.add(told)
    sweeper.start()
    told.far = theirs
    theirs.send(b"hold")
    await told.swept.wait()
    assert told.seen == ["read", "swept"]
    sweeper.stop()
    transport.close()
    theirs.close()


async def test_who_is_discarded_is_looked_at_no_more_and_nobody_is_after_a_stop() -> None:
    loop = asyncio.get_running_loop()
    sweeper = Sweeper(loop, 0.001)
    stays, goes = Told(), Told()
    sweeper.add(stays)
    sweeper.add(goes)
    sweeper.start()
    await goes.swept.wait()
    sweeper.discard(goes)
    goes.seen.clear()
    for _ in range(3):
        stays.swept.clear()
        await stays.swept.wait()
    assert goes.seen == []
    sweeper.stop()
    await asyncio.sleep(0)
    stays.seen.clear()
    await asyncio.sleep(0.02)
    assert stays.seen == []
