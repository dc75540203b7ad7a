"""Flags become settings, commands reach whoever does the work, and mistakes are lines, not tracebacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stickyroute.benchmark.demo import SECONDS
from stickyroute.build import version_words
from stickyroute.cli import main
from stickyroute.settings import Settings
from tests.cli.commands import environment, run


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Stands in for the proxy: keeps the settings it would have run with."""
    kept: list[Settings] = []
    monkeypatch.setattr("stickyroute.app.run", lambda settings, origin: kept.append(settings) or 0)
    for name in ("STICKYROUTE_POLICY", "STICKYROUTE_BACKENDS", "STICKYROUTE_LISTEN"):
        monkeypatch.delenv(name, raising=False)
    return kept


def test_backends_are_enough_to_serve(served: list[Settings]) -> None:
    assert main(["serve", "--backend", "http://a:1", "--backend", "two=http://b:2/base"]) == 0
    assert [(b.name, b.url) for b in served[0].backends] == [
        ("a:1", "http://a:1"),
        ("two", "http://b:2/base"),
    ]


def test_every_flag_of_serve_is_a_setting(served: list[Settings]) -> None:
    flags = (
        "--backend http://a:1/b=c --listen [::1]:0 --admin-listen 127.0.0.1:0 --policy ring "
        "--access-log json --log-level debug --response-headers "
        "--set limits.body_bytes=1MiB --set affinity.sources=[body:user] --set retries.max=0"
    )
    assert main(["serve", *flags.split()]) == 0
    settings = served[0]
    assert settings.backends[0].url == "http://a:1/b=c"
    assert (settings.listen, settings.admin_listen) == ("[::1]:0", "127.0.0.1:0")
    assert (settings.policy, settings.access_log, settings.log_level) == ("ring", "json", "debug")
    assert settings.response_headers
    assert settings.limits.body_bytes == 1 << 20
    assert settings.affinity.sources == ("body:user",)
    assert settings.retries.max == 0


