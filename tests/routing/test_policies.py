"""What every policy promises, and what each one does with exact counts."""

from __future__ import annotations

import random
from collections import Counter
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies import POLICIES, build_policy, make_policy
from stickyroute.routing.policies.bounded_ring import BoundedRing
from stickyroute.routing.router import Router
from stickyroute.routing.view import FleetView
from tests.routing.views import NO_KEY, Script, key_at, pool, spread

RAND = random.Random(2)


def choose(
    policy: str, view: FleetView, keys: RequestKeys = NO_KEY, tried: Any = (), rand: Any = RAND
) -> Any:
    return Router(make_policy(policy), rand).route(keys, view, tried)


def place(policy: str, view: FleetView, all_keys: list[RequestKeys]) -> Counter[int]:
    """Send requests that never end; how many each slot got."""
    router = Router(make_policy(policy), random.Random(3))
    for keys in all_keys:
        decision = router.route(keys, view)
        assert decision is not None
        view.in_flight[decision.slot] += 1
    return Counter(dict(enumerate(view.in_flight)))


# Every policy.

POOLS = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 3), min_size=size, max_size=size),
        st.lists(st.integers(0, 12), min_size=size, max_size=size),
        st.sets(st.integers(0, size - 1)),
        st.sets(st.integers(0, size - 1)),
    )
)
KEYS = st.none() | st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("policy", POLICIES)
@given(world=POOLS, key=KEYS, seed=st.integers(0, 99))
def test_the_choice_is_available_untried_and_made_whenever_one_is(
    policy: str, world: Any, key: int | None, seed: int
) -> None:
    weights, loads, down, tried = world
    view = pool(weights, loads, down)
    decision = choose(policy, view, RequestKeys(key, ""), tried, random.Random(seed))
    left = set(range(len(weights))) - down - tried
    if not left:
        assert decision is None
        return
    assert decision.slot in left
    if any(weights[slot] for slot in left):
        assert weights[decision.slot], "weight 0 serves only when nobody else can"
    assert list(view.in_flight) == loads, "choosing changes no load"
    assert list(view.available) == [slot not in down for slot in range(len(weights))]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_tries_every_backend_once_and_then_none(policy: str) -> None:
    """Case B79."""
    view = pool([1, 2, 0, 1])
    tried: list[int] = []
    while (decision := choose(policy, view, RequestKeys(77, ""), tried)) is not None:
        tried.append(decision.slot)
    assert sorted(tried) == [0, 1, 2, 3]
    assert tried[-1] == 2, "weight 0 comes last"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_pool_and_a_pool_that_is_down_choose_nobody(policy: str) -> None:
    assert choose(policy, pool([]), RequestKeys(5, "")) is None
    assert choose(policy, pool([1, 0], down=[0, 1]), RequestKeys(5, "")) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_is_part_of_a_fleet(policy: str) -> None:
    """Slots 1 and 3 of four; what happens on the others is not looked at."""
    view = pool([1, 1], loads=[99, 0, 99, 0], slots=[1, 3], down=[0])
    chosen = {choose(policy, view, RequestKeys(key, "")).slot for key in spread(50)}
    assert chosen == {1, 3}


@pytest.mark.parametrize("policy", ["ring", "bounded_ring", "least_requests", "round_robin", "random"])
def test_weights_are_shares(policy: str) -> None:
    """Weights 1 and 3: of 400 requests that stay, about 100 and 300."""
    counts = place(policy, pool([1, 3]), [RequestKeys(key, "") for key in spread(400)])
    assert 60 <= counts[0] <= 140


@pytest.mark.parametrize("policy", ["bounded_ring", "ring", "least_requests", "round_robin"])
def test_a_burst_without_keys_spreads_exactly(policy: str) -> None:
    """Case B07: 64 at once over 8 equal backends are 8 each."""
    assert set(place(policy, pool([1] * 8), [NO_KEY] * 64).values()) == {8}


