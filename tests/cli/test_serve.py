"""`stickyroute serve` as a process: it starts, stops in good order, and says in one line why it cannot."""

from __future__ import annotations

import http.client
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.commands import Running, free_port, run_forked

SERVE = ["serve", "--backend", "http://127.0.0.1:1", "--admin-listen", "127.0.0.1:0"]
LISTENING = r"listening on .*? \(port (\d+)\), admin on .* \(port (\d+)\)"


def status(port: int, path: str, host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(("number", "anew"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_it_serves_until_told_to_stop(number: int, anew: bool) -> None:
    with Running([*SERVE, "--listen", "127.0.0.1:0"], anew=anew) as proxy:
        public, admin = map(int, proxy.said(LISTENING).groups())
        assert status(public, "/health") == 503, "nobody listens on port 1"
        assert status(admin, "/healthz") == 200
        assert status(admin, "/readyz") == 503
        assert proxy.stop(number) == 0
    assert not any("Traceback" in line for line in proxy.lines)


def test_it_listens_on_ipv6() -> None:
    with Running([*SERVE, "--listen", "[::1]:0"]) as proxy:
        public = int(proxy.said(LISTENING)[1])
        assert status(public, "/health", "::1") == 503
        assert proxy.stop() == 0


def test_the_environment_alone_is_enough() -> None:
    port = free_port()
    variables = {
        "STICKYROUTE_BACKENDS": "http://127.0.0.1:1,http://127.0.0.1:2",
        "STICKYROUTE_LISTEN": f"127.0.0.1:{port}",
        "STICKYROUTE_ADMIN_LISTEN": "127.0.0.1:0",
    }
    with Running(["serve"], variables) as proxy:
        assert int(proxy.said(LISTENING)[1]) == port
        proxy.said("2 backends")
        assert proxy.stop() == 0


@pytest.mark.parametrize("which", ["--listen", "--admin-listen"])
def test_a_port_in_use_is_one_line_and_exit_2(which: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        flags = {"--listen": "127.0.0.1:0", "--admin-listen": "127.0.0.1:0", which: taken}
        outcome = run_forked(
            "serve", "--backend", "http://127.0.0.1:1", *(part for flag in flags.items() for part in flag)
        )
    assert outcome.returncode == 2
    last = outcome.stderr.splitlines()[-1]
    setting = which.removeprefix("--").replace("-", "_")
    assert last == f"stickyroute: {setting}: {taken} cannot be opened: Address already in use"
    assert "Traceback" not in outcome.stderr


def test_an_address_of_another_machine_is_one_line_and_exit_2() -> None:
    outcome = run_forked(*SERVE, "--listen", "192.0.2.1:8080")
    assert outcome.returncode == 2
    assert outcome.stderr.splitlines()[-1].startswith("stickyroute: ")
    assert "Traceback" not in outcome.stderr


def test_a_log_that_cannot_be_written_is_one_line_and_exit_2(tmp_path: Path) -> None:
    outcome = run_forked(
        *SERVE,
        "--listen",
        "127.0.0.1:0",
        "--access-log",
        "text",
        "--set",
        f"access_log_path={tmp_path}/none/a.log",
    )
    assert outcome.returncode == 2
    assert "No such file or directory" in outcome.stderr.splitlines()[-1]
    assert "Traceback" not in outcome.stderr


def test_a_certificate_that_is_none_is_one_line_and_exit_2(tmp_path: Path) -> None:
    pem = tmp_path / "not.pem"
    pem.write_text("not a certificate")
    outcome = run_forked(
        *SERVE, "--listen", "127.0.0.1:0", "--set", f"tls.cert={pem}", "--set", f"tls.key={pem}"
    )
    assert outcome.returncode == 2
    assert "tls" in outcome.stderr.splitlines()[-1]
    assert "Traceback" not in outcome.stderr


def test_sighup_reads_the_file_again_and_a_mistake_in_it_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stickyroute.yaml"
    good = "backends: ['http://127.0.0.1:1']\nlisten: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\nreload_on_change: false\n"
    path.write_text(good)
    with Running(["serve", "--config", str(path), "--policy", "ring"]) as proxy:
        admin = int(proxy.said(LISTENING)[2])
        path.write_text(good + "policy: random\nlog_level: debug\n")
        proxy.process.send_signal(signal.SIGHUP)
        proxy.said(r"configuration 2 from .*stickyroute.yaml: no key moves; log_level info -> debug$")
        path.write_text("backends: [")
        proxy.process.send_signal(signal.SIGHUP)
        proxy.said(r"configuration from .* refused, 2 stays in force:")
        assert status(admin, "/healthz") == 200
        assert proxy.stop() == 0