def test_flags_win_over_the_environment_which_wins_over_the_file(
    served: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("backends: [http://file:1]\npolicy: ring\nlisten: 127.0.0.1:1\nlog_level: error\n")
    monkeypatch.setenv("STICKYROUTE_POLICY", "random")
    monkeypatch.setenv("STICKYROUTE_LISTEN", "127.0.0.1:2")
    assert main(["serve", "--config", str(config), "--listen", "127.0.0.1:3"]) == 0
    settings = served[0]
    assert (settings.log_level, settings.policy, settings.listen) == ("error", "random", "127.0.0.1:3")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--set", "limits"], "KEY=VALUE"),
        (["--set", "=1"], "KEY=VALUE"),
        (["--set", "limits=[", "--set", "a=b"], "not YAML"),
        (["--set", "policy=ring", "--set", "policy.x=1"], "has a value already"),
        (["--set", "limits.bytes=1"], "limits.bytes (from a flag): is no setting; did you mean"),
        (["--backend", "gpu-1:8000"], "backends[0].url (from a flag): has no scheme"),
        (["--policy", "stickiest"], "policy (from a flag): must be"),
        (["--config", "/nowhere/c.yaml"], "cannot read /nowhere/c.yaml: No such file or directory"),
    ],
)
def test_a_mistake_in_a_flag_is_a_line_and_exit_2(
    flags: list[str], told: str, served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = flags if "--backend" in flags else ["--backend", "http://a:1", *flags]
    assert main(["serve", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("stickyroute: ")
    assert told in output.err
    assert served == []


def test_check_prints_the_settings_in_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("backends: [{url: 'http://a:1', api_key: hunter2}]\n")
    assert main(["check", str(config), "--set", "policy=ring"]) == 0
    output = capsys.readouterr()
    shown = yaml.safe_load(output.out)
    assert shown["backends"][0] == {
        "name": "a:1", "url": "http://a:1", "weight": 1, "api_key": "**********", "ca": None,
        "tls_verify": True, "models": None, "max_in_flight": None, "events": None, "engine": None,
    }  # fmt: skip
    assert shown["policy"] == "ring"
    assert shown["timeouts"]["connect_s"] == 2.0
    assert output.err == ""


def test_check_lists_every_mistake_and_exits_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("backends: [{url: 'http://a:1', wieght: 2}]\npolicy: none\n")
    assert main(["check", str(config)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.partition(":")[0] for line in output.err.splitlines()] == ["backends[0].wieght", "policy"]


def test_check_of_a_missing_file_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "/nowhere/c.yaml"]) == 1
    assert capsys.readouterr().err == "cannot read /nowhere/c.yaml: No such file or directory\n"


def test_check_looks_into_files_of_discovery(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, found = tmp_path / "stickyroute.yaml", tmp_path / "backends.yaml"
    path.write_text(f"discovery: [{{kind: file, path: {found}}}]")
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().err == (
        f"note: file:{found} has no backends now: cannot read {found}: No such file or directory\n"
    )
    found.write_text("[http://a:1]")
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_preview_tells_which_keys_move_and_what_differs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("backends: [{name: a, url: 'http://a:1'}, {name: b, url: 'http://b:1'}]")
    new.write_text(
        "backends: [{name: a, url: 'http://a:1', api_key: sesame}, {name: c, url: 'http://c:1', weight: 3}]\n"
        "policy: ring\nlisten: 127.0.0.1:1\ndiscovery: [{kind: dns, host: h}]\n"
    )
    assert main(["preview", str(old), str(new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["backend", "before", "after", "gains", "loses"]
    assert lines[1].split()[0] == "a"
    assert (lines[1].split()[-1], lines[2].split()[-1], lines[3].split()[-1]) == (
        "changed",
        "removed",
        "added",
    )
    assert " % of keys move, c gains " in lines[5]
    assert lines[7:] == [
        "at once:",
        "  backends.a.api_key null -> (secret)",
        "  backends.b removed",
        "  backends.c added",
        "  discovery.dns:h added",
        "  policy sticky -> ring",
        "",
        "at the next restart:",
        "  listen 0.0.0.0:8080 -> 127.0.0.1:1",
        "",
        "note: Backends that dns:h finds are not known here: a running proxy tells with PUT /config?dry_run=1.",
    ]
    assert main(["preview", str(new), str(new)]) == 0
    assert "no key moves" in capsys.readouterr().out
    new.write_text("backends: 3")
    assert main(["preview", str(old), str(new)]) == 1
    assert capsys.readouterr().err == f"{new}: backends: must be a list\n"


def test_preview_reads_files_of_discovery(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, new, found = tmp_path / "old.yaml", tmp_path / "new.yaml", tmp_path / "found.yaml"
    found.write_text("[{name: b, url: 'http://b:1'}]")
    old.write_text("backends: [{name: a, url: 'http://a:1'}]")
    new.write_text(old.read_text() + f"\ndiscovery: [{{kind: file, path: {found}}}]")
    assert main(["preview", str(old), str(new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[2].split()[0], lines[2].split()[-1]) == ("b", "added")
    assert lines[-1] == f"note: Backends read from file:{found} as it is now: 1."


def test_the_demo_is_told_whether_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("stickyroute.benchmark.demo.run_demo", lambda **given: calls.append(given) or 0)
    assert main(["demo"]) == 0
    assert main(["demo", "--once", "--seconds", "2.5"]) == 0
    assert calls == [{"once": False, "seconds": SECONDS}, {"once": True, "seconds": 2.5}]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "long", "601"])
def test_the_demo_takes_seconds_that_make_sense(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"--seconds={text}"])
    assert ended.value.code == 2
    assert "give seconds from 1 to 600" in capsys.readouterr().err


def test_the_help_tells_the_demo_s_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert f"default {SECONDS:g}" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("command", "target"),
    [("simulate", "stickyroute.simulator.cli.main"), ("bench", "stickyroute.benchmark.cli.main")],
)
def test_simulate_and_bench_get_their_arguments_as_they_are(
    command: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(target, lambda argv: calls.append(argv) or 7)
    assert main([command, "--engines", "8", "--help"]) == 7
    assert calls == [["--engines", "8", "--help"]]


def test_an_error_of_the_system_is_a_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(settings: Settings, origin: object) -> int:
        raise PermissionError(13, "Permission denied", "/var/log/access.log")

    monkeypatch.setattr("stickyroute.app.run", fail)
    assert main(["serve", "--backend", "http://a:1"]) == 2
    assert capsys.readouterr().err == "stickyroute: /var/log/access.log: Permission denied\n"


def test_an_interrupt_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(settings: Settings, origin: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stickyroute.app.run", interrupted)
    assert main(["serve", "--backend", "http://a:1"]) == 130


def test_the_command_and_the_module_are_the_same() -> None:
    assert run("--version").stdout == f"stickyroute {version_words()}\n"
    script = subprocess.run(
        [str(Path(sys.executable).parent / "stickyroute"), "--version"],
        env=environment(), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert script.stdout == f"stickyroute {version_words()}\n"


def test_an_unknown_command_names_the_known_ones() -> None:
    outcome = run("server")
    assert outcome.returncode == 2
    assert "serve" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_check_does_not_load_what_it_does_not_need() -> None:
    script = (
        "import sys; from stickyroute.cli import main; main(['check', 'config/stickyroute.yaml']);"
        "heavy = ('aiohttp', 'uvloop', 'prometheus_client', 'stickyroute.app');"
        "print([module for module in heavy if module in sys.modules])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script], env=environment(), cwd=Path(__file__).parents[2], timeout=60,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert outcome.stdout.splitlines()[-1] == "[]"
