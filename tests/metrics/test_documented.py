"""docs/metrics.md and the scrape say the same: every name, its type and its labels, both ways."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from stickyroute.http.pool import CONNECT_FAILURES
from stickyroute.http.upstream import BROKEN, DROPPED, GARBAGE, STALE
from stickyroute.http.words import (
    HEAD_ONLY,
    HEADER_TIMEOUT,
    UPSTREAM_ABORTED,
    UPSTREAM_DEAD,
    UPSTREAM_DIED,
    UPSTREAM_ERROR,
    UPSTREAM_SILENT,
)
from tests.metrics.scraping import busy, text_of

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \| ([^|]*)\| .+ \|$", re.MULTILINE)

Row = tuple[str, str, frozenset[str]]


def documented() -> set[Row]:
    return {
        (name, kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(DOCS.read_text())
    }


def exposed() -> set[Row]:
    rows: set[Row] = set()
    for family in text_string_to_metric_families(text_of(busy()).decode()):
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.add((name, family.type, frozenset(labels)))
    return rows


def test_everything_exposed_is_documented_and_everything_documented_is_exposed() -> None:
    assert documented() == exposed()


def test_every_kind_of_failure_is_documented_and_every_documented_kind_exists() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \| [A-Z]", DOCS.read_text(), re.MULTILINE))
    ends = {UPSTREAM_ABORTED, UPSTREAM_DEAD, UPSTREAM_DIED, UPSTREAM_ERROR, UPSTREAM_SILENT}
    failures = {STALE, DROPPED, BROKEN, GARBAGE, HEAD_ONLY, HEADER_TIMEOUT}
    assert listed == CONNECT_FAILURES | failures | ends | {"busy", "engine_dead", "not_here"}


def test_names_are_ours() -> None:
    for name, _, _ in exposed():
        assert name.startswith(("stickyroute_", "process_"))


def test_the_queries_in_the_documentation_use_names_that_exist() -> None:
    names = {name for name, _, _ in exposed()}
    used = set(re.findall(r"\bstickyroute_\w+", DOCS.read_text()))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} <= names
