"""kappa: how much longer requests wait than their own work takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.kappa import KAPPA_MAX, Kappa


def test_it_begins_at_nothing_and_is_the_ratio_of_the_means_less_one() -> None:
    kappa = Kappa()
    assert kappa.value == 0
    for _ in range(2000):
        kappa.record(0.3, 0.1)
    assert kappa.value == pytest.approx(2.0, abs=0.01)


def test_it_follows_the_load_both_ways() -> None:
    kappa = Kappa()
    for _ in range(1500):
        kappa.record(0.5, 0.1)
    busy = kappa.value
    for _ in range(1500):
        kappa.record(0.1, 0.1)
    assert busy == pytest.approx(4.0, abs=0.1)
    assert kappa.value == pytest.approx(0.0, abs=0.05)


def test_one_odd_request_at_the_start_is_no_mean() -> None:
    kappa = Kappa()
    kappa.record(0.2, 0.01)
    assert kappa.value < 2


def test_a_fixed_one_is_not_moved() -> None:
    kappa = Kappa(3.0)
    kappa.record(10.0, 0.1)
    assert kappa.value == 3.0
    with pytest.raises(ValueError, match="from 0 to 8"):
        Kappa(9.0)


@given(seen=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), max_size=50))
def test_it_is_always_from_nothing_to_eight(seen: list[tuple[float, float]]) -> None:
    kappa = Kappa()
    for ttft_s, service_s in seen:
        kappa.record(ttft_s, service_s)
        assert 0 <= kappa.value <= KAPPA_MAX
