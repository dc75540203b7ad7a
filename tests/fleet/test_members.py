"""Members that come, change and go while requests are in flight."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet import BackendSpec, Fleet, Lease
from stickyroute.fleet.sample import Sample
from stickyroute.routing.keys import RequestKeys
from tests.fleet.specs import SMALL, VNODES, fleet, members, rows, spec
from tests.routing.views import spread

KEYS = spread(200)
FEW = 16  # ring points: the laws hold with any number

SPECS = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.integers(0, 3), st.integers(1, 2)), max_size=6
).map(
    lambda chosen: [
        spec(name, weight=weight, host=f"10.0.0.{host}") for name, (weight, host) in chosen.items()
    ]
)


def become(some: Fleet, *specs: BackendSpec | str, now_s: float = 0.0) -> None:
    some.apply(some.plan([one if isinstance(one, BackendSpec) else spec(one) for one in specs]), now_s)


def homes(some: Fleet) -> list[str | None]:
    pool = some.pool(None)
    assert pool is not None
    view = pool.view
    found = [view.ring.home(key) for key in KEYS]
    return [None if member < 0 else some.at(view.slots[member]).name for member in found]


def keyed(key: int) -> RequestKeys:
    return RequestKeys(key, "test", (key, key + 1), (400, 800), 1000)


# The laws.


@given(first=SPECS, then=SPECS)
def test_a_plan_applied_is_a_fleet_made_anew(first: list[BackendSpec], then: list[BackendSpec]) -> None:
    one = Fleet(first, FEW, SMALL)
    applied = one.apply(one.plan(then), 1.0)
    fresh = Fleet(then, FEW, SMALL)
    assert one.snapshot()["ring_fingerprint"] == fresh.snapshot()["ring_fingerprint"]
    assert homes(one) == homes(fresh)
    before, after = {old.name: old for old in first}, {new.name: new for new in then}
    assert {backend.name for backend in applied.added} == after.keys() - before.keys()
    assert {backend.name for backend in applied.removed} == before.keys() - after.keys()
    assert {backend.name for backend in applied.changed} == {
        name for name in before.keys() & after.keys() if before[name] != after[name]
    }
    assert {backend.name: backend.spec for backend in one.backends} == after


@given(first=SPECS.filter(bool), data=st.data())
def test_removing_one_moves_only_its_keys(first: list[BackendSpec], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from([one.name for one in first]))
    some = Fleet(first, FEW, SMALL)
    before = homes(some)
    plan = some.plan([one for one in first if one.name != gone])
    owned = dict(zip([b["name"] for b in some.snapshot()["backends"]], _shares(some), strict=True))
    assert plan.moved_share == pytest.approx(owned[gone])
    assert plan.minimum_share == pytest.approx(owned[gone])
    some.apply(plan, 1.0)
    after = homes(some)
    assert [new for old, new in zip(before, after, strict=True) if old != gone] == [
        old for old in before if old != gone
    ]


@given(first=SPECS, then=SPECS)
def test_a_plan_tells_which_keys_move(first: list[BackendSpec], then: list[BackendSpec]) -> None:
    some = Fleet(first, FEW, SMALL)
    plan = some.plan(then)
    owned, owns = _by_name(some), _by_name(Fleet(then, FEW, SMALL))
    for name in owned.keys() | owns.keys():
        gained = plan.gains.get(name, 0.0) - plan.losses.get(name, 0.0)
        assert gained == pytest.approx(owns.get(name, 0.0) - owned.get(name, 0.0), abs=1e-9)
    assert -1e-9 <= plan.minimum_share <= plan.moved_share + 1e-9 <= 1 + 2e-9
    assert plan.moved_share == pytest.approx(sum(plan.losses.values()), abs=1e-9)


@given(steps=st.lists(st.one_of(SPECS, st.tuples(st.integers(0, 9), st.booleans())), min_size=1, max_size=30))
def test_leases_outlive_every_change_of_members(
    steps: list[list[BackendSpec] | tuple[int, bool]],
) -> None:
    """Counts are the leases held, whoever comes and goes; a slot is nobody else's while something is in flight."""
    some = fleet("a", "b")
    kept = some.loads, some.in_flight, some.available, some.loads.backlog_tokens
    held: list[tuple[Lease, str]] = []
    generation = some.generation
    now_s = 0.0
    for step in steps:
        now_s += 0.5
        if isinstance(step, list):
            slots = {backend.name: backend.slot for backend in some.backends}
            some.apply(some.plan(step), now_s)
            stayed = {b.name: b.slot for b in some.backends if b.name in slots}
            assert stayed == {name: slots[name] for name in stayed}, "who stays keeps the slot"
            assert some.generation >= generation
            generation = some.generation
        elif step[1] and some.backends:
            backend = some.backends[step[0] % len(some.backends)]
            lease = some.lease(backend.slot, keyed(step[0]), now_s)
            assert lease is not None
            held.append((lease, backend.name))
        elif held:
            lease, _ = held.pop(step[0] % len(held))
            lease.release(now_s)
            lease.release(now_s)
        some.settle(now_s)
        counts = Counter(lease.slot for lease, _ in held)
        assert list(some.in_flight) == [counts[slot] for slot in range(len(some.in_flight))]
        assert min(some.loads.queued, default=0) >= 0
        assert min(some.loads.backlog_tokens, default=0.0) >= 0
        assert min(some.loads.in_flight_tokens, default=0.0) >= 0
        assert all(some.at(lease.slot).name == name for lease, name in held)
        assert len({b.slot for b in some.backends}) == len({b.name for b in some.backends})
        assert len(some.available) == len(some.in_flight) == len(some.loads.room)
        pool = some.pool(None)
        assert pool is not None
        assert set(pool.view.slots) == {b.slot for b in some.backends}
    assert kept == (some.loads, some.in_flight, some.available, some.loads.backlog_tokens)
    assert kept[1] is some.in_flight
    for lease, _ in held:
        lease.release()
    assert not any(some.in_flight)
    assert not any(some.loads.queued)


