"""The default policy: stories with exact outcomes, and the laws it keeps whatever the loads."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys, candidate_keys
from stickyroute.routing.policies.sticky import Sticky
from stickyroute.routing.view import FleetView
from tests.routing.test_cost import keep, prompt
from tests.routing.views import NO_KEY, pool, spread

RAND = random.Random(1)


def choose(view: FleetView, keys: RequestKeys, tried: tuple[int, ...] = (), **options: float) -> Decision:
    decision = Sticky(**options).choose(keys, view, tried, RAND)
    assert decision is not None
    return decision


def keyed(key: int) -> RequestKeys:
    return RequestKeys(key, "test", second=candidate_keys(key, 2)[1])


def test_a_fleet_at_rest_is_a_consistent_hashing_ring() -> None:
    view = pool([1] * 8)
    for key in spread(200):
        assert choose(view, keyed(key)) == (view.slots[view.ring.home(key)], "home")


def test_a_prompt_nobody_holds_goes_home_while_home_is_no_worse() -> None:
    view = pool([1] * 4)
    keys = prompt(1, 2, 3)
    home = view.ring.home(9)
    assert choose(view, keys) == (home, "home")
    view.loads.backlog_tokens[home] = 5000.0
    assert choose(view, keys).slot != home
    assert choose(view, keys).reason == "spill"


def test_the_second_candidate_comes_before_all_others() -> None:
    view = pool([1] * 8)
    for key in spread(50):
        home, second = (view.ring.home(place) for place in candidate_keys(key, 2))
        if home == second:
            continue
        view.loads.backlog_tokens[home] = 50_000.0
        assert choose(view, keyed(key)).slot == second
        view.loads.backlog_tokens[home] = 0.0


def test_a_key_that_outgrows_a_backend_has_more_candidates() -> None:
    """Of eight the first three are busy: the fourth of its four candidates is next, unless two coincide."""
    view = pool([1] * 8)
    key = next(k for k in spread(999) if len({view.ring.home(p) for p in candidate_keys(k, 4)}) == 4)
    places = [view.ring.home(place) for place in candidate_keys(key, 4)]
    for member in places[:3]:
        view.loads.backlog_tokens[member] = 50_000.0
    assert choose(view, keyed(key)._replace(spread=4)).slot == places[3]


def test_a_conversation_stays_where_its_prefix_is() -> None:
    """20 blocks are 1,280 tokens, 64 ms: it waits for less than that, and leaves for more."""
    view = pool([1] * 4)
    talk = prompt(*range(20))
    away = (view.ring.home(9) + 1) % 4
    keep(view, away, talk)
    assert choose(view, talk) == (away, "warm")
    view.loads.backlog_tokens[away] = 1000.0
    assert choose(view, talk) == (away, "warm")
    view.loads.backlog_tokens[away] = 1600.0
    assert choose(view, talk) == (view.ring.home(9), "home")


def test_the_busier_the_fleet_the_longer_it_waits_for_its_prefix() -> None:
    view = pool([1] * 4)
    talk = prompt(*range(20))
    away = (view.ring.home(9) + 1) % 4
    keep(view, away, talk)
    for slot in range(4):
        view.loads.backlog_tokens[slot] = 6000.0
    view.loads.backlog_tokens[away] = 8000.0
    assert choose(view, talk).slot != away
    view.loads.arrivals_s, view.loads.busy = 6.0, 0.8
    assert choose(view, talk).slot == away


def test_decoding_sequences_count() -> None:
    """Cases B08 and B10: the one with twenty open streams is busy though nothing waits there."""
    view = pool([1, 1], loads=[20, 0])
    for key in spread(40):
        assert choose(view, keyed(key)).slot == 1
    assert choose(view, NO_KEY) == (1, "no_key")


def test_at_rest_less_than_a_step_is_no_reason_to_leave_home() -> None:
    """64 tokens of a system prompt that only another backend holds: 3 ms, and a step is 20."""
    view = pool([1, 1, 1])
    view.loads.step_s = 0.02
    for key in spread(30):
        away = next(member for member in range(3) if member != view.ring.home(key))
        keep(view, away, prompt(1))
        assert choose(view, prompt(1, 2, key=key)) == (view.ring.home(key), "home")


def test_what_begins_anew_begins_at_home_wherever_the_system_prompt_is_warm() -> None:
    """Else all would be drawn to the first who has it, one request after the other, past what its cache holds; a
    conversation that goes on stays where it is, and so does one whose home is at work."""
    for key in spread(30):
        view = pool([1, 1, 1])
        home = view.ring.home(key)
        away = next(member for member in range(3) if member != home)
        keep(view, away, prompt(*range(20)))
        anew = prompt(*range(20), *range(100 + key % 7, 130 + key % 7), key=key)
        goes_on = prompt(*range(20), *range(200, 210), key=key)
        assert choose(view, anew) == (home, "home")
        assert choose(view, goes_on) == (away, "warm")
        for member in {0, 1, 2} - {away}:
            view.in_flight[member] = 1
        assert choose(view, anew) == (away, "warm")


def test_where_others_use_the_same_backends_home_is_left_for_more() -> None:
    """For each request of ours one that is not: what is not known is as much as what is, so a cost of up to twice the
    least is no reason to leave the place that all routers agree on."""
    view = pool([1] * 4)
    keys = prompt(*range(20))
    home = view.ring.home(9)
    view.loads.backlog_tokens[home] = 1000.0  # and 1,280 of its own
    assert choose(view, keys).reason == "spill"
    view.loads.unseen = 1.0
    assert choose(view, keys) == (home, "home")
    view.loads.backlog_tokens[home] = 1400.0
    assert choose(view, keys).reason == "spill"
    assert choose(view, keys, tolerance=0.0).reason == "spill"
    view.loads.backlog_tokens[home] = 1000.0
    assert choose(view, keys, tolerance=0.0) == (home, "home"), "the tolerance is what there is at least"


def test_a_prompt_is_computed_where_it_stops_the_fewest() -> None:
    """Where a request in flight counts nothing by itself, it still counts for work that would pause it."""
    view = pool([1, 1], loads=[20, 0])
    view.loads.decode_s, view.loads.stall = 0.0, 0.03
    for key in spread(20):
        assert choose(view, prompt(1, 2, key=key)).slot == 1


def test_load_that_is_not_known_is_no_reason_to_come_or_to_stay_away() -> None:
    """Case B17: nothing but what is in flight tells; 80 at once spread evenly whatever a scrape said before."""
    view = pool([1] * 4)
    counts: Counter[int] = Counter()
    for _ in range(80):
        slot = choose(view, NO_KEY).slot
        view.in_flight[slot] += 1
        counts[slot] += 1
    assert set(counts.values()) == {20}


def test_a_shared_prompt_does_not_keep_everybody_in_one_place() -> None:
    """Case B07: a burst of 64 for one warm prompt, all at once, over eight backends."""
    view = pool([1] * 8)
    warm = prompt(*range(30))
    for member in range(8):
        keep(view, member, warm)
    for number in range(64):
        slot = choose(view, prompt(*range(30), 1000 + number, key=spread(64)[number])).slot
        view.in_flight[slot] += 1
        view.loads.backlog_tokens[slot] += 64.0
    assert max(view.in_flight) <= 2 * 8


def test_home_is_failed_over_and_the_next_is_the_same_for_everyone() -> None:
    view = pool([1] * 5)
    for key in spread(40):
        home = view.slots[view.ring.home(key)]
        down = pool([1] * 5, down=[home])
        assert choose(down, keyed(key)).reason == "failover"
        assert choose(view, keyed(key), (home,)) == choose(down, keyed(key))


def test_overflow_does_not_all_go_to_one_backend() -> None:
    """Keys of one home that cannot take them: each goes where its own order says."""
    view = pool([1] * 8)
    home = 3
    view.loads.backlog_tokens[home] = 1e6
    keys = [key for key in spread(4000) if view.ring.home(key) == home]
    counts = Counter(choose(view, keyed(key)).slot for key in keys)
    assert set(counts) == set(range(8)) - {home}
    assert max(counts.values()) < 0.35 * len(keys)


def test_the_bound_comes_last() -> None:
    """All the backlog is where the prompt is warm: four times its share. Computing 2,560 tokens nine times over is
    dearer than waiting for 20,000, but with a bound of two it has to move."""
    view = pool([1] * 4)
    talk = prompt(*range(40))
    away = (view.ring.home(9) + 1) % 4
    keep(view, away, talk)
    view.loads.kappa.fixed = 8.0
    view.loads.backlog_tokens[away] = 20_000.0
    assert choose(view, talk, bound=4.0, floor_tokens=0.0).slot == away
    assert choose(view, talk, bound=2.0, floor_tokens=0.0).slot != away
    assert choose(view, talk, bound=2.0, floor_tokens=32_768.0).slot == away


LOADS = st.lists(st.floats(0, 200_000), min_size=4, max_size=4)


@given(backlog=LOADS, kept=st.sets(st.integers(0, 3)), kappa=st.floats(0, 8), key=st.integers(0, 2**64 - 1))
def test_nobody_above_the_bound_is_chosen_while_somebody_is_below(
    backlog: list[float], kept: set[int], kappa: float, key: int
) -> None:
    view = pool([1] * 4)
    talk = prompt(*range(50), key=key)
    for member in kept:
        keep(view, member, talk)
    view.loads.kappa.fixed = kappa
    for slot, tokens in enumerate(backlog):
        view.loads.backlog_tokens[slot] = tokens
    chosen = choose(view, talk, bound=2.0, floor_tokens=1000.0).slot
    limit = max(1000.0, 2.0 * sum(backlog) / 4)
    assert backlog[chosen] <= limit * 1.000001


@given(key=st.integers(0, 2**64 - 1), gone=st.integers(0, 5))
def test_removing_a_backend_moves_only_its_keys(key: int, gone: int) -> None:
    """At rest; with loads, costs decide."""
    before = choose(pool([1] * 6), keyed(key)).slot
    after = choose(pool([1] * 6, down=[gone]), keyed(key)).slot
    assert after == before or before == gone


@pytest.mark.parametrize("options", [{"tolerance": -0.1}, {"bound": 0.5}, {"floor_tokens": -1.0}])
def test_options_that_make_no_sense(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="tolerance"):
        Sticky(**options)


def test_every_backend_is_explained() -> None:
    view = pool([1, 1, 1], loads=[2, 0, 0])
    keep(view, 2, prompt(1, 2))
    shown = Sticky().explain(prompt(1, 2, 3), view)
    assert set(shown) == {0, 1, 2}
    assert shown[2].recompute_s < shown[0].recompute_s
    assert shown[0].decode_s == pytest.approx(0.04)
    assert min(shown, key=lambda slot: shown[slot].cost_s) == choose(view, prompt(1, 2, 3)).slot
