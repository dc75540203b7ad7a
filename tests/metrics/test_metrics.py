"""What a scrape says after requests."""

from __future__ import annotations

import pytest

from stickyroute.metrics import Prices
from stickyroute.metrics.histogram import DURATION_BUCKETS_S, TTFT_BUCKETS_S
from stickyroute.openai.usage import Usage
from tests.metrics.scraping import FakeFleet, labelled, metrics_of, record, scrape


def test_requests_are_counted_by_pool_backend_status_class_and_reason() -> None:
    metrics = metrics_of(FakeFleet())
    record(metrics)
    record(metrics)
    record(metrics, status=204)
    record(metrics, status=404)
    record(metrics, backend="b", reason="spill")
    record(metrics, route="/v1/embeddings")
    assert scrape(metrics, "stickyroute_requests_total") == {
        labelled(pool="llama", backend="a", status="2xx", reason="home"): 4,
        labelled(pool="llama", backend="a", status="4xx", reason="home"): 1,
        labelled(pool="llama", backend="b", status="2xx", reason="spill"): 1,
    }
    assert scrape(metrics, "stickyroute_route_requests_total") == {
        labelled(route="/v1/chat/completions", status="2xx"): 4,
        labelled(route="/v1/chat/completions", status="4xx"): 1,
        labelled(route="/v1/embeddings", status="2xx"): 1,
    }


def test_a_request_answered_here_has_no_pool_and_no_backend() -> None:
    metrics = metrics_of(FakeFleet())
    record(metrics, pool="", backend="", route="", reason="local", ttft_s=None)
    assert scrape(metrics, "stickyroute_requests_total") == {
        labelled(pool="none", backend="none", status="2xx", reason="local"): 1
    }
    assert scrape(metrics, "stickyroute_route_requests_total") == {labelled(route="other", status="2xx"): 1}


def test_bytes_add_up() -> None:
    metrics = metrics_of(FakeFleet())
    record(metrics, bytes_in=5, bytes_out=0)
    record(metrics, bytes_in=7, bytes_out=2**40)
    of_a = labelled(pool="llama", backend="a")
    assert scrape(metrics, "stickyroute_received_bytes_total") == {of_a: 12}
    assert scrape(metrics, "stickyroute_sent_bytes_total") == {of_a: 2**40}


def test_histograms_are_cumulative_and_a_bound_includes_its_value() -> None:
    """TTFT of 0.5, 1, 10, 30, 500 ms and 200 s: 2 up to 1 ms, 3 to 10, 4 to 50, 5 to 500, 6 in all."""
    metrics = metrics_of(FakeFleet())
    for ttft_s in (0.0005, 0.001, 0.01, 0.03, 0.5, 200.0):
        record(metrics, ttft_s=ttft_s)
    buckets = scrape(metrics, "stickyroute_ttft_seconds_bucket")

    def up_to(bound: str) -> float:
        return buckets[labelled(pool="llama", backend="a", le=bound)]

    assert [up_to(bound) for bound in ("0.001", "0.005", "0.01", "0.05", "0.5", "120.0", "+Inf")] == [
        2, 2, 3, 4, 5, 5, 6,
    ]  # fmt: skip
    of_a = labelled(pool="llama", backend="a")
    assert scrape(metrics, "stickyroute_ttft_seconds_count") == {of_a: 6}
    assert scrape(metrics, "stickyroute_ttft_seconds_sum")[of_a] == pytest.approx(200.5415)
    assert scrape(metrics, "stickyroute_request_duration_seconds_count") == {of_a: 6}
    assert scrape(metrics, "stickyroute_request_duration_seconds_sum") == {of_a: 9.0}


def test_a_reply_that_does_not_stream_has_a_duration_and_no_ttft() -> None:
    metrics = metrics_of(FakeFleet())
    record(metrics, ttft_s=None)
    of_a = labelled(pool="llama", backend="a")
    assert scrape(metrics, "stickyroute_ttft_seconds_count") == {of_a: 0}
    assert scrape(metrics, "stickyroute_request_duration_seconds_count") == {of_a: 1}


@pytest.mark.parametrize(
    ("buckets", "lowest", "highest"),
    [(TTFT_BUCKETS_S, 0.001, 120), (DURATION_BUCKETS_S, 0.005, 600)],
)
def test_buckets_rise_and_span_what_engines_take(
    buckets: tuple[float, ...], lowest: float, highest: float
) -> None:
    assert list(buckets) == sorted(set(buckets))
    assert (buckets[0], buckets[-1]) == (lowest, highest)


