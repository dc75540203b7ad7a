"""How those that were out come back, and when those that are out are used all the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet import Outcome
from stickyroute.fleet.sample import Sample
from tests.fleet.judged import codes, fail, of
from tests.fleet.specs import rows

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


def test_a_drained_backend_does_not_count_for_panic() -> None:
    some = of(4)
    for slot in (0, 1):
        some.drain(slot, 1.0)
    fail(some, 2, 5, 2.0)
    assert list(some.available) == [0, 0, 0, 1], "half of those that serve"
