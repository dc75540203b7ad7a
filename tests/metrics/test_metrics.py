"""What a scrape says after requests, that its series stay bounded, and that its form is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from stickyroute.clock import monotonic
from stickyroute.fleet.sample import Sample
from stickyroute.metrics import (
    ConfigFigures,
    DiscoveryFigures,
    Metrics,
    PrefixBreaks,
    Prices,
    ShadowFigures,
    counters,
)
from stickyroute.metrics.exposition import gauge, render
from stickyroute.metrics.histogram import DURATION_BUCKETS_S, TTFT_BUCKETS_S
from stickyroute.openai.usage import Usage
from tests.support.promtool import promtool


class FakeFleet:
    """The part of a fleet that metrics read: names, slots, two arrays, pools by model."""

    def __init__(self, backends: Sequence[str] = ("a", "b"), models: Sequence[str] = ("llama",)) -> None:
        self.models = models
        self.samples: dict[int, tuple[Sample, float]] = {}
        self.states: dict[int, dict[str, Any]] = {}
        self.fingerprint = "0123456789abcdef"
        self.changes = 2
        self.moved_share = 0.375
        self.list(*backends)

    def list(self, *names: str) -> None:
        self.backends = [
            SimpleNamespace(name=name, slot=slot, spec=SimpleNamespace(weight=2))
            for slot, name in enumerate(names)
        ]
        self.in_flight = [0] * len(names)
        self.available = bytearray(b"\x01" * len(names))
        self.loads = SimpleNamespace(
            backlog_tokens=[1200.0] * len(names),
            token_s=[1 / 8000] * len(names),
            trust=[0.75] * len(names),
            room=[0.5] * len(names),
            kappa=SimpleNamespace(value=0.5),
        )

    def sample(self, slot: int) -> tuple[Sample, float] | None:
        return self.samples.get(slot)

    def state(self, slot: int) -> Any:
        words = self.states.get(slot, {})
        return SimpleNamespace(
            **{"operator": "active", "health": "healthy", "ejected": False, "paused_s": 0.0} | words
        )

    def ejections(self, slot: int) -> int:
        return 2 * slot

    def warnings(self, slot: int) -> tuple[Any, ...]:
        return (SimpleNamespace(code="kv_full"),) if slot else ()

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


def text_of(metrics: Metrics, openmetrics: bool = False) -> bytes:
    return b"".join(metrics.text(openmetrics))


def scrape(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of one name: labels -> value."""
    text = text_of(metrics).decode()
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


def test_states_of_backends() -> None:
    fleet = FakeFleet()
    fleet.states[1] = {"operator": "draining", "health": "unhealthy", "ejected": True, "paused_s": 1.5}
    metrics = metrics_of(fleet)
    states = scrape(metrics, "stickyroute_backend_state")
    assert {dict(labels)["state"] for labels, value in states.items() if value} == {
        "draining", "unhealthy", "ejected", "paused",
    }  # fmt: skip
    assert {dict(labels)["backend"] for labels, value in states.items() if value} == {"b"}
    assert scrape(metrics, "stickyroute_backend_ejections_total")[labelled(backend="b")] == 2
    assert scrape(metrics, "stickyroute_backend_warnings") == {labelled(backend="b", code="kv_full"): 1}


def test_the_ring_and_its_changes() -> None:
    fleet = FakeFleet()
    metrics = metrics_of(fleet)
    assert scrape(metrics, "stickyroute_fleet_changes_total") == {(): 2}
    assert scrape(metrics, "stickyroute_moved_keys_share_total") == {(): 0.375}
    assert scrape(metrics, "stickyroute_backend_effective_weight")[labelled(backend="a")] == 1.0
    print_of_ring = scrape(metrics, "stickyroute_ring_fingerprint")[()]
    fleet.fingerprint = "1123456789abcdef"
    assert scrape(metrics, "stickyroute_ring_fingerprint")[()] != print_of_ring
    assert print_of_ring == int(print_of_ring)


