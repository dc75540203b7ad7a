"""Large pools: a few members are looked at, and the choice is nearly that among all."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from xxhash import xxh3_64_intdigest

from stickyroute.fleet import BackendSpec, Fleet, Tuning
from stickyroute.routing.keys import RequestKeys, candidate_keys
from stickyroute.routing.policies.sticky import Sticky
from stickyroute.routing.router import Router
from stickyroute.routing.shortlist import FEW, shortlist

COUNT = 100
SMALL = Tuning(index_entries=1 << 14)  # for a thousand prompts of eight blocks


def fleet_of(count: int = COUNT, weights: dict[int, int] | None = None) -> Fleet:
    weights = weights or {}
    return Fleet(
        [BackendSpec(f"b{i}", "http", "127.0.0.1", 8000 + i, weight=weights.get(i, 1)) for i in range(count)],
        32,
        SMALL,
    )


def keys_of(number: int, blocks: int = 8, head: int = 0) -> RequestKeys:
    chain = [xxh3_64_intdigest(b"head", i) for i in range(head)]
    chain += [xxh3_64_intdigest(b"%d" % number, i) for i in range(blocks - head)]
    ends = [1024 * (i + 1) for i in range(blocks)]
    key = xxh3_64_intdigest(b"key %d" % number)
    return RequestKeys(key, "header", chain, ends, 1024 * blocks + 10, None, candidate_keys(key, 2)[1])


def send(fleet: Fleet, router: Router, keys: RequestKeys, now_s: float = 1.0) -> int:
    pool = fleet.pool(None)
    assert pool is not None
    decision = router.route(keys, pool.view)
    assert decision is not None
    assert fleet.lease(decision.slot, keys, now_s, pool) is not None
    return decision.slot


def test_it_has_the_candidates_and_those_who_hold_the_prompt_and_is_short() -> None:
    fleet = fleet_of()
    pool = fleet.pool(None)
    assert pool is not None
    for slot in range(COUNT):  # the head is everybody's
        fleet.lease(slot, keys_of(10_000 + slot, head=4), 1.0, pool)
    for number in range(40):
        keys = keys_of(number, head=4)
        holder = (7 * number) % COUNT
        fleet.lease(holder, keys, 1.0, pool)
        part = shortlist(keys, pool.view, (), 0)
        assert part.size == COUNT
        assert len(part.slots) <= FEW
        assert len(set(part.slots)) == len(part.slots)
        assert {pool.view.ring.home(place) for place in candidate_keys(keys.affinity or 0, 2)} <= set(
            part.slots
        )
        assert (
            part.slots[0]
            == pool.view.ring.home(keys.affinity or 0)
            == part.slots[part.ring.home(keys.affinity or 0)]
        )
        assert holder in part.slots
        assert part.groups(keys.chain)[0] == (8, [holder])


def test_who_is_out_was_tried_or_has_no_weight_is_not_in_it() -> None:
    fleet = fleet_of(weights=dict.fromkeys(range(0, COUNT, 3), 0))
    pool = fleet.pool(None)
    assert pool is not None
    for slot in range(1, COUNT, 3):
        fleet.available[slot] = 0
    for number in range(30):
        keys = keys_of(number)
        fleet.lease(1, keys, 1.0, pool)
        part = shortlist(keys, pool.view, (2, 5, 8), 0)
        assert part.slots
        assert all(slot % 3 == 2 and slot not in (2, 5, 8) for slot in part.slots)
        decision = Router(Sticky(), random.Random(1)).route(keys, pool.view, (2, 5, 8))
        assert decision is not None
        assert decision.slot in part.slots


def test_conversations_stay_where_they_are_and_strangers_are_spread_evenly() -> None:
    """A hundred backends at rest: each is home to its keys; under load nobody has much more than the mean."""
    fleet, router = fleet_of(), Router(Sticky(), random.Random(2))
    pool = fleet.pool(None)
    assert pool is not None
    for number in range(100):
        home = pool.view.ring.home(keys_of(number).affinity or 0)
        assert send(fleet, router, keys_of(number)) == home or any(fleet.loads.backlog_tokens)
    places = Counter(send(fleet, router, keys_of(1000 + number)) for number in range(10 * COUNT))
    assert len(places) == COUNT
    assert max(places.values()) <= 1.5 * 10
    assert min(places.values()) >= 0.4 * 10


@pytest.mark.parametrize("known", [True, False])
def test_without_a_key_they_are_spread_as_well(known: bool) -> None:
    fleet, router = fleet_of(), Router(Sticky(), random.Random(3))
    places = Counter[int]()
    for number in range(5 * COUNT):
        keys = keys_of(number)._replace(affinity=None, second=None)
        places[send(fleet, router, keys if known else RequestKeys(None, ""))] += 1
    assert len(places) == COUNT
    assert max(places.values()) <= 2 * 5


def test_a_pool_of_some_of_the_fleets_backends() -> None:
    """Members are not numbered as slots are."""
    specs = [
        BackendSpec(f"b{i}", "http", "127.0.0.1", 8000 + i, models=("even" if i % 2 == 0 else "odd",))
        for i in range(COUNT)
    ]
    fleet, router = Fleet(specs, 32, SMALL), Router(Sticky(), random.Random(4))
    pool = fleet.pool("odd")
    assert pool is not None
    talk = keys_of(5)
    fleet.lease(77, talk, 1.0, pool)
    fleet.lease(78, talk, 1.0, fleet.pool("even"))
    assert pool.view.groups(talk.chain) == [(8, [77])]
    lease = fleet.lease(77, talk, 1.0, pool)
    assert lease is not None
    lease.first_token(1.1)
    decision = router.route(talk, pool.view)
    assert decision is not None
    assert decision.slot % 2 == 1


def test_the_choice_is_nearly_as_good_as_among_all() -> None:
    """The same strangers and conversations twice, with the shortlist and without."""
    worst: list[float] = []
    for few in (FEW, COUNT):
        fleet, router = fleet_of(), Router(Sticky(few=few), random.Random(5))
        rand = random.Random(6)
        for _ in range(600):
            send(fleet, router, keys_of(rand.randrange(200), head=3))
        worst.append(max(fleet.loads.backlog_tokens))
    assert worst[0] <= 1.5 * worst[1]