# Stories.


def test_a_slot_is_used_again_when_nothing_is_in_flight_there() -> None:
    some = fleet("a", "b")
    lease = some.lease(1)
    assert lease is not None
    become(some, "a")
    assert [backend.name for backend in some.leaving()] == ["b"]
    become(some, "a", "c")
    assert [(b.name, b.slot) for b in some.backends] == [("a", 0), ("c", 2)], "b still has a request"
    assert some.at(1).name == "b"
    lease.release()
    assert some.leaving() == ()
    become(some, "a", "c", "d")
    assert [(b.name, b.slot) for b in some.backends] == [("a", 0), ("d", 1), ("c", 2)]
    assert some.at(1).name == "d"


def test_who_comes_back_finds_keys_and_what_was_learned() -> None:
    some = fleet("a", "b")
    before = homes(some)
    slot = 1
    lease = some.lease(slot, keyed(7), 0.0)
    assert lease is not None
    lease.first_token(1.0)
    lease.release(2.0)
    some.loads.trust[slot] = 0.5
    become(some, "a")
    assert set(homes(some)) == {"a"}
    become(some, "a", "b")
    assert homes(some) == before
    assert (some.loads.trust[slot], some.loads.index.held((7, 8))[slot]) == (0.5, 2)


def test_another_address_keeps_the_keys_and_empties_the_cache() -> None:
    some = fleet("a", "b")
    before = homes(some)
    lease = some.lease(1, keyed(7), 0.0)
    assert lease is not None
    lease.first_token(1.0)
    some.record_refused(1, 1.0, 0.0)
    become(some, "a", spec("b", host="10.9.9.9"), now_s=2.0)
    assert homes(some) == before
    assert some.loads.index.held((7, 8)) == [0, 0]
    assert some.available[1], "that was the old address"
    assert some.in_flight[1] == 1
    lease.release(3.0)
    assert some.in_flight[1] == 0


