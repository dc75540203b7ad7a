"""Who may be sent requests: probes, ejection by real traffic, recovery, panic, and that never all are out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet import Fleet, FleetRules, HealthRules, Outcome
from stickyroute.fleet.sample import Sample
from tests.fleet.specs import SMALL, VNODES, fleet, rows, spec

RULES = HealthRules(eject_first_s=1.0, eject_last_s=8.0, trial_s=10.0)
FAILURES = (Outcome.RESET, Outcome.SERVER_ERROR)


def of(count: int, rules: HealthRules = RULES) -> Fleet:
    return Fleet([spec(f"b{i}") for i in range(count)], VNODES, SMALL, FleetRules(health=rules))


def fail(some: Fleet, slot: int, times: int, now_s: float, outcome: Outcome = Outcome.SERVER_ERROR) -> None:
    for _ in range(times):
        some.record_outcome(slot, outcome, now_s, 0.0)


def codes(some: Fleet) -> list[tuple[int, str]]:
    return [(event.slot, event.code) for event in some.take_events()]


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


# Coming back.


def test_half_open_lets_in_one_at_a_time_until_two_were_answered() -> None:
    some = of(3)
    fail(some, 0, 5, 1.0)
    some.tick(1.9)
    assert not some.available[0]
    some.tick(2.0)
    assert some.available[0]
    first = some.lease(0, now_s=2.0)
    assert first is not None
    assert not some.available[0], "it has its one request"
    assert some.lease(0, now_s=2.0) is None
    some.record_outcome(0, Outcome.ANSWERED, 2.5, 0.0)
    assert some.available[0]
    second = some.lease(0, now_s=2.6)
    assert second is not None
    assert some.lease(0, now_s=2.6) is None
    some.record_outcome(0, Outcome.ANSWERED, 2.9, 0.0)
    assert [some.lease(0, now_s=3.0) is not None for _ in range(5)] == [True] * 5
    assert not some.state(0).ejected
    assert codes(some) == [(0, "ejected"), (0, "recovered")]
    assert some.loads.room[0] < 0.2, "and it is warmed up"


def test_a_trial_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    some = of(3)
    fail(some, 0, 5, 0.0)
    now_s, pauses = 0.0, []
    for _ in range(6):
        began_s = now_s
        while not some.available[0]:
            now_s += 0.25
            some.tick(now_s)
        pauses.append(now_s - began_s)
        lease = some.lease(0, now_s=now_s)
        assert lease is not None
        some.record_outcome(0, Outcome.RESET, now_s, 0.0)
        lease.release()
    assert pauses == [1, 2, 4, 4, 4, 4]
    assert codes(some) == [(0, "ejected")], "one story, one line"


def test_jitter_stretches_a_pause_to_its_double() -> None:
    some = of(4)
    for slot, jitter in ((0, 0.0), (1, 1.0)):
        for _ in range(5):
            some.record_outcome(slot, Outcome.RESET, 0.0, jitter)
    assert some.next_retry_s(0.0) == 1.0
    some.tick(1.0)
    assert list(some.available) == [1, 0, 1, 1]
    some.tick(2.0)
    assert list(some.available) == [1, 1, 1, 1]


def test_a_trial_that_tells_nothing_makes_way_for_another() -> None:
    some = of(3)
    fail(some, 0, 5, 0.0)
    some.tick(1.0)
    lease = some.lease(0, now_s=1.0)
    assert lease is not None
    lease.release()  # its client left
    some.tick(1.5)
    assert some.available[0]
    assert some.lease(0, now_s=1.5) is not None  # and this one takes long
    some.tick(11.0)
    assert not some.available[0]
    some.tick(11.5)
    assert some.available[0]


def test_where_requests_wait_for_ever_only_few_are_tried() -> None:
    some = of(3)
    fail(some, 0, 3, 0.0, Outcome.NO_FIRST_BYTE)
    some.tick(1.0)
    assert some.lease(0, now_s=1.0) is not None
    for now_s in range(2, 61):
        some.tick(float(now_s))
        assert not some.available[0]
    some.tick(61.0)
    assert some.available[0]


def test_an_engine_that_started_anew_is_taken_in_again() -> None:
    some = of(3)
    some.record_sample(0, Sample(started_s=100.0), 0.0)
    fail(some, 0, 5, 1.0)
    some.record_sample(0, Sample(started_s=100.4), 2.0)
    assert not some.available[0]
    some.record_sample(0, Sample(started_s=160.0), 3.0)
    assert some.available[0]
    assert codes(some) == [(0, "ejected"), (0, "restarted")]


# Panic.


def test_with_too_few_left_those_that_are_ejected_are_used_again() -> None:
    some = of(4)
    for slot in (0, 1):
        fail(some, slot, 5, 1.0)
    assert list(some.available) == [0, 0, 1, 1]
    fail(some, 2, 5, 1.0)
    assert list(some.available) == [1, 1, 1, 1]
    assert codes(some) == [(0, "ejected"), (1, "ejected"), (2, "ejected"), (-1, "panic")]
    assert all(some.lease(0) is not None for _ in range(5)), "not one at a time"
    some.tick(2.0)
    for _ in range(2):
        some.record_outcome(0, Outcome.ANSWERED, 2.1, 0.0)
    assert list(some.available) == [1, 1, 1, 1], "1 and 2 are on trial"
    for now_s in (3.0, 12.0, 12.2, 20.0):
        some.tick(now_s)
    assert codes(some) == [(0, "recovered"), (-1, "panic_over")]


def test_a_single_backend_is_never_ejected_by_its_answers() -> None:
    some = of(1)
    fail(some, 0, 500, 1.0)
    assert some.available[0]
    some.record_outcome(0, Outcome.CONNECT_FAILED, 2.0, 0.0)
    assert not some.available[0], "but nobody is sent where nobody listens"


def test_failing_probes_are_overruled_only_when_nobody_is_left() -> None:
    """Somebody whose probes fail may hang; but where all fail, the probes may be what is wrong."""
    some = of(4)
    for slot in range(3):
        for _ in range(3):
            some.record_probe(slot, False, 1.0)
    assert list(some.available) == [0, 0, 0, 1]
    for _ in range(3):
        some.record_probe(3, False, 1.0)
    assert list(some.available) == [1, 1, 1, 1]
    some.record_outcome(3, Outcome.CONNECT_FAILED, 1.0, 0.0)
    assert list(some.available) == [1, 1, 1, 0]


def test_each_model_has_its_own_panic() -> None:
    some = of(4)
    for slot in range(4):
        some.record_models(slot, rows(f"m{slot // 2}"))
    for slot in (0, 1):
        fail(some, slot, 5, 1.0)
    assert list(some.available) == [1, 1, 1, 1], "m0 has nobody else"
    fail(some, 2, 5, 1.0)
    assert list(some.available) == [1, 1, 0, 1]


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from([*Outcome, "ok", "bad", "drain", "undrain", "lease", "release"]),
            st.floats(0, 3),
            st.floats(0, 1),
        ),
        max_size=80,
    )
)
def test_never_all_are_out_unless_they_refuse_or_the_operator_wants_it(steps: list) -> None:  # type: ignore[type-arg]
    some = of(4)
    held = []
    now_s = 0.0
    for slot, what, passed_s, jitter in steps:
        now_s += passed_s
        some.tick(now_s)
        if isinstance(what, Outcome):
            some.record_outcome(slot, what, now_s, jitter)
        elif what in ("ok", "bad"):
            some.record_probe(slot, what == "ok", now_s)
        elif what == "lease":
            was = some.available[slot]
            lease = some.lease(slot, now_s=now_s)
            assert (lease is not None) or not was, "who is available takes a request"
            if lease is not None:
                held.append(lease)
        elif what == "release":
            if held:
                held.pop().release(now_s)
        else:
            {"drain": some.drain, "undrain": some.undrain}[what](slot, now_s)
        states = [some.state(each) for each in range(4)]
        dead = [
            state.why == "refuses connections" or "dead" in state.why or state.operator != "active"
            for state in states
        ]
        trying = [state.trying for state in states]
        assert any(some.available) or all(d or t for d, t in zip(dead, trying, strict=True))
        for state in states:
            assert not (state.available and state.operator != "active")
            assert not (state.available and state.why == "refuses connections")
        assert set(some.available) <= {0, 1}
    for lease in held:
        lease.release()
    assert not any(some.in_flight)


@given(
    st.lists(st.tuples(st.sampled_from([Outcome.CONNECT_FAILED, "ok"]), st.floats(0.0, 0.5)), max_size=300)
)
def test_one_that_comes_and_goes_is_no_log_storm(steps: list) -> None:  # type: ignore[type-arg]
    """What it is asked follows the backoff, as the watch does: few lines a second, whatever happens."""
    some = of(2)
    now_s, lines = 0.0, 0
    for what, passed_s in steps:
        now_s += passed_s
        if what == "ok":
            if some.retry_due(0, now_s):
                some.record_probe(0, True, now_s)
        else:
            some.record_outcome(0, what, now_s, 0.0)
        lines += len(some.take_events())
    assert lines <= 2 * (4 + now_s / 0.25)


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


def test_a_drained_backend_does_not_count_for_panic() -> None:
    some = of(4)
    for slot in (0, 1):
        some.drain(slot, 1.0)
    fail(some, 2, 5, 2.0)
    assert list(some.available) == [0, 0, 0, 1], "half of those that serve"


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
