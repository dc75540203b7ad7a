"""deploy/kubernetes.yaml: the configuration in it is right, and names, ports and rights fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stickyroute.settings import Settings, load_text

ROOT = Path(__file__).parents[2]
OBJECTS = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8")))


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [item for item in OBJECTS if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found


def settings() -> Settings:
    text = one("ConfigMap", "stickyroute")["data"]["stickyroute.yaml"]
    return load_text(text.encode(), "ConfigMap")[0]


def proxy() -> dict[str, Any]:
    return one("Deployment", "stickyroute")["spec"]["template"]["spec"]


def engine() -> dict[str, Any]:
    (container,) = one("StatefulSet", "vllm")["spec"]["template"]["spec"]["containers"]
    return container


def test_the_configuration_finds_the_engines_that_are_there() -> None:
    (found,) = settings().discovery
    service = one("Service", found.service or "")
    labels = one("StatefulSet", "vllm")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None", "each pod is spoken to"
    assert found.port in {port["name"] for port in service["spec"]["ports"]}
    assert found.port in {port["name"] for port in engine()["ports"]}


def test_its_account_may_read_what_discovery_asks_for_and_no_more() -> None:
    rules = {
        (group, resource): set(rule["verbs"])
        for rule in one("Role", "stickyroute")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    reading = {"get", "list", "watch"}
    assert rules == {("discovery.k8s.io", "endpointslices"): reading, ("", "pods"): reading}
    assert one("RoleBinding", "stickyroute")["subjects"][0]["name"] == proxy()["serviceAccountName"]
    assert one("ServiceAccount", "stickyroute")


def test_ports_probes_and_the_file_are_those_of_the_configuration() -> None:
    (container,) = proxy()["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings().listen_address.port, "admin": settings().admin_address.port}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}
    (mount,) = container["volumeMounts"]
    assert "subPath" not in mount, "a file mounted so never changes"
    assert container["args"] == ["serve", "--config", f"{mount['mountPath']}/stickyroute.yaml"]


def test_a_pod_is_given_the_time_that_its_replies_are_given() -> None:
    (container,) = proxy()["containers"]
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert proxy()["terminationGracePeriodSeconds"] > pause_s + settings().timeouts.shutdown_s


def test_changes_from_outside_need_a_token_that_is_no_part_of_the_configuration() -> None:
    (container,) = proxy()["containers"]
    assert not settings().admin_listen.startswith("127.")
    assert settings().admin_token is None
    assert "STICKYROUTE_ADMIN_TOKEN" in {variable["name"] for variable in container["env"]}