def test_somebody_new_in_a_slot_inherits_nothing() -> None:
    some = fleet("a", "b")
    lease = some.lease(1, keyed(7), 0.0)
    assert lease is not None
    lease.first_token(1.0)
    lease.release(2.0)
    some.record_sample(1, Sample(kv_utilization=0.99, capacity_tokens=1000), 2.0)
    some.drain(1, 2.0)
    some.record_models(1, rows("m1"))
    become(some, "a", now_s=3.0)
    become(some, "a", "c", now_s=3.0)
    fresh = Fleet([spec("x"), spec("y")], FEW, SMALL)
    loads = some.loads
    assert loads.index.held((7, 8)) == [0, 0]
    assert loads.capacity_tokens[1] == fresh.loads.capacity_tokens[1]
    assert loads.kv_per_token[1] == 0
    assert some.sample(1) is None
    assert (some.state(1).operator, some.available[1]) == ("active", 1)
    assert some.served(1) is None


def test_whoever_holds_a_pool_sees_who_is_in_it_now() -> None:
    some = fleet("a", "b")
    for slot in (0, 1):
        some.record_models(slot, rows("m1"))
    pool = some.pool("m1")
    assert pool is not None
    become(some, "b", "c")
    assert [some.at(slot).name for slot in pool.view.slots] == ["b", "c"], "c may serve anything"
    some.record_models(2, rows("m2"))
    assert [some.at(slot).name for slot in pool.view.slots] == ["b"]
    become(some, "c")
    assert pool.view.slots == ()
    assert some.pool("m1") is None


def test_a_fleet_of_nobody_gets_members_and_loses_them() -> None:
    none = Fleet([], VNODES, SMALL)
    assert homes(none) == [None] * len(KEYS)
    become(none, "a", "b", now_s=5.0)
    assert homes(none) == homes(fleet("a", "b"))
    assert members(none, "m") == ["a", "b"]
    assert list(none.loads.room) == [1.0, 1.0], "who comes first has nobody to leave the load to"
    become(none)
    assert none.backends == ()
    assert members(none, "m") == [], "nobody yet, or nobody now: not a model that cannot be"


def test_a_change_that_changes_nothing_is_none() -> None:
    some = fleet("a", "b")
    pool = some.pool(None)
    assert pool is not None
    view, generation = pool.view, some.generation
    applied = some.apply(some.plan([spec("b"), spec("a")]), 1.0)
    assert (applied.added, applied.removed, applied.changed) == ((), (), ())
    assert (pool.view, some.generation) == (view, generation)


def test_plans_may_overtake_each_other() -> None:
    """The last one applied counts, wherever it was planned."""
    some = fleet("a", "b", "c")
    plans = [some.plan([spec(name) for name in names]) for names in ("xyabc", "cba", "zy", "byx")]
    for plan in plans:
        for _ in plan.steps():
            pass
    for plan in reversed(plans):
        some.apply(plan, 1.0)
        names = {one.name for one in plan.specs}
        assert {backend.name for backend in some.backends} == names
        assert homes(some) == homes(fleet(*sorted(names)))


def test_a_plan_of_two_backends_of_one_name_is_refused() -> None:
    some = fleet("a")
    with pytest.raises(ValueError, match="different names"):
        some.plan([spec("b"), spec("b")])
    assert [backend.name for backend in some.backends] == ["a"]


def test_limits_follow_the_configuration() -> None:
    some = fleet(spec("a", max_in_flight=1), "b")
    assert some.lease(0) is not None
    assert some.lease(0) is None
    become(some, spec("a", max_in_flight=2), "b")
    assert some.lease(0) is not None
    assert some.lease(0) is None


def test_two_hundred_changes_leave_nothing_behind() -> None:
    """Case B16, of fleets: any history that ends at the same members ends at the same map."""
    some = fleet("a", "b", "c")
    before = homes(some)
    for turn in range(200):
        become(some, *[f"pod-{(turn + i) % 7}" for i in range(turn % 4)], "a", now_s=float(turn))
    become(some, "c", "b", "a")
    assert homes(some) == before
    assert len(some.in_flight) <= 8, "slots are used again, from the next change on"


def _shares(some: Fleet) -> list[float]:
    pool = some.pool(None)
    assert pool is not None
    return list(pool.view.ring.shares())


def _by_name(some: Fleet) -> dict[str, float]:
    return dict(zip([backend.name for backend in some.backends], _shares(some), strict=True))
