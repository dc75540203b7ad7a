"""Lines and means that follow what is observed, and are not thrown by what is odd."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet.learn import Line, Mean, toward


def line() -> Line:
    """Believes 20,000 tokens a second behind a step of 20 ms."""
    return Line(0.02, 1 / 20_000, 2000.0)


def feed(fit: Line, count: int, base: float, slope: float, noise: float = 0.0) -> None:
    rand = random.Random(1)
    for _ in range(count):
        x = rand.expovariate(1 / 3000)
        fit.add(x, (base + slope * x) * (1 + noise * (rand.random() - 0.5)))


def test_a_line_that_is_right_stays() -> None:
    fit = line()
    feed(fit, 300, 0.02, 1 / 20_000)
    assert fit.slope == pytest.approx(1 / 20_000, rel=0.01)
    assert fit.base == pytest.approx(0.02, abs=0.002)


@pytest.mark.parametrize("factor", [0.2, 0.5, 3.0])
def test_another_speed_is_learned(factor: float) -> None:
    fit = line()
    feed(fit, 400, 0.03, factor / 20_000, noise=0.4)
    assert fit.slope == pytest.approx(factor / 20_000, rel=0.1)
    assert fit.base == pytest.approx(0.03, abs=0.02)


def test_a_speed_that_changes_is_followed() -> None:
    """A GPU throttled to half its speed."""
    fit = line()
    feed(fit, 300, 0.02, 1 / 20_000)
    feed(fit, 300, 0.02, 2 / 20_000)
    assert fit.slope == pytest.approx(2 / 20_000, rel=0.1)


def test_a_few_requests_that_were_stuck_do_not_count_for_hundreds() -> None:
    """Of a hundred first tokens two take a minute for reasons of their own."""
    fit = line()
    rand = random.Random(2)
    for number in range(400):
        x = rand.expovariate(1 / 3000)
        fit.add(x, 60.0 if number % 50 == 25 else 0.02 + x / 20_000)
    assert fit.slope == pytest.approx(1 / 20_000, rel=0.3)
    assert fit.base < 0.1


def test_without_any_spread_the_line_goes_through_what_there_is() -> None:
    fit = line()
    for _ in range(300):
        fit.add(1000.0, 0.15)
    assert fit.base + 1000 * fit.slope == pytest.approx(0.15, rel=0.01)


@given(points=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4)), max_size=80))
def test_whatever_is_observed_slope_and_base_are_usable(points: list[tuple[float, float]]) -> None:
    fit = line()
    for x, y in points:
        fit.add(x, y)
    assert 1 / 400_000 * 0.999 <= fit.slope <= 1 / 1000 * 1.001, "at most twenty times off where it began"
    assert 0 <= fit.base < 1e5


def test_a_mean_goes_a_part_of_the_way() -> None:
    mean = Mean(10.0, 0.5)
    mean.add(20.0)
    assert mean.value == 15.0


def test_a_difference_within_doubt_is_none() -> None:
    assert toward(1.09, 1.0, 0.1) == toward(0.91, 1.0, 0.1) == 1.0


@pytest.mark.parametrize("own", [0.5, 2.0, 4.0])
def test_a_difference_far_beyond_doubt_counts_nearly_whole(own: float) -> None:
    assert toward(own, 1.0, 0.05) == pytest.approx(own, rel=0.02)


@given(own=st.floats(0.01, 10), common=st.floats(0.01, 10), doubt=st.floats(0, 10))
def test_what_is_believed_lies_between_ones_own_and_the_common(
    own: float, common: float, doubt: float
) -> None:
    assert min(own, common) - 1e-9 <= toward(own, common, doubt) <= max(own, common) + 1e-9


def test_the_error_falls_with_what_is_seen() -> None:
    fit = line()
    before = fit.error
    feed(fit, 100, 0.02, 1 / 20_000, noise=0.2)
    assert fit.error < before / 4
