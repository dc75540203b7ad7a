"""The Grafana dashboard: every query of it is one that Prometheus takes, about metrics and labels that we expose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metrics.test_documented import exposed
from tests.support.promtool import promtool

DASHBOARD = Path(__file__).parents[2] / "config" / "grafana" / "stickyroute.json"
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
NAME = re.compile(r"\b(?:stickyroute|process)_\w+")
SCRAPE_LABELS = {"instance", "job"}  # Prometheus' own


def queries() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']}, {target['refId']}", target["expr"]


QUERIES = dict(queries())
LABELS = {name: set(labels) for name, _, labels in exposed()}


@pytest.mark.parametrize("where", QUERIES)
def test_a_query_uses_metrics_and_labels_that_exist(where: str) -> None:
    query = QUERIES[where]
    names = [re.sub(r"_(bucket|count|sum)$", "", name) for name in NAME.findall(query)]
    assert names
    assert set(names) <= LABELS.keys()
    labels = set.union(*(LABELS[name] for name in names)) | SCRAPE_LABELS | {"le"}
    grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", query) for label in found.split(",")}
    selected = set(re.findall(r"[{,](\w+)[=!]~?\"", query))
    assert grouped | selected <= labels


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables filled in."""
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", "x", query.replace("$__rate_interval", "5m"))}
        for number, query in enumerate(QUERIES.values())
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", path)


def test_every_metric_of_ours_is_on_it() -> None:
    shown = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for query in QUERIES.values()
        for name in NAME.findall(query)
    }
    left_out = {name for name in LABELS if name.startswith("stickyroute_")} - shown
    assert left_out == {
        "stickyroute_answer_tokens_total",
        "stickyroute_backend_sample_age_seconds",
        "stickyroute_config_loaded_timestamp_seconds",
        "stickyroute_config_reloads_total",
        "stickyroute_discovery_failures_total",
        "stickyroute_route_requests_total",
        "stickyroute_written_tokens_total",
    }


def test_variables_are_labels_and_panels_do_not_overlap() -> None:
    used = {name for query in QUERIES.values() for name in re.findall(r"\$(\w+)", query)} - {
        "__rate_interval"
    }
    defined = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert used | {"datasource"} == defined.keys()
    for name in used:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", defined[name]["definition"]).groups()  # type: ignore[union-attr]
        assert label in LABELS[metric] | SCRAPE_LABELS
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells
        assert at["x"] + at["w"] <= 24
        cells |= mine
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
