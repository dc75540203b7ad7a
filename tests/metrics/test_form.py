"""That the series of a scrape stay bounded (cases B80, B83), and that its form is right."""

from __future__ import annotations

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from stickyroute.metrics import counters
from stickyroute.metrics.exposition import gauge, render
from tests.metrics.scraping import FakeFleet, busy, labelled, metrics_of, record, scrape, text_of
from tests.support.promtool import promtool

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
