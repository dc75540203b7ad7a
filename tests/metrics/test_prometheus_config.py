"""config/prometheus.yml and config/alerts.yml: valid, about metrics that exist, and explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.metrics.test_documented import exposed
from tests.support.promtool import promtool

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "config" / "alerts.yml"
PROMETHEUS = ROOT / "config" / "prometheus.yml"
RULE_TESTS = Path(__file__).parent / "alerts.test.yml"
OPERATIONS = ROOT / "docs" / "operations.md"


def rules() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(("what", "path"), [("config", PROMETHEUS), ("rules", ALERTS)])
def test_promtool_accepts_the_file(what: str, path: Path) -> None:
    if not promtool("check", what, path):
        assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_alerts_fire_when_they_should_and_no_sooner() -> None:
    tried = {
        rule["alertname"]
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for rule in test["alert_rule_test"]
    }
    assert tried <= {rule["alert"] for rule in rules()}
    promtool("test", "rules", RULE_TESTS)


def test_alerts_use_metrics_that_exist() -> None:
    names = {name for name, _, _ in exposed()}
    used = set(re.findall(r"\b(?:stickyroute|process)_\w+", " ".join(rule["expr"] for rule in rules())))
    assert used
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} <= names


def test_every_alert_is_explained_and_every_explained_alert_exists() -> None:
    explained = re.findall(r"^\| `(Stickyroute\w+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in rules())


def test_operations_name_metrics_that_exist() -> None:
    names = {name for name, _, _ in exposed()}
    assert set(re.findall(r"\b(?:stickyroute|process)_\w+", OPERATIONS.read_text())) <= names


def test_prometheus_scrapes_the_router_and_loads_the_alerts() -> None:
    config = yaml.safe_load(PROMETHEUS.read_text())
    assert "stickyroute" in {job["job_name"] for job in config["scrape_configs"]}
    assert config["rule_files"] == [ALERTS.name]