@pytest.mark.parametrize("policy", ["bounded_ring", "least_requests", "power_of_two"])
def test_a_busy_backend_gets_nothing_of_what_is_new(policy: str) -> None:
    """Cases B08 and B10: 20 requests stay on A; of 10 keyless ones none joins them."""
    counts = place(policy, pool([1, 1], loads=[20, 0]), [NO_KEY] * 10)
    assert counts == {0: 20, 1: 10}


@pytest.mark.parametrize("policy", ["ring", "bounded_ring", "least_requests", "round_robin"])
def test_of_two_pools_each_rotates_by_itself(policy: str) -> None:
    """Case B14: alternating models, 100 each; a shared counter would send each to one backend only."""
    one, other = pool([1, 1]), pool([1, 1])
    counts: Counter[tuple[int, int]] = Counter()
    for turn in range(200):
        counts[turn % 2, choose(policy, (one, other)[turn % 2]).slot] += 1
    assert set(counts.values()) == {50}


@pytest.mark.parametrize("policy", POLICIES)
def test_of_those_without_weight_the_least_requests_helps_out(policy: str) -> None:
    assert choose(policy, pool([0, 0, 0, 1], loads=[3, 1, 2, 0], down=[3]), RequestKeys(5, "")).slot == 1


# One by one.


@pytest.mark.parametrize("policy", ["ring", "bounded_ring"])
def test_home_whenever_it_can_serve_and_the_next_on_the_ring_when_not(policy: str) -> None:
    view = pool([1] * 5)
    for key in spread(100):
        walk = [view.slots[member] for member in view.ring.walk(key)]
        keys = RequestKeys(key, "")
        assert choose(policy, view, keys) == (walk[0], "home")
        assert choose(policy, view, keys, [walk[0]]) == (walk[1], "failover")
        assert choose(policy, view, keys, walk[:3]) == (walk[3], "failover")
        down = pool([1] * 5, down=walk[:2])
        assert choose(policy, down, keys) == (walk[2], "failover")


@pytest.mark.parametrize("policy", ["ring", "bounded_ring"])
def test_without_a_key_the_least_requests(policy: str) -> None:
    assert choose(policy, pool([1, 1, 1], loads=[3, 1, 2])) == (1, "no_key")
    assert choose(policy, pool([1, 4], loads=[1, 3])) == (1, "no_key"), "3/4 is less than 1/1"


def test_ring_looks_at_no_load() -> None:
    view = pool([1, 1], loads=[1000, 0])
    assert choose("ring", view, key_at(view, 0)) == (0, "home")


def test_a_hot_key_fills_home_to_the_bound_then_spills_along_the_ring() -> None:
    """Four backends, all requests with one key, none ends. With t in flight a backend may hold
    max(2, ceil(1.25 (t + 1) / 4)): home takes the first two by the floor, then the next two backends fill to
    the floor; at t = 6 the bound is ceil(1.25 * 7 / 4) = 3, and home takes one more."""
    view = pool([1] * 4)
    keys = key_at(view, 0)
    walk = list(view.ring.walk(keys.affinity or 0))
    chosen = []
    for _ in range(8):
        decision = choose("bounded_ring", view, keys)
        view.in_flight[decision.slot] += 1
        chosen.append((walk.index(decision.slot), decision.reason))
    assert chosen == [
        *[(0, "home"), (0, "home"), (1, "spill"), (1, "spill"), (2, "spill"), (2, "spill")],
        *[(0, "home"), (1, "spill")],
    ]


def test_the_bound_is_a_share_of_what_is_in_flight() -> None:
    """Ten backends, 100 in flight, home at 12: ceil(1.25 * 101 / 10) = 13, so one more fits, not two."""
    view = pool([1] * 10, loads=[12, 8, *[10] * 8])
    keys = key_at(view, 0)
    assert choose("bounded_ring", view, keys).reason == "home"
    view.in_flight[0] += 1
    assert choose("bounded_ring", view, keys).reason == "spill"


