"""Room: how KV pressure, queues, age and slow start bound the load of a backend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet import Fleet, FleetRules, Outcome, RoomRules
from stickyroute.fleet.sample import Sample
from stickyroute.fleet.weights import room_of
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from stickyroute.routing.policies import make_policy
from stickyroute.routing.policies.bounded_ring import BoundedRing
from stickyroute.routing.router import Router
from stickyroute.routing.view import FleetView
from tests.fleet.specs import SMALL, VNODES, spec
from tests.routing.views import Script, spread

RULES = RoomRules(slow_start_s=20.0, floor=0.1)
PRESSURE = st.floats(0, 2), st.floats(0, 100)


def of(count: int, rules: RoomRules = RULES) -> Fleet:
    return Fleet([spec(f"b{i}") for i in range(count)], VNODES, SMALL, FleetRules(room=rules))


def look(some: Fleet, slot: int, kv: float, now_s: float, waiting: int = 0, **more: object) -> float:
    some.record_sample(slot, Sample(kv_utilization=kv, waiting=waiting, **more), now_s)  # type: ignore[arg-type]
    return some.loads.room[slot]


def view_of(some: Fleet) -> FleetView:
    pool = some.pool(None)
    assert pool is not None
    return pool.view


# The laws.


@given(*PRESSURE)
def test_room_is_above_zero_and_at_most_one(kv: float, waiting: float) -> None:
    assert RULES.floor - 1e-9 <= room_of(kv, waiting, RULES) <= 1


@given(kvs=st.tuples(PRESSURE[0], PRESSURE[0]), waitings=st.tuples(PRESSURE[1], PRESSURE[1]))
def test_more_pressure_never_means_more_room(kvs: tuple[float, float], waitings: tuple[float, float]) -> None:
    assert room_of(min(kvs), min(waitings), RULES) >= room_of(max(kvs), max(waitings), RULES)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("look"), st.floats(0, 1), st.integers(0, 50)),
            st.tuples(st.just("out"), st.just(0.0), st.just(0)),
            st.tuples(st.just("back"), st.just(0.0), st.just(0)),
            st.tuples(st.just("wait"), st.floats(0, 40), st.just(0)),
        ),
        max_size=40,
    )
)
def test_whatever_happens_room_stays_in_its_bounds(steps: list[tuple[str, float, int]]) -> None:
    some = of(2)
    now_s = 0.0
    for what, value, waiting in steps:
        if what == "look":
            look(some, 0, value, now_s, waiting)
        elif what == "out":
            some.record_outcome(0, Outcome.CONNECT_FAILED, now_s, 0.0)
        elif what == "back":
            some.record_probe(0, True, now_s)
        now_s += value if what == "wait" else 0.5
        some.tick(now_s)
        assert all(0 < room <= 1 for room in some.loads.room)
        assert some.loads.tight == (min(some.loads.room) < 1)
        assert some.loads.room[1] == 1
    some.tick(now_s + 1000)
    assert some.loads.room[0] == 1, "what is long ago says nothing"
    assert not some.loads.tight


# Stories.


def test_the_marks() -> None:
    assert [room_of(kv, 0, RULES) for kv in (0, 0.8, 0.9, 1.0, 1.5)] == pytest.approx([1, 1, 0.55, 0.1, 0.1])
    assert [room_of(0, n, RULES) for n in (0, 5, 12.5, 20, 99)] == pytest.approx([1, 1, 0.55, 0.1, 0.1])
    assert room_of(0.9, 20, RULES) == pytest.approx(0.1), "the greater pressure"


def test_what_is_not_known_is_no_pressure() -> None:
    some = of(1)
    some.record_sample(0, Sample(running=3), 1.0)
    assert some.loads.room[0] == 1


def test_it_falls_at_once_and_comes_back_late_and_below_the_mark() -> None:
    some = of(2)
    assert look(some, 0, 0.9, 0.0) == pytest.approx(0.55)
    assert look(some, 0, 0.85, 5.0) == pytest.approx(0.55), "within the hysteresis"
    assert look(some, 0, 0.5, 10.0) == pytest.approx(0.55), "cooling down"
    assert look(some, 0, 0.5, 15.0) == 1
    assert look(some, 0, 0.9, 20.0) == pytest.approx(0.55)
    assert look(some, 0, 0.75, 40.0) == pytest.approx(0.775), "above the mark less the hysteresis"
    assert look(some, 0, 0.7, 45.0) == pytest.approx(1.0)


def test_waiting_is_counted_for_each_rank() -> None:
    some = of(2)
    assert look(some, 0, 0.0, 0.0, waiting=20, ranks=4) == 1
    assert look(some, 1, 0.0, 0.0, waiting=20, ranks=1) == pytest.approx(0.1)


def test_what_we_sent_since_is_credited() -> None:
    """1,000 tokens in flight are found to take 10 % of the cache, so 8,000 more take 80 %."""
    some = of(2)
    keys = RequestKeys(None, "", prompt_bytes=4000, prompt_tokens=1000)
    lease = some.lease(0, keys, 0.0)
    assert lease is not None
    assert look(some, 0, 0.1, 1.0, capacity_tokens=10_000) == 1
    leases = [some.lease(0, keys, 1.0) for _ in range(8)]
    some.tick(1.5)
    assert some.loads.room[0] == pytest.approx(0.55)
    for one in leases:
        assert one is not None
        one.release(2.0)
    some.tick(2.0)
    assert some.loads.room[0] == pytest.approx(0.55), "it cools down"
    some.tick(20.0)
    assert some.loads.room[0] == pytest.approx(1.0)


def test_who_comes_to_a_queue_waits_in_it() -> None:
    some = of(2)
    assert look(some, 0, 0.0, 0.0, waiting=4) == 1
    assert look(some, 1, 0.0, 0.0, waiting=0) == 1
    for slot in (0, 1):
        for _ in range(20):
            some.lease(slot)
    some.tick(1.0)
    assert some.loads.room[0] == pytest.approx(0.1)
    assert some.loads.room[1] == 1, "nobody waits there: they may all run"


def test_old_samples_fade_to_neutral() -> None:
    """Case B87: after the limit a backend gets its fair share, not less and not more."""
    some = of(2)
    look(some, 0, 1.0, 0.0)
    rooms = []
    for now_s in (14.0, 15.0, 22.5, 30.0, 60.0):
        some.tick(now_s)
        rooms.append(some.loads.room[0])
    assert rooms == pytest.approx([0.1, 0.1, 0.55, 1.0, 1.0])
    look(some, 1, 0.01, 0.0)
    assert some.loads.room[1] == 1, "an idle one never gets more than its share"


def test_slow_start_after_coming_back() -> None:
    some = of(2)
    some.record_outcome(0, Outcome.CONNECT_FAILED, 5.0, 0.0)
    some.record_probe(0, True, 10.0)
    assert some.available[0]
    rooms = []
    for now_s in (10.0, 20.0, 25.0, 30.0):
        some.tick(now_s)
        rooms.append(some.loads.room[0])
    assert rooms == pytest.approx([0.1, 0.55, 0.775, 1.0])
    assert some.snapshot(20.0)["backends"][0]["warming"] == 1


def test_slow_start_of_somebody_new_and_of_a_moved_one() -> None:
    some = of(2)
    some.apply(some.plan([spec("b0"), spec("b1", host="10.1.1.1"), spec("new")]), 100.0)
    assert list(some.loads.room) == pytest.approx([1.0, 0.1, 0.1])
    some.tick(120.0)
    assert list(some.loads.room) == [1.0, 1.0, 1.0]


def test_slow_start_can_be_turned_off_and_the_first_need_none() -> None:
    assert list(of(3).loads.room) == [1.0, 1.0, 1.0]
    some = of(2, RoomRules(slow_start_s=0.0))
    some.apply(some.plan([spec("b0"), spec("b1"), spec("new")]), 100.0)
    assert list(some.loads.room) == [1.0, 1.0, 1.0]


def test_who_is_found_before_anybody_is_served_needs_none() -> None:
    some = of(2)
    some.apply(some.plan([spec("b0"), spec("b1"), spec("new")]), 100.0, serving=False)
    assert list(some.loads.room) == [1.0, 1.0, 1.0]


def test_rules_change_while_running() -> None:
    some = of(2)
    look(some, 0, 0.9, 0.0)
    some.retune(FleetRules(room=RoomRules(kv_mark=0.95, floor=0.1)))
    assert look(some, 0, 0.84, 21.0) == 1


# What policies make of it.


def test_no_vnode_moves() -> None:
    some = of(4)
    before = [view_of(some).ring.home(key) for key in spread(50)]
    for slot in range(3):
        look(some, slot, 1.0, 0.0)
    assert [view_of(some).ring.home(key) for key in spread(50)] == before


@pytest.mark.parametrize(
    "name",
    ["least_requests", "least_tokens", "power_of_two", "round_robin", "random", "bounded_ring", "sticky"],
)
def test_keyless_traffic_prefers_who_has_room(name: str) -> None:
    """Case B82: three at 0.95, one at 0.05."""
    some = of(4)
    for slot in range(3):
        look(some, slot, 0.95, 0.0)
    look(some, 3, 0.05, 0.0)
    numbers = [(i * 0.618034) % 1 for i in range(400)]
    router = Router(make_policy(name), Script(*numbers))
    counts = [0] * 4
    for _ in range(100):
        decision = router.route(NO_KEYS, view_of(some))
        assert decision is not None
        counts[decision.slot] += 1
        some.lease(decision.slot)
    assert counts[3] > 1.5 * max(counts[:3])


def test_a_stale_low_figure_draws_no_herd() -> None:
    """Case B17: one reports 0.00, the others 0.10; 80 keyless requests come at once."""
    some = of(4)
    for slot in range(4):
        look(some, slot, 0.1 if slot else 0.0, 0.0)
    router = Router(make_policy("bounded_ring"), Script())
    for _ in range(80):
        decision = router.route(NO_KEYS, view_of(some))
        assert decision is not None
        some.lease(decision.slot)
    assert list(some.in_flight) == [20, 20, 20, 20]


def test_new_and_idle_conversations_move_first_and_come_home_after_a_cool_down() -> None:
    """Home is at 0.9: it keeps 55 % of its share, for conversations that are warm there 77 %."""
    some = of(2)
    router = Router(BoundedRing(1.25, 2, warm_s=60.0), Script())
    at_home = [key for key in spread(400) if view_of(some).ring.home(key) == 0]
    elsewhere = [key for key in spread(400) if view_of(some).ring.home(key) == 1]

    def send(key: int, now_s: float) -> str:
        keys = RequestKeys(key, "test")
        decision = router.route(keys, view_of(some))
        assert decision is not None
        assert some.lease(decision.slot, keys, now_s) is not None
        return f"{decision.slot} {decision.reason}"

    warm, idle, new = at_home[:3]
    assert send(idle, 0.0) == send(warm, 50.0) == "0 home"
    for key in (*at_home[3:13], *elsewhere[:12]):
        slot = view_of(some).ring.home(key)
        assert some.lease(slot, RequestKeys(key, "test"), 90.0) is not None
    look(some, 0, 0.9, 90.0)
    assert list(some.in_flight) == [12, 12]
    # Shares are 0.55 and 1: of 25 home may have 25 * 1.25 * 0.55 / 1.55 = 11.1; for who is warm 0.775 of its share.
    assert send(new, 90.0) == "1 spill"
    assert send(idle, 90.0) == "1 spill", "its last turn was 90 s ago"
    assert send(warm, 90.0) == "0 home"
    look(some, 0, 0.3, 100.0)
    assert send(at_home[20], 100.0) == "1 spill"
    look(some, 0, 0.3, 106.0)
    assert send(new, 106.0) == send(idle, 106.0) == "0 home"


def test_with_everybody_full_all_are_full_alike() -> None:
    some = of(4)
    for slot in range(4):
        look(some, slot, 1.0, 0.0)
    router = Router(BoundedRing(), Script())
    reasons = set()
    for key in spread(200):
        decision = router.route(RequestKeys(key, "test"), view_of(some))
        assert decision is not None
        reasons.add(decision.reason)
        some.lease(decision.slot, RequestKeys(key, "test"))
    assert max(some.in_flight) <= 1.25 * 200 / 4 + 1
    assert reasons == {"home", "spill"}
