"""The retry budget, with exact counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.retry import RetryBudget


def spend_all(budget: RetryBudget) -> int:
    spent = 0
    while budget.try_spend():
        spent += 1
    return spent


def test_the_burst_is_there_at_the_start() -> None:
    assert spend_all(RetryBudget(0.2, 100)) == 100


def test_a_fifth_of_traffic_earns_exactly_a_fifth() -> None:
    """0.2 added five times as a float is a little less than 1."""
    budget = RetryBudget(0.2, 100)
    spend_all(budget)
    for _ in range(50):
        budget.record_request()
    assert spend_all(budget) == 10


def test_no_more_than_the_burst_is_saved() -> None:
    budget = RetryBudget(1.0, 3)
    for _ in range(1000):
        budget.record_request()
    assert spend_all(budget) == 3


def test_without_a_burst_each_retry_is_earned_first() -> None:
    budget = RetryBudget(0.5, 0)
    assert not budget.try_spend()
    budget.record_request()
    assert not budget.try_spend()
    budget.record_request()
    assert budget.try_spend()
    assert not budget.try_spend()


def test_a_ratio_of_zero_earns_nothing() -> None:
    budget = RetryBudget(0.0, 2)
    for _ in range(100):
        budget.record_request()
    assert spend_all(budget) == 2
    assert spend_all(RetryBudget(0.0, 0)) == 0


@given(
    ratio=st.integers(0, 10).map(lambda tenths: tenths / 10),
    burst=st.integers(0, 5),
    steps=st.lists(st.booleans(), max_size=200),
)
def test_retries_never_exceed_the_burst_and_the_share(ratio: float, burst: int, steps: list[bool]) -> None:
    budget = RetryBudget(ratio, burst)
    requests = spent = 0
    for is_request in steps:
        if is_request:
            budget.record_request()
            requests += 1
        else:
            spent += budget.try_spend()
        assert spent <= burst + ratio * requests + 1e-9


@pytest.mark.parametrize(("ratio", "burst"), [(-0.1, 1), (1.1, 1), (0.2, -1), (float("nan"), 1)])
def test_a_budget_that_makes_no_sense_is_refused(ratio: float, burst: int) -> None:
    with pytest.raises(ValueError, match="ratio"):
        RetryBudget(ratio, burst)
