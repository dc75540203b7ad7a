"""What leases do to the fleet's loads: backlogs come and go, caches are believed in, and what restarts lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet import Fleet, Lease
from stickyroute.fleet.sample import Sample
from stickyroute.openai.usage import Usage
from stickyroute.routing.keys import RequestKeys
from tests.fleet.leased import TUNING, backlog, fleet, lease, prompt
from tests.fleet.specs import spec

# Backlog.


def test_a_prompt_is_backlog_until_its_first_token() -> None:
    two = fleet()
    first = lease(two, 0, prompt("a", 1000), 0.0)
    lease(two, 0, prompt("b", 500), 0.0)
    assert backlog(two) == [1500, 0]
    assert list(two.loads.queued) == [2, 0]
    first.first_token(0.1)
    first.first_token(0.2)
    assert backlog(two) == [500, 0]
    assert list(two.loads.queued) == [1, 0]
    assert list(two.loads.in_flight_tokens) == [1500, 0]


def test_what_is_cached_is_no_backlog() -> None:
    """1024 tokens are 16 blocks of 64; of a prompt that goes on from there only the rest is computed."""
    two = fleet()
    turn = lease(two, 0, prompt("talk ", 1024), 0.0)
    turn.first_token(0.1)
    turn.release(0.2)
    again = lease(two, 0, prompt("talk ", 1500), 1.0)
    assert again.held_tokens == 1024
    assert backlog(two) == [476, 0]
    elsewhere = lease(two, 1, prompt("talk ", 1500), 1.0)
    assert elsewhere.held_tokens == 0
    assert backlog(two) == [476, 1500]


def test_an_answer_is_cached_for_who_goes_on_from_it() -> None:
    two = fleet()
    turn = lease(two, 0, prompt("talk ", 1040, key=7), 0.0)
    turn.first_token(0.1)
    turn.usage(Usage(1040, 0, 300), 0.5)
    turn.release(0.5)
    same = lease(two, 0, prompt("talk ", 1500, key=7), 1.0)
    assert same.held_tokens == pytest.approx(1024 + 16 + 300, abs=1)
    other = lease(two, 0, prompt("talk ", 1030, key=8), 1.0)
    assert other.held_tokens == 1024, "another conversation has another answer"


@pytest.mark.parametrize("end", ["release", "break off", "first token, then release"])
def test_every_end_gives_everything_back(end: str) -> None:
    two = fleet()
    leases = [lease(two, slot % 2, prompt(str(slot), 100 + 37 * slot), slot * 0.01) for slot in range(9)]
    for held in leases:
        if end.startswith("first"):
            held.first_token(1.0)
        held.release(None if end == "break off" else 2.0)
        held.release(3.0)
    assert backlog(two) == [0, 0]
    assert list(two.loads.queued) == [0, 0]
    assert list(two.loads.in_flight_tokens) == [0, 0]
    assert list(two.in_flight) == [0, 0]


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.booleans()), max_size=60))
def test_nothing_is_left_whatever_the_order_of_events(steps: list[tuple[int, int, bool]]) -> None:
    """Cases B03 and B22: accounts do not drift."""
    two = fleet()
    open_leases: list[Lease] = []
    now_s = 0.0
    for what, which, flag in steps:
        now_s += 0.01
        if what < 2 or not open_leases:
            open_leases.append(lease(two, which % 2, prompt(f"p{which}", 50 * which + 1), now_s, flag))
            continue
        chosen = open_leases[which % len(open_leases)]
        if what == 2:
            chosen.first_token(now_s)
        elif what == 3:
            chosen.usage(Usage(40, 10, 30), now_s)
        elif what == 4:
            two.settle(now_s + 100 * flag)
        else:
            chosen.release(now_s if flag else None)
            open_leases.remove(chosen)
        loads = two.loads
        assert all(0 <= queued <= many for queued, many in zip(loads.queued, loads.in_flight, strict=True))
        assert min(loads.backlog_tokens) >= 0
    for held in open_leases:
        held.release(now_s)
    assert backlog(two) == [0, 0]
    assert list(two.loads.queued) == list(two.in_flight) == [0, 0]
    assert list(two.loads.in_flight_tokens) == [0, 0]


def test_the_prompt_at_the_head_is_worked_off_meanwhile_but_never_wholly() -> None:
    """10,000 tokens a second."""
    two = fleet()
    lease(two, 0, prompt("a", 2000), 0.0)
    lease(two, 0, prompt("b", 1000), 0.05)
    two.settle(0.1)
    assert backlog(two) == [2000, 0]
    two.settle(5.0)
    assert backlog(two) == [1200, 0], "a tenth of the head and all of the other"


def test_replies_that_do_not_stream_leave_the_backlog_when_they_should_be_computed() -> None:
    two = fleet()
    for number in range(3):
        lease(two, 0, prompt(str(number), 1000), 0.0, streams=False)
    two.settle(0.15)
    assert backlog(two) == [1500, 0]
    two.settle(0.25)
    assert list(two.loads.queued) == [1, 0]
    two.settle(9.0)
    assert backlog(two) == [0, 0]
    assert list(two.in_flight) == [3, 0]


def test_a_first_token_shows_that_everything_before_it_is_computed() -> None:
    two = fleet()
    lease(two, 0, prompt("a", 5000), 0.0, streams=False)
    later = lease(two, 0, prompt("b", 100), 0.01)
    later.first_token(0.2)
    assert backlog(two) == [0, 0]


# Failures and restarts.


def test_what_was_never_answered_was_never_cached() -> None:
    two = fleet()
    done = lease(two, 0, prompt("talk ", 640), 0.0)
    done.first_token(0.1)
    done.release(0.2)
    refused = lease(two, 0, prompt("talk ", 1280), 1.0)
    refused.release(1.1)
    assert lease(two, 0, prompt("talk ", 1280), 2.0).held_tokens == 640


def test_a_backend_that_refuses_connections_has_lost_its_cache() -> None:
    two = fleet()
    for slot in (0, 1):
        held = lease(two, slot, prompt("talk ", 640), 0.0)
        held.first_token(0.1)
        held.release(0.2)
    two.record_refused(0, 1.0, 0.0)
    assert lease(two, 0, prompt("talk ", 640), 2.0).held_tokens == 0
    assert lease(two, 1, prompt("talk ", 640), 2.0).held_tokens == 640


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (Sample(started_s=100.0), Sample(started_s=100.4), False),
        (Sample(started_s=100.0), Sample(started_s=220.0), True),
        (Sample(queries_tokens=5000), Sample(queries_tokens=6000), False),
        (Sample(queries_tokens=5000), Sample(queries_tokens=10), True),
        (Sample(queries_tokens=5000), Sample(), False),
    ],
)
def test_a_restart_is_noticed_by_start_time_or_counters(before: Sample, after: Sample, lost: bool) -> None:
    two = fleet()
    two.record_sample(0, before, 0.0)
    held = lease(two, 0, prompt("talk ", 640), 0.0)
    held.first_token(0.1)
    held.release(0.2)
    two.record_sample(0, after, 5.0)
    assert lease(two, 0, prompt("talk ", 640), 6.0).held_tokens == (0 if lost else 640)


# The KV cache.


def test_the_size_of_the_cache_comes_from_the_engine() -> None:
    two = fleet()
    two.record_sample(0, Sample(blocks=1000, block_size_tokens=16), 0.0)
    two.record_sample(1, Sample(capacity_tokens=5000), 0.0)
    assert list(two.loads.capacity_tokens) == [16_000, 5000]


def test_how_full_it_will_be_is_predicted_between_two_looks() -> None:
    """40 % with 20,000 tokens in flight: with twice as many it is 80 %."""
    two = fleet()
    for number in range(20):
        lease(two, 0, prompt(f"{number} ", 1000), 0.0)
    assert two.loads.kv_used[0] == 0, "unknown is not full"
    two.record_sample(0, Sample(kv_utilization=0.4), 1.0)
    assert two.loads.kv_used[0] == pytest.approx(0.4)
    for number in range(20):
        lease(two, 0, prompt(f"more {number} ", 1000), 2.0)
    assert two.loads.kv_used[0] == pytest.approx(0.8)


def test_a_very_large_fleet_is_settled_every_two_milliseconds() -> None:
    many = Fleet([spec(f"b{number}") for number in range(100)], 8, TUNING)
    keys = RequestKeys(1, "header", prompt_bytes=40_000)
    many.lease(7, keys, 1.0, many.pool(None))
    many.settle(1.1)
    before = many.loads.backlog_tokens[7]
    many.settle(1.1015)
    assert many.loads.backlog_tokens[7] == before
    many.settle(1.1025)
    assert many.loads.backlog_tokens[7] < before


def test_rates_are_means_over_the_time_since_the_first_request() -> None:
    """Ten requests a second to two backends, 1,000 tokens of 0.1 s each: five a second, half of the time. A mean over
    twenty seconds that began at nothing would say a tenth of it after two."""
    two = fleet()
    for number in range(600):
        lease(two, number % 2, prompt(f"{number} ", 1000), 40.0 + number / 10).release(None)
        if number == 20:
            assert two.loads.arrivals_s == pytest.approx(3.5, abs=0.2)  # 21 in two seconds and one before
            assert two.loads.busy == pytest.approx(0.35, abs=0.02)
    assert two.loads.arrivals_s == pytest.approx(5.0, abs=0.2)
    assert two.loads.busy == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("there", "least", "most"), [(0, 0, 0), (10, 0, 0), (11, 0, 0), (15, 0.3, 0.5), (40, 1, 1)]
)
def test_requests_that_came_past_this_router_are_seen_by_their_number(
    there: int, least: float, most: float
) -> None:
    """Ten of ours are in flight; the engine says how many it has, every five seconds."""
    two = fleet()
    for number in range(10):
        lease(two, 0, prompt(f"{number} ", 100), 0.0)
    for look in range(10):
        two.record_sample(0, Sample(running=there, waiting=0), 5.0 * look)
        two.record_sample(1, Sample(running=99, waiting=0), 5.0 * look)  # says nothing: none of ours is there
    assert least <= two.loads.unseen <= most


def test_what_came_past_this_router_is_forgotten_when_it_comes_no_more() -> None:
    one = fleet(1)
    for number in range(4):
        lease(one, 0, prompt(f"{number} ", 100), 0.0)
    one.record_sample(0, Sample(running=3, waiting=9), 0.0)
    assert one.loads.unseen == 1.0
    for look in range(20):
        one.record_sample(0, Sample(running=4, waiting=0), 5.0 + 5.0 * look)
    assert one.loads.unseen == 0.0
