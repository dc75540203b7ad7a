"""Who may be sent requests: probes, ejection by real traffic, and the operator's word."""

from __future__ import annotations

import pytest

from stickyroute.fleet import Outcome
from tests.fleet.judged import FAILURES, RULES, codes, fail, of
from tests.fleet.specs import fleet

# Probes.


def test_nothing_known_is_used() -> None:
    some = of(2)
    assert [some.state(slot).health for slot in (0, 1)] == ["unknown", "unknown"]
    assert list(some.available) == [1, 1]
    some.record_probe(0, True, 1.0)
    assert some.state(0).health == "healthy"
    assert some.take_events() == []


def test_three_failed_probes_in_a_row_take_it_out_and_two_good_ones_bring_it_back() -> None:
    """Case B75: one or two slow probes of a busy engine are nothing."""
    some = of(2)
    for now_s, ok in enumerate((True, False, False, True, False, False)):
        some.record_probe(0, ok, float(now_s), "no answer in time")
        assert some.available[0]
    some.record_probe(0, False, 6.0, "no answer in time")
    state = some.state(0)
    assert (state.available, state.health, state.why, state.since_s) == (
        False, "unhealthy", "no answer in time", 6.0,
    )  # fmt: skip
    for ok, available in ((True, 0), (False, 0), (True, 0), (True, 1)):
        some.record_probe(0, ok, 7.0)
        assert some.available[0] == available
    assert codes(some) == [(0, "unhealthy"), (0, "back")]


def test_one_good_probe_is_enough_for_one_that_refused() -> None:
    """It is a new process: what the old one did is forgotten."""
    some = of(2)
    fail(some, 0, 5, 1.0, Outcome.RESET)
    some.record_outcome(0, Outcome.CONNECT_FAILED, 1.1, 0.5)
    for _ in range(4):
        some.record_probe(0, False, 1.5)
    assert some.state(0).why == "refuses connections"
    some.record_probe(0, True, 2.0)
    state = some.state(0)
    assert (state.available, state.ejected, state.health, state.why) == (True, False, "healthy", "")


# Real traffic.


@pytest.mark.parametrize("outcome", FAILURES)
def test_five_failures_in_a_row_eject(outcome: Outcome) -> None:
    some = of(3)
    some.record_probe(0, True, 0.0)
    fail(some, 0, 4, 1.0, outcome)
    some.record_outcome(0, Outcome.ANSWERED, 1.0, 0.0)
    fail(some, 0, 4, 2.0, outcome)
    assert some.available[0]
    fail(some, 0, 1, 3.0, outcome)
    state = some.state(0)
    assert (state.available, state.ejected, state.health, state.since_s) == (False, True, "healthy", 3.0)
    assert outcome.value in state.why
    fail(some, 0, 50, 3.1, outcome)  # those that were in flight
    assert codes(some) == [(0, "ejected")]


def test_a_refused_connection_takes_out_at_once() -> None:
    """Case B78."""
    some = of(3)
    some.record_outcome(1, Outcome.CONNECT_FAILED, 1.0, 0.0)
    assert list(some.available) == [1, 0, 1]
    assert some.state(1).why == "refuses connections"


def test_a_process_that_is_going_does_not_come_back_by_its_last_answers() -> None:
    """It closed its listener and finishes what runs."""
    some = of(2)
    some.record_outcome(0, Outcome.CONNECT_FAILED, 1.0, 0.0)
    for _ in range(20):
        some.record_outcome(0, Outcome.ANSWERED, 1.1, 0.0)
    assert not some.available[0]
    assert codes(some) == [(0, "refused")]


def test_no_first_byte_ejects_though_the_probe_is_green() -> None:
    some = of(2)
    for now_s in (1.0, 2.0):
        some.record_outcome(0, Outcome.NO_FIRST_BYTE, now_s, 0.0)
        some.record_probe(0, True, now_s)
    assert some.available[0]
    some.record_outcome(0, Outcome.NO_FIRST_BYTE, 3.0, 0.0)
    some.record_probe(0, True, 3.0)
    assert not some.available[0]
    assert "first byte" in some.state(0).why


def test_the_clients_faults_are_answers() -> None:
    """Case B66: two hundred bad requests, then good ones."""
    some = of(2)
    fail(some, 0, 4, 1.0)
    for _ in range(200):
        some.record_outcome(0, Outcome.ANSWERED, 1.0, 0.0)
        fail(some, 0, 4, 1.0)
    assert list(some.available) == [1, 1]


def test_busy_is_a_pause_as_long_as_it_asks_and_never_death() -> None:
    some = of(3)
    for _ in range(100):
        some.record_outcome(0, Outcome.BUSY, 1.0, 0.0, retry_after_s=4.0)
    state = some.state(0)
    assert (state.available, state.ejected) == (False, False)
    some.tick(4.9)
    assert not some.available[0]
    some.tick(5.0)
    assert some.available[0]
    assert some.take_events() == []
    some.record_outcome(0, Outcome.BUSY, 10.0, 0.0, retry_after_s=1e9)
    some.tick(10.0 + RULES.busy_limit_s)
    assert some.available[0], "nobody keeps itself out for ever"


def test_a_dead_engine_is_out_whatever_its_server_says() -> None:
    some = of(2)
    some.record_outcome(0, Outcome.ENGINE_DEAD, 1.0, 0.0)
    some.record_probe(0, True, 1.1)
    assert not some.available[0]
    some.record_outcome(1, Outcome.CONNECT_FAILED, 1.2, 0.0)
    assert list(some.available) == [0, 0], "not even in a panic"
    some.tick(2.0)
    assert some.available[0], "one request may try"


# The operator.


def test_drain_and_disable_are_apart_from_health_and_reversible() -> None:
    some = of(2)
    lease = some.lease(0)
    assert lease is not None
    some.drain(0, 5.0)
    state = some.state(0)
    assert (state.operator, state.health, state.available, state.since_s) == (
        "draining",
        "unknown",
        False,
        5.0,
    )
    assert (state.in_flight, state.began_in_flight) == (1, 1)
    assert some.takes_pinned(0), "what only it can answer"
    some.record_probe(0, True, 6.0)
    assert not some.available[0]
    lease.release()
    assert (some.state(0).in_flight, some.state(0).began_in_flight) == (0, 1)
    some.disable(0, 7.0)
    assert not some.takes_pinned(0)
    some.enable(0, 8.0)
    assert some.available[0]
    assert codes(some) == [(0, "draining"), (0, "disabled"), (0, "active")]


def test_draining_all_is_the_operators_business() -> None:
    some = of(2)
    for slot in (0, 1):
        some.drain(slot, 1.0)
        some.drain(slot, 2.0)
    assert list(some.available) == [0, 0]
    assert len(some.take_events()) == 2
    some.undrain(1, 3.0)
    assert list(some.available) == [0, 1]


def test_a_burst_of_resets_is_one_line() -> None:
    """Case B70: all workers die under load, and nothing storms."""
    some = of(3)
    for slot in range(3):
        fail(some, slot, 50, 1.0, Outcome.RESET)
        for i in range(50):
            some.record_outcome(slot, Outcome.CONNECT_FAILED, 1.0 + i / 1000, 0.5)
    assert list(some.available) == [0, 0, 0]
    assert len(some.take_events()) <= 8
    for slot in range(3):
        some.record_probe(slot, True, 3.0)
    assert list(some.available) == [1, 1, 1]


def test_events_are_bounded() -> None:
    some = fleet("a")
    for i in range(5000):
        some.drain(0, float(i))
        some.undrain(0, float(i))
    assert len(some.take_events()) == 1000
    assert some.take_events() == []