def test_what_others_keep_is_shown_while_there_is_somebody_to_ask() -> None:
    metrics = metrics_of(FakeFleet())
    assert b"config_generation" not in text_of(metrics)
    ask_everybody(metrics)
    assert scrape(metrics, "stickyroute_config_reloads_total") == {
        labelled(result="applied"): 3,
        labelled(result="refused"): 1,
    }
    assert scrape(metrics, "stickyroute_config_last_reload_failed") == {(): 1}
    assert scrape(metrics, "stickyroute_prefix_break_tokens_total") == {
        labelled(place="system", kind="clock"): 2000
    }
    assert scrape(metrics, "stickyroute_shadow_decisions_total") == {
        labelled(policy="sticky", same="yes"): 7,
        labelled(policy="sticky", same="no"): 3,
    }
    assert scrape(metrics, "stickyroute_access_log_dropped_total") == {(): 5}


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
    before = text_of(metrics).count(b"\n")
    for number in range(5000):
        record(metrics, pool=f"model-{number}")
    record(metrics, pool="x" * 1_000_000)
    after = text_of(metrics)
    assert after.count(b"\n") == before
    assert b"model-" not in after
    assert len(metrics._known) == 1, "names that clients made up are not remembered"
    requests = scrape(metrics, "stickyroute_requests_total")
    assert requests[labelled(pool="other", backend="a", status="2xx", reason="home")] == 5002


def test_engines_that_list_very_many_models_share_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MAX_POOLS", 50)
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
    assert b'backend="b"' in text_of(metrics)
    fleet.list("a")
    assert b'backend="b"' not in text_of(metrics)
    record(metrics, backend="b")  # a request that was still running on it
    assert b'backend="b"' not in text_of(metrics)
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
    text_of(metrics)
    record(metrics, pool="new")
    record(metrics, pool="m1")  # a request that was still running
    pools = {
        dict(labels)["pool"]: value for labels, value in scrape(metrics, "stickyroute_requests_total").items()
    }
    assert pools == {"m0": 1, "new": 1, "other": 1, "none": 1}


# The form of the output.


def ask_everybody(metrics: Metrics) -> None:
    """A source for every figure that others keep."""
    sources = metrics.sources
    sources.config = lambda: ConfigFigures(4, 3, 1, 1.8e9, True)
    sources.discovery = lambda: [DiscoveryFigures("dns:vllm.local", 3, 2, False)]
    sources.breaks = lambda: [PrefixBreaks("system", "clock", 4, 2000.0)]
    sources.shadow = lambda: ShadowFigures("sticky", 10, 7, 1000.0, 800.0, 600.0, 1.2, 1.1)
    sources.log_lines_dropped = lambda: 5
    sources.spans_dropped = lambda: 0
    sources.held_requests = lambda: 2


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
    fleet.samples[0] = (
        Sample(kv_utilization=0.5, running=3, waiting=0, preemptions=1, queries_tokens=9, hits_tokens=4),
        monotonic(),
    )
    metrics.decision_time(1e-5)
    metrics.price(Prices({"*": 1e-6}, 0.1, 1.25))
    metrics.lag.observe(0.002)
    ask_everybody(metrics)
    return metrics


def test_labels_are_escaped() -> None:
    backends = {dict(labels)["backend"] for labels in scrape(busy(), "stickyroute_requests_total")}
    assert backends == {"a", 'odd"\\\nname'}


def test_promtool_and_the_parsers_accept_the_output() -> None:
    metrics = busy()
    output = text_of(metrics)
    families = list(text_string_to_metric_families(output.decode()))
    assert all(family.type != "unknown" for family in families)
    assert len({family.name for family in families}) == len(families)
    promtool("check", "metrics", stdin=output)
    strict = {family.name for family in parse_openmetrics(text_of(metrics, openmetrics=True).decode())}
    assert strict == {family.name for family in families}


def test_a_scrape_comes_in_small_parts_and_shows_a_family_whole() -> None:
    metrics = metrics_of(FakeFleet(backends=[f"b{number}" for number in range(64)]))
    for number in range(64):
        record(metrics, backend=f"b{number}")
    parts = [part.count(b"\n") for part in metrics.text()]
    assert len(parts) > 5
    assert max(parts) < 700
    text = b"".join(metrics.text()).decode()
    for family in text_string_to_metric_families(text):
        assert text.count(f"# TYPE {family.name}") >= 1


def test_values_that_are_no_numbers_are_written_as_prometheus_wants_them() -> None:
    rows: list[tuple[tuple[str, ...], float]] = [(("a",), math.inf), (("b",), -math.inf), (("c",), math.nan)]
    text = b"".join(render([gauge("x", "Help \\ with\nlines.", ("l",), rows)])).decode()
    assert text == (
        '# HELP x Help \\\\ with\\nlines.\n# TYPE x gauge\nx{l="a"} +Inf\nx{l="b"} -Inf\nx{l="c"} NaN\n'
    )


def test_two_apps_in_one_process_do_not_meet() -> None:
    one, two = metrics_of(FakeFleet()), metrics_of(FakeFleet())
    record(one)
    assert scrape(two, "stickyroute_requests_total") == {}
