"""docker-compose.yml is right as far as a client without an engine can tell; its commands start."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from stickyroute.settings import load_settings
from tests.cli.commands import ROOT, Running, free_port

COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "stickyroute"}
LISTENING = r"listening on .*? \(port (\d+)\)"


def compose_command() -> list[str] | None:
    """The Compose client that this machine has, if any; it validates without an engine."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            answer = subprocess.run([*command, "version"], capture_output=True, check=False, timeout=60)
            if answer.returncode == 0:
                return command
    return None


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Path in the container -> our file."""
    pairs = [volume.split(":") for volume in service.get("volumes", ())]
    return {parts[1]: (ROOT / parts[0]).resolve() for parts in pairs}


def reply(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(
            method, path, json.dumps(body) if body else None, {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_file_is_valid_compose() -> None:
    command = compose_command()
    if command is not None:
        checked = subprocess.run(
            [*command, "-f", str(COMPOSE), "config", "-q"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert checked.returncode == 0, checked.stderr
    known = {
        "image", "build", "command", "depends_on", "volumes", "ports", "restart",
        "stop_grace_period", "environment",
    }  # fmt: skip
    assert set(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))) == {"services"}
    for name, service in SERVICES.items():
        assert service.keys() <= known, name
        assert set(service.get("depends_on", ())) <= SERVICES.keys(), name
        assert all(isinstance(word, str) for word in service.get("command", ())), name
        for port in service.get("ports", ()):
            address, outside, inside = port.split(":")
            assert address == "127.0.0.1", f"{name}: a try-out is not for the whole network"
            assert 0 < int(outside) < 65536
            assert 0 < int(inside) < 65536


def test_there_are_two_engines_the_proxy_and_prometheus() -> None:
    commands = {name: service["command"][0] for name, service in OURS.items()}
    assert sorted(commands.values()) == ["serve", "simulate", "simulate"]
    assert "prometheus" in SERVICES
    assert ":" in SERVICES["prometheus"]["image"], "pinned, so that it does not change by itself"


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_is_there(name: str) -> None:
    for inside, ours in mounts(SERVICES[name]).items():
        assert ours.is_file(), inside


def test_the_ports_that_are_published_are_listened_on() -> None:
    settings = load_settings(mounts(SERVICES["stickyroute"])["/etc/stickyroute/stickyroute.yaml"])
    inside = {int(port.split(":")[2]) for port in SERVICES["stickyroute"]["ports"]}
    assert inside == {settings.listen_address.port}
    assert settings.admin_address.is_wildcard, "Prometheus comes from another container"
    grace_s = float(SERVICES["stickyroute"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.timeouts.shutdown_s


def test_names_in_the_configuration_are_services_on_their_ports() -> None:
    engine_ports = {
        name: int(service["command"][service["command"].index("--port") + 1])
        for name, service in OURS.items()
        if service["command"][0] == "simulate"
    }
    settings = load_settings(mounts(SERVICES["stickyroute"])["/etc/stickyroute/stickyroute.yaml"])
    assert {b.address.host: b.address.port for b in settings.backends} == engine_ports
    prometheus = yaml.safe_load(
        mounts(SERVICES["prometheus"])["/etc/prometheus/prometheus.yml"].read_text(encoding="utf-8")
    )
    targets = {
        target
        for job in prometheus["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    expected = {f"{name}:{port}" for name, port in engine_ports.items()}
    assert targets == expected | {f"stickyroute:{settings.admin_address.port}"}
    beside = {Path(inside).name for inside in mounts(SERVICES["prometheus"])}
    assert set(prometheus.get("rule_files", ())) <= beside


def test_the_services_start_and_work_together(tmp_path: Path) -> None:
    """Every command as Compose would run it, but on free ports of this machine."""
    with ExitStack() as stack:
        moved: dict[str, str] = {}
        engines = [name for name, service in OURS.items() if service["command"][0] == "simulate"]
        for name in engines:
            command = list(OURS[name]["command"])
            port = free_port()
            command[command.index("--host") + 1] = "127.0.0.1"
            inside = command[command.index("--port") + 1]
            command[command.index("--port") + 1] = str(port)
            moved[f"http://{name}:{inside}"] = f"http://127.0.0.1:{port}"
            stack.enter_context(Running(command)).said(rf"\b{port}\b")

        (proxy_name,) = OURS.keys() - engines
        command = list(OURS[proxy_name]["command"])
        at = command.index("--config") + 1
        config = yaml.safe_load(mounts(OURS[proxy_name])[command[at]].read_text(encoding="utf-8"))
        for backend in config["backends"]:
            backend["url"] = moved[backend["url"]]
        config["listen"] = config["admin_listen"] = "127.0.0.1:0"
        ours = tmp_path / "stickyroute.yaml"
        ours.write_text(yaml.safe_dump(config), encoding="utf-8")
        command[at] = str(ours)
        proxy = stack.enter_context(Running(command))
        port = int(proxy.said(LISTENING)[1])

        status, models = reply(port, "GET", "/v1/models")
        assert status == 200
        model = models["data"][0]["id"]
        asked = {
            "model": model,
            "user": "u",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 2,
        }
        status, answer = reply(port, "POST", "/v1/chat/completions", asked)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 2
        assert proxy.stop() == 0