def test_the_bound_goes_by_weight() -> None:
    """Weights 3 and 1, sixteen in flight: bounds ceil(1.25 * 17 * 3 / 4) = 16 and ceil(1.25 * 17 / 4) = 6."""
    view = pool([3, 1], loads=[15, 1])
    assert choose("bounded_ring", view, key_at(view, 0)).reason == "home"
    view = pool([3, 1], loads=[10, 6])
    assert choose("bounded_ring", view, key_at(view, 1)) == (0, "spill")


def test_what_is_unavailable_has_no_share() -> None:
    """Two of four are gone, the others have 4 and 3 in flight: over four backends the bound would be
    ceil(1.25 * 8 / 4) = 3 and everything would spill; over the two it is ceil(1.25 * 8 / 2) = 5. What still
    runs on the ones that are gone is no load of the others."""
    view = pool([1] * 4, loads=[4, 3, 50, 0], down=[2, 3])
    keys = key_at(view, 0)
    assert choose("bounded_ring", view, keys) == (0, "home")
    view.in_flight[0] = 8  # the bound is ceil(1.25 * 12 / 2) = 8
    assert choose("bounded_ring", view, keys) == (1, "spill")


def test_where_only_full_ones_are_left_the_least_requests_takes_it() -> None:
    """One was tried; the others are past ceil(1.25 * 51 / 3) = 22, then ceil(1.25 * 61 / 3) = 26."""
    view = pool([1, 1, 1], loads=[26, 24, 0])
    keys = key_at(view, 0)
    assert choose("bounded_ring", view, keys, [2]) == (1, "spill")
    view = pool([1, 1, 1], loads=[28, 32, 0])
    assert choose("bounded_ring", view, key_at(view, 0), [2]) == (0, "home")


@given(
    world=POOLS,
    key=st.integers(0, 2**64 - 1),
    factor=st.sampled_from([1.0, 1.25, 1.5, 2.0]),
    floor=st.integers(1, 3),
)
def test_no_pick_above_the_bound_while_one_is_below(world: Any, key: int, factor: float, floor: int) -> None:
    weights, loads, down, tried = world
    decision = BoundedRing(factor, floor).choose(
        RequestKeys(key, ""), pool(weights, loads, down), tried, RAND
    )
    up = [slot for slot in range(len(weights)) if slot not in down and weights[slot]]
    total, weight = sum(loads[slot] for slot in up), sum(weights[slot] for slot in up)
    below = {
        slot
        for slot in up
        if slot not in tried and loads[slot] < max(floor, ceil(factor * (total + 1) * weights[slot] / weight))
    }
    if below:
        assert decision is not None
        assert decision.slot in below


@given(
    weights=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    all_keys=st.lists(st.integers(0, 2**64 - 1), max_size=60),
)
def test_loads_stay_within_the_bound_whatever_the_keys(weights: list[int], all_keys: list[int]) -> None:
    view = pool(weights)
    place("bounded_ring", view, [RequestKeys(key, "") for key in all_keys])
    for slot, weight in enumerate(weights):
        assert view.in_flight[slot] <= max(2, ceil(1.25 * len(all_keys) * weight / sum(weights)))


def test_least_requests_goes_by_weight_and_takes_turns_among_equals() -> None:
    assert choose("least_requests", pool([1, 2, 1], loads=[1, 1, 1])) == (1, "least_requests")
    view = pool([1, 1, 1, 1], loads=[5, 0, 0, 0])
    assert [choose("least_requests", view).slot for _ in range(6)] == [1, 2, 3, 1, 2, 3]


def test_an_idle_fleet_gives_each_its_weight() -> None:
    """One request at a time: the ties of an idle fleet, weights 3 and 1."""
    view = pool([3, 1])
    assert Counter(choose("least_requests", view).slot for _ in range(40)) == {0: 30, 1: 10}


