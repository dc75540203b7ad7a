"""What a scrape says after requests, that its series stay bounded, and that its form is right."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stickyroute.clock import monotonic
from stickyroute.fleet.sample import Sample
from stickyroute.metrics import Metrics, counters

PROMTOOL = "/usr/bin/promtool"


class FakeFleet:
    """The part of a fleet that metrics read: names, slots, two arrays, pools by model."""

    def __init__(self, backends: Sequence[str] = ("a", "b"), models: Sequence[str] = ("llama",)) -> None:
        self.models = models
        self.samples: dict[int, tuple[Sample, float]] = {}
        self.list(*backends)

    def list(self, *names: str) -> None:
        self.backends = [SimpleNamespace(name=name, slot=slot) for slot, name in enumerate(names)]
        self.in_flight = [0] * len(names)
        self.available = bytearray(b"\x01" * len(names))
        self.loads = SimpleNamespace(
            backlog_tokens=[1200.0] * len(names),
            token_s=[1 / 8000] * len(names),
            trust=[0.75] * len(names),
            kappa=SimpleNamespace(value=0.5),
        )

    def sample(self, slot: int) -> tuple[Sample, float] | None:
        return self.samples.get(slot)

    def pool(self, model: str | None) -> Any:
        return SimpleNamespace(label=model) if model in self.models else None


def metrics_of(fleet: FakeFleet) -> Metrics:
    return Metrics(fleet, "1.2.3")  # type: ignore[arg-type]  # a fake with what is needed


def record(metrics: Metrics, **changes: Any) -> None:
    values: dict[str, Any] = {
        "pool": "llama",
        "backend": "a",
        "route": "/v1/chat/completions",
        "status": 200,
        "reason": "home",
        "ttft_s": 0.02,
        "duration_s": 1.5,
        "bytes_in": 100,
        "bytes_out": 2000,
    }
    metrics.record(**(values | changes))


def scrape(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of one name: labels -> value."""
    text = generate_latest(metrics.registry).decode()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


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
    [(counters.TTFT_BUCKETS_S, 0.001, 120), (counters.DURATION_BUCKETS_S, 0.005, 600)],
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


def test_backends_show_what_is_in_flight_and_whether_they_are_available() -> None:
    fleet = FakeFleet()
    fleet.in_flight[1] = 7
    fleet.available[0] = 0
    metrics = metrics_of(fleet)
    assert scrape(metrics, "stickyroute_backend_in_flight") == {
        labelled(backend="a"): 0,
        labelled(backend="b"): 7,
    }
    assert scrape(metrics, "stickyroute_backend_available") == {
        labelled(backend="a"): 0,
        labelled(backend="b"): 1,
    }


def test_prompts_count_with_what_was_cached_of_them_and_what_was_expected() -> None:
    metrics = metrics_of(FakeFleet())
    metrics.prompt("llama", "a", 1000, 900, 800.5)
    metrics.prompt("llama", "a", 500, 0, 16.0)
    metrics.prompt("unlisted", "b", 10, 4, 0.0)
    record(metrics)
    here, there = labelled(pool="llama", backend="a"), labelled(pool="other", backend="b")
    assert scrape(metrics, "stickyroute_prompt_tokens_total") == {here: 1500, there: 10}
    assert scrape(metrics, "stickyroute_cached_tokens_total") == {here: 900, there: 4}
    assert scrape(metrics, "stickyroute_expected_cached_tokens_total") == {here: 816.5, there: 0}


def test_what_is_learned_of_backends_is_shown() -> None:
    metrics = metrics_of(FakeFleet(backends=("a",)))
    for reason in ("home", "warm", "home"):
        metrics.decisions(reason)
    assert scrape(metrics, "stickyroute_backend_backlog_tokens") == {labelled(backend="a"): 1200}
    assert scrape(metrics, "stickyroute_backend_prefill_tokens_per_second") == {labelled(backend="a"): 8000}
    assert scrape(metrics, "stickyroute_backend_trust") == {labelled(backend="a"): 0.75}
    assert scrape(metrics, "stickyroute_kappa") == {(): 0.5}
    assert scrape(metrics, "stickyroute_decisions_total") == {
        labelled(reason="home"): 2,
        labelled(reason="warm"): 1,
    }


def test_what_engines_say_is_shown_with_its_age_and_what_they_do_not_say_is_not() -> None:
    fleet = FakeFleet(backends=("a", "b", "c"))
    now_s = monotonic()
    fleet.samples = {
        0: (Sample(kv_utilization=0.5, running=3, waiting=0), now_s - 60),
        1: (Sample(running=1), now_s),
    }
    metrics = metrics_of(fleet)
    a, b = labelled(backend="a"), labelled(backend="b")
    assert scrape(metrics, "stickyroute_backend_kv_utilization") == {a: 0.5}
    assert scrape(metrics, "stickyroute_backend_engine_running") == {a: 3, b: 1}
    assert scrape(metrics, "stickyroute_backend_engine_waiting") == {a: 0}
    ages = scrape(metrics, "stickyroute_backend_sample_age_seconds")
    assert ages.keys() == {a, b}
    assert ages[a] >= ages[b] + 60