def test_retries_disconnects_failures_and_decisions() -> None:
    metrics = metrics_of(FakeFleet())
    for kind in ("stale", "connect_refused", "stale"):
        metrics.retries(kind)
    metrics.client_disconnects += 3
    metrics.upstream_failures("a", "upstream_died")
    metrics.upstream_failures("a", "upstream_died")
    metrics.upstream_failures("b", "connect_timeout")
    metrics.decision_time(3e-6)
    metrics.decision_time(0.5)
    assert scrape(metrics, "stickyroute_retries_total") == {
        labelled(kind="stale"): 2,
        labelled(kind="connect_refused"): 1,
    }
    assert scrape(metrics, "stickyroute_client_disconnects_total") == {(): 3}
    assert scrape(metrics, "stickyroute_upstream_failures_total") == {
        labelled(backend="a", kind="upstream_died"): 2,
        labelled(backend="b", kind="connect_timeout"): 1,
    }
    assert scrape(metrics, "stickyroute_decision_seconds_count") == {(): 2}
    assert scrape(metrics, "stickyroute_decision_seconds_bucket")[labelled(le="4e-06")] == 1


def test_usage_counts_with_what_was_cached_and_what_was_expected() -> None:
    metrics = metrics_of(FakeFleet())
    record(metrics, pool="llama", backend="a", usage=Usage(1000, 900, 20, 64), expected_tokens=800.5)
    record(metrics, pool="llama", backend="a", usage=Usage(500, 0, 5), expected_tokens=16.0)
    record(
        metrics, pool="llama", backend="a", usage=Usage(70, None, 3), expected_tokens=None
    )  # how much was cached is unknown, not nothing
    record(
        metrics, pool="unlisted", backend="b", usage=Usage(10, 4, None), expected_tokens=None
    )  # nobody looked what was believed
    record(metrics)
    here, there = labelled(pool="llama", backend="a"), labelled(pool="other", backend="b")
    assert scrape(metrics, "stickyroute_prompt_tokens_total") == {here: 1500, there: 10}
    assert scrape(metrics, "stickyroute_cached_tokens_total") == {here: 900, there: 4}
    assert scrape(metrics, "stickyroute_written_tokens_total") == {here: 64, there: 0}
    assert scrape(metrics, "stickyroute_predicted_prompt_tokens_total") == {here: 1500, there: 0}
    assert scrape(metrics, "stickyroute_expected_cached_tokens_total") == {here: 816.5, there: 0}
    assert scrape(metrics, "stickyroute_answer_tokens_total") == {here: 28, there: 0}


def test_money_is_counted_by_the_price_table_from_when_it_is_there() -> None:
    """A million at 2.0: a cached token saves 0.9 of it, a newly cached one costs 0.25 of it more."""
    metrics = metrics_of(FakeFleet(models=("llama", "other-model")))
    of_a = labelled(pool="llama", backend="a")
    record(
        metrics, pool="llama", backend="a", usage=Usage(1_000_000, 500_000, 1, 100_000), expected_tokens=None
    )
    assert scrape(metrics, "stickyroute_cost_saved_total") == {}
    metrics.price(Prices({"llama": 2e-6, "*": 1e-6}, 0.1, 1.25))
    record(
        metrics, pool="llama", backend="a", usage=Usage(1_000_000, 500_000, 1, 100_000), expected_tokens=None
    )
    record(
        metrics, pool="other-model", backend="b", usage=Usage(1_000_000, 1_000_000, 1), expected_tokens=None
    )
    saved = scrape(metrics, "stickyroute_cost_saved_total")
    assert saved[of_a] == pytest.approx(0.9)
    assert saved[labelled(pool="other-model", backend="b")] == pytest.approx(0.9)
    assert scrape(metrics, "stickyroute_cost_of_writing_total")[of_a] == pytest.approx(0.05)


def test_ttft_by_the_length_of_the_prompt() -> None:
    metrics = metrics_of(FakeFleet())
    for tokens in (0, 1024, 1025, 9000, 32768, 32769, 1e6):
        record(metrics, prompt_tokens=tokens, ttft_s=0.5)
    record(metrics, prompt_tokens=3, ttft_s=None)
    counts = scrape(metrics, "stickyroute_ttft_by_prompt_seconds_count")
    assert {dict(labels)["prompt"]: count for labels, count in counts.items()} == {
        "1k": 2, "4k": 1, "8k": 0, "16k": 1, "32k": 1, "more": 2,
    }  # fmt: skip
    assert {dict(labels)["pool"] for labels in counts} == {"llama"}


def test_time_between_tokens() -> None:
    metrics = metrics_of(FakeFleet())
    record(metrics, inter_token_s=0.02)
    record(metrics)
    of_a = labelled(pool="llama", backend="a")
    assert scrape(metrics, "stickyroute_inter_token_seconds_count") == {of_a: 1}
    assert scrape(metrics, "stickyroute_inter_token_seconds_sum") == {of_a: 0.02}
