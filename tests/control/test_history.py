"""The points of the charts, from counters that rise, stand still, vanish and begin anew."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stickyroute.control.history import POINTS, RECENT_STEPS, STEP_S, History, quantile
from stickyroute.metrics.counters import Histogram

BOUNDS = (0.01, 0.05, 0.1)


class Metrics:
    """As much of the counters as the history reads."""

    def __init__(self) -> None:
        self.traffic: dict[tuple[str, str], SimpleNamespace] = {}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def request(
    metrics: Metrics, backend: str, ttft_s: float = 0.03, prompt: int = 100, cached: int = 40
) -> None:
    traffic = metrics.traffic.setdefault(
        ("m", backend),
        SimpleNamespace(ttft=Histogram(BOUNDS), duration=Histogram((1.0,)), prompt_tokens=0, cached_tokens=0),
    )
    traffic.ttft.observe(ttft_s)
    traffic.duration.observe(1.0)
    traffic.prompt_tokens += prompt
    traffic.cached_tokens += cached


def test_one_step_says_what_was_gained_since_the_one_before(metrics: Metrics) -> None:
    """10 requests in 5 seconds, 400 of 1,000 tokens cached; then 5 in the next 5, 450 of 500 cached."""
    history = History(metrics)
    history.record(100.0, 0)
    for _ in range(10):
        request(metrics, "a")
    history.record(105.0, 3)
    for _ in range(5):
        request(metrics, "b", cached=90)
    history.record(110.0, 2)
    first, second = history.points
    assert (first["at_s"], first["requests_s"], first["hit_rate"], first["in_flight"]) == (105.0, 2.0, 0.4, 3)
    assert (second["at_s"], second["requests_s"], second["hit_rate"], second["in_flight"]) == (
        110.0,
        1.0,
        0.9,
        2,
    )
    assert history.minute["hit_rate"] == pytest.approx(850 / 1500)
    assert history.recent("a").traffic_share == pytest.approx(2 / 3)
    assert history.recent("b").hit_rate == pytest.approx(0.9)


def test_what_nothing_tells_is_unknown_and_not_zero(metrics: Metrics) -> None:
    history = History(metrics)
    history.record(100.0, 0)
    history.record(105.0, 0)
    (point,) = history.points
    assert (point["requests_s"], point["hit_rate"], point["ttft_p50_s"]) == (0.0, None, None)
    assert history.recent("a") == (0, None, None, None)
    assert history.recent("nobody").requests == 0


def test_the_minute_forgets_what_is_older(metrics: Metrics) -> None:
    history = History(metrics)
    history.record(0.0, 0)
    request(metrics, "a")
    for step in range(1, RECENT_STEPS + 1):
        history.record(step * STEP_S, 0)
    assert history.recent("a").requests == 1
    history.record((RECENT_STEPS + 1) * STEP_S, 0)
    assert history.recent("a").requests == 0


def test_a_backend_that_vanishes_or_begins_anew_never_counts_less_than_nothing(metrics: Metrics) -> None:
    history = History(metrics)
    for _ in range(10):
        request(metrics, "a")
    history.record(0.0, 0)
    metrics.traffic.clear()
    history.record(5.0, 0)
    request(metrics, "a")
    history.record(10.0, 0)
    metrics.traffic.clear()
    history.record(15.0, 0)
    assert [point["requests_s"] for point in history.points] == [0.0, 0.2, 0.0]


def test_the_charts_are_bounded(metrics: Metrics) -> None:
    history = History(metrics)
    for step in range(POINTS + 50):
        history.record(step * STEP_S, 0)
    assert len(history.points) == POINTS


@pytest.mark.parametrize(
    ("counts", "part", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.5),  # the fifth of ten between 0 and 1
        ((0, 4, 0, 0), 0.25, 1.25),
        ((0, 4, 0, 0), 1.0, 2.0),
        ((5, 5, 0, 0), 0.5, 1.0),
        ((0, 0, 0, 3), 0.95, 4.0),  # past the last bound
    ],
)
def test_quantiles_of_a_histogram(counts: tuple[int, ...], part: float, value: float | None) -> None:
    assert quantile((1.0, 2.0, 4.0), counts, part) == value
