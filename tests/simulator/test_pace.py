import asyncio
import math

import pytest

from stickyroute.simulator.pace import Pace


async def test_a_tick_comes_when_its_time_has_come():
    ticks = []
    pace = Pace(1000.0, lambda: ticks.append(pace.now_s()) or done.set())
    done = asyncio.Event()
    pace.wake_at(20.0)  # twenty simulated seconds are twenty milliseconds
    pace.wake_at(5.0)  # the later word counts
    await done.wait()
    assert len(ticks) == 1
    assert ticks[0] >= 5.0 - 1.5  # a loop may be early by the resolution of its clock, here 1 ms
    assert pace.late(math.inf) == 0
    assert pace.late(0.0) <= 1


async def test_a_stopped_clock_stands_still():
    ticked = asyncio.Event()
    pace = Pace(1000.0, ticked.set)
    pace.stop()
    stood_s = pace.now_s()
    pace.wake_at(stood_s)
    for _ in range(3):
        await asyncio.sleep(0)
    assert pace.now_s() == stood_s
    assert not ticked.is_set()
    pace.go()
    assert pace.now_s() == pytest.approx(stood_s, abs=1000.0)
    pace.wake_at(pace.now_s())
    await ticked.wait()


async def test_an_infinite_time_never_comes():
    ticked = asyncio.Event()
    pace = Pace(1000.0, ticked.set)
    pace.wake_at(0.0)
    pace.wake_at(math.inf)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not ticked.is_set()
