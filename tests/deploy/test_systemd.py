"""The systemd unit is valid, starts what exists, and waits for running replies."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from stickyroute.settings import load_settings
from tests.cli.commands import ROOT, Running

UNIT = ROOT / "deploy" / "stickyroute.service"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's keys keep their case
    parser.read(UNIT, encoding="utf-8")
    return parser


def test_the_unit_is_valid(tmp_path: Path) -> None:
    assert unit().sections() == ["Unit", "Service", "Install"]
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        here = tmp_path / UNIT.name
        bin_folder = str(Path(sys.executable).parent)
        here.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/stickyroute/bin", bin_folder))
        checked = subprocess.run(
            [analyze, "verify", str(here)], capture_output=True, text=True, timeout=60, check=False
        )
        assert checked.returncode == 0, checked.stderr
        assert UNIT.name not in checked.stderr


def test_it_starts_the_command_with_the_configuration(tmp_path: Path) -> None:
    words = shlex.split(unit()["Service"]["ExecStart"])
    assert words[0] == "/opt/stickyroute/bin/stickyroute"
    assert words[-1] == "/etc/stickyroute/stickyroute.yaml"
    config = tmp_path / "stickyroute.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\nbackends: [http://127.0.0.1:1]\n", encoding="utf-8"
    )
    with Running([*words[1:-1], str(config)]) as proxy:
        proxy.said("listening on")
        assert proxy.stop() == 0


def test_it_waits_longer_than_the_proxy_does() -> None:
    service = unit()["Service"]
    shutdown_s = load_settings(ROOT / "config" / "stickyroute.yaml").timeouts.shutdown_s
    assert float(service["TimeoutStopSec"]) > shutdown_s
    assert service["User"] != "root"
    assert service["RestartPreventExitStatus"] == "2", "a wrong configuration does not mend itself"
