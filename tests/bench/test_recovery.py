"""The drills: what happens to keys, requests and router when the fleet changes under a replay."""

from __future__ import annotations

import pytest

from bench.recovery.drill import Drill, asked_again_s, recovered_s
from bench.recovery.surge import Surge
from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.results import Row
from stickyroute.benchmark.workloads.chat import Chat

EVENTS = [(8.0, "lose"), (16.0, "return"), (22.0, "add")]


def test_no_more_keys_move_than_have_to_and_nobody_is_sent_to_the_dead() -> None:
    drill = Drill(Chat(rate=8.0, seconds=30.0), "sticky", FleetSpec(engines=3), 1, list(EVENTS))
    drill.run()
    lost, back, more = drill.events
    assert lost.moved == lost.minimum == pytest.approx(1 / 3, abs=0.06)
    assert back.moved == back.minimum == lost.moved, "and they come back to where they were"
    assert more.moved == pytest.approx(more.minimum, abs=0.01)
    served = [(row.at_s, row.backend) for row in drill.rows if not row.error]
    assert not [at_s for at_s, slot in served if slot == 0 and 8.0 < at_s < 16.0]
    assert [at_s for at_s, slot in served if slot == 0 and at_s > 16.0]
    assert [at_s for at_s, slot in served if slot == 3]
    assert min(at_s for at_s, slot in served if slot == 3) > 22.0
    assert {row.backend for row in drill.rows if row.error} == {0}
    assert asked_again_s(lost, list(lost.visits)) > 0


def test_the_people_of_a_surge_have_one_home_and_their_own_names() -> None:
    surge = Surge(rate=4.0, extra=8.0, seconds=20.0, begin_s=5.0, surge_s=10.0, engines=3, engine=1)
    drill = Drill(surge, "ring", FleetSpec(engines=3), 1, [])
    drill.run()
    assert not [row for row in drill.rows if row.error]
    during = [row.backend for row in drill.rows if 6.0 < row.at_s < 14.0]
    assert during.count(1) > 2 * during.count(0)


def test_recovery_is_told_from_luck() -> None:
    """One good window between bad ones does not count; half a minute of them does."""

    def rows(*rates: int) -> list[Row]:
        return [Row(10.0 * at + 5, 100, rate, 1, 0.1, 1.0) for at, rate in enumerate(rates)]

    assert recovered_s(rows(90, 10, 90, 10, 90, 90, 90, 90), 10.0, 80.0, 0.85) == 26.0
    assert recovered_s(rows(90, 10, 90, 10), 10.0, 40.0, 0.85) == float("inf")