def test_build_and_process_are_shown() -> None:
    metrics = metrics_of(FakeFleet())
    ((labels, value),) = scrape(metrics, "stickyroute_build_info").items()
    assert dict(labels)["version"] == "1.2.3"
    assert value == 1
    assert scrape(metrics, "process_resident_memory_bytes")[()] > 1_000_000


# Bounded series (cases B80, B83).


def test_model_names_of_clients_fold_into_other() -> None:
    """5000 random names and one of 1 MB bring not one sample more than the first unknown name."""
    metrics = metrics_of(FakeFleet())
    record(metrics)
    record(metrics, pool="typo")
    before = generate_latest(metrics.registry).count(b"\n")
    for number in range(5000):
        record(metrics, pool=f"model-{number}")
    record(metrics, pool="x" * 1_000_000)
    after = generate_latest(metrics.registry)
    assert after.count(b"\n") == before
    assert b"model-" not in after
    assert len(metrics._known) == 1, "names that clients made up are not remembered"
    requests = scrape(metrics, "stickyroute_requests_total")
    assert requests[labelled(pool="other", backend="a", status="2xx", reason="home")] == 5002


def test_engines_that_list_very_many_models_share_other() -> None:
    names = [f"lora-{number}" for number in range(2 * counters.MAX_POOLS)]
    metrics = metrics_of(FakeFleet(models=names))
    for name in names:
        record(metrics, pool=name)
    requests = scrape(metrics, "stickyroute_requests_total")
    pools = {dict(labels)["pool"] for labels in requests}
    assert len(pools) == counters.MAX_POOLS + 1
    assert counters.OTHER in pools
    assert sum(requests.values()) == len(names)


def test_odd_status_codes_share_a_class() -> None:
    metrics = metrics_of(FakeFleet())
    for status in (0, 99, 600, 999):
        record(metrics, status=status)
    assert {dict(labels)["status"] for labels in scrape(metrics, "stickyroute_requests_total")} == {"other"}


def test_a_backend_that_leaves_takes_its_series_with_it_and_may_return() -> None:
    fleet = FakeFleet()
    metrics = metrics_of(fleet)
    record(metrics)
    record(metrics, backend="b")
    metrics.upstream_failures("b", "upstream_died")
    assert b'backend="b"' in generate_latest(metrics.registry)
    fleet.list("a")
    assert b'backend="b"' not in generate_latest(metrics.registry)
    record(metrics, backend="b")  # a request that was still running on it
    assert b'backend="b"' not in generate_latest(metrics.registry)
    fleet.list("a", "b")
    record(metrics, backend="b")
    of_b = labelled(pool="llama", backend="b", status="2xx", reason="home")
    assert scrape(metrics, "stickyroute_requests_total")[of_b] == 1
    of_a = labelled(pool="llama", backend="a", status="2xx", reason="home")
    assert scrape(metrics, "stickyroute_requests_total")[of_a] == 1


def test_a_model_that_nobody_lists_any_more_takes_its_series_with_it_and_makes_room() -> None:
    fleet = FakeFleet(models=[f"m{number}" for number in range(counters.MAX_POOLS)])
    metrics = metrics_of(fleet)
    for name in fleet.models:
        record(metrics, pool=name)
    record(metrics, pool="", backend="")
    fleet.models = ["m0", "new"]
    generate_latest(metrics.registry)
    record(metrics, pool="new")
    record(metrics, pool="m1")  # a request that was still running
    pools = {
        dict(labels)["pool"]: value for labels, value in scrape(metrics, "stickyroute_requests_total").items()
    }
    assert pools == {"m0": 1, "new": 1, "other": 1, "none": 1}


# The form of the output.


def busy() -> Metrics:
    """Metrics with samples in every family, and labels that need escaping."""
    fleet = FakeFleet(backends=("a", 'odd"\\\nname'), models=("llama", 'mo"del\n\\'))
    metrics = metrics_of(fleet)
    for backend in fleet.backends:
        for pool in (*fleet.models, "unknown", ""):
            record(metrics, pool=pool, backend=backend.name)
        metrics.upstream_failures(backend.name, "upstream_died")
    metrics.retries("stale")
    metrics.decisions("warm")
    fleet.samples[0] = Sample(kv_utilization=0.5, running=3, waiting=0), monotonic()
    metrics.decision_time(1e-5)
    return metrics


def test_labels_are_escaped() -> None:
    backends = {dict(labels)["backend"] for labels in scrape(busy(), "stickyroute_requests_total")}
    assert backends == {"a", 'odd"\\\nname'}


def test_promtool_or_the_parser_accepts_the_output() -> None:
    output = generate_latest(busy().registry)
    try:
        checked = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=output, capture_output=True, check=False
        )
    except FileNotFoundError:
        families = list(text_string_to_metric_families(output.decode()))
        assert all(family.type != "unknown" for family in families)
        assert len({family.name for family in families}) == len(families)
    else:
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stderr == b""


def test_two_apps_in_one_process_do_not_meet() -> None:
    one, two = metrics_of(FakeFleet()), metrics_of(FakeFleet())
    record(one)
    assert scrape(two, "stickyroute_requests_total") == {}