def test_power_of_two_takes_the_better_of_the_two_it_drew() -> None:
    """Of 4, draws 0.3 -> the second; of the 3 others, 0.99 -> the last."""
    view = pool([1] * 4, loads=[0, 5, 0, 3])
    assert choose("power_of_two", view, rand=Script(0.3, 0.99)) == (3, "power_of_two")
    view = pool([1] * 4, loads=[0, 2, 0, 3])
    assert choose("power_of_two", view, rand=Script(0.3, 0.99)) == (1, "power_of_two")
    view = pool([1, 3, 1, 1], loads=[0, 5, 0, 2])
    assert choose("power_of_two", view, rand=Script(0.3, 0.99)).slot == 1, "5/3 is less than 2/1"


def test_power_of_two_draws_every_pair_of_different_backends() -> None:
    """Over all draws of a 3 x 2 grid the six ordered pairs come up once each; the first wins a tie."""
    view = pool([1, 1, 1])
    draws = [(a / 3 + 0.1, b / 2 + 0.1) for a in range(3) for b in range(2)]
    assert [choose("power_of_two", view, rand=Script(*draw)).slot for draw in draws] == [0, 0, 1, 1, 2, 2]
    view = pool([1, 1, 1], loads=[9, 0, 9])
    assert [choose("power_of_two", view, rand=Script(*draw)).slot for draw in draws] == [1, 0, 1, 1, 2, 1]


def test_power_of_two_with_one_left_draws_nothing() -> None:
    assert choose("power_of_two", pool([1, 1]), tried=[0], rand=Script()) == (1, "power_of_two")


def test_round_robin_spreads_the_turns_of_a_heavy_backend() -> None:
    view = pool([2, 1, 1])
    assert [choose("round_robin", view).slot for _ in range(8)] == [0, 1, 2, 0, 0, 1, 2, 0]


def test_round_robin_shares_the_turns_of_a_dead_backend_among_all() -> None:
    """Skipping it would double the load of its successor."""
    view = pool([1, 1, 1], down=[0])
    assert Counter(choose("round_robin", view).slot for _ in range(30)) == {1: 15, 2: 15}


def test_random_goes_by_weight() -> None:
    view = pool([1, 2, 1])
    draws = [0.0, 0.24, 0.25, 0.74, 0.75, 0.999]
    assert [choose("random", view, rand=Script(draw)).slot for draw in draws] == [0, 0, 1, 1, 2, 2]
    assert choose("random", pool([1, 2, 1], down=[1]), rand=Script(0.5)) == Decision(2, "random")


# The dict of names.


def test_policies_are_known_by_name() -> None:
    assert set(POLICIES) == {
        *("sticky", "bounded_ring", "ring"),
        *("least_tokens", "least_requests", "power_of_two", "round_robin", "random"),
    }
    assert make_policy("least_loaded").name == "least_requests", "its old name"
    for name in POLICIES:
        assert make_policy(name).name == name
        assert Router(make_policy(name), RAND).policy == name
    with pytest.raises(ValueError, match="known: sticky"):
        make_policy("best")


def test_the_settings_reach_the_policy() -> None:
    settings: Any = SimpleNamespace(
        policy="bounded_ring", bounded_ring=SimpleNamespace(load_factor=1.0, floor=5), ring=None
    )
    view = pool([1, 1], loads=[4, 0])
    keys = key_at(view, 0)
    decide = build_policy(settings).choose
    assert decide(keys, view, (), RAND) == (0, "home")
    view.in_flight[0] = 5
    assert decide(keys, view, (), RAND) == (1, "spill")


@pytest.mark.parametrize(("factor", "floor"), [(0.99, 2), (float("nan"), 2), (1.25, 0)])
def test_a_bound_that_makes_no_sense_is_refused(factor: float, floor: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BoundedRing(factor, floor)
