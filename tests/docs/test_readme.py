"""What the README shows works: its commands, its configuration, its client, its links."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from stickyroute.settings import load_settings
from tests.cli.commands import ROOT, Running, run, run_forked

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LISTENING = r"listening on .*? \(port (\d+)\)"


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def commands(program: str) -> list[list[str]]:
    """Every command line of the README that runs `program`, as words."""
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [words for words in lines if words and Path(words[0]).name == program]


def recipe(target: str) -> str:
    """What `make TARGET` would do, asked for as from a shell even when make runs these tests."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    outcome = subprocess.run(
        ["make", "-n", target],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of the README, as the file its comment names."""
    (text,) = blocks("yaml")
    path = tmp_path / text.splitlines()[0].removeprefix("# ")
    assert path.name == "stickyroute.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def engines() -> Iterator[dict[int, int]]:
    """The simulated engines of the README's command on free ports: port in the README -> port here."""
    (words,) = [words for words in commands("stickyroute") if words[1] == "simulate"]
    shown = int(words[words.index("--port") + 1])
    count = int(words[words.index("--engines") + 1])
    words[words.index("--port") + 1] = "0"
    with Running(words[1:]) as simulator:
        ports = [int(line[1]) for line in simulator.said_times(r"http://127\.0\.0\.1:(\d+)", count)]
        yield dict(zip(range(shown, shown + count), ports, strict=True))


@pytest.fixture
def proxy(engines: dict[int, int], tmp_path: Path) -> Iterator[int]:
    """`stickyroute serve --config config/demo.yaml` as the README shows it, on a free port."""
    (words,) = [words for words in commands("stickyroute") if words[-1] == "config/demo.yaml"]
    moved = yaml.safe_load((ROOT / words[-1]).read_text(encoding="utf-8"))
    for backend in moved["backends"]:
        host, _, port = backend["url"].rpartition(":")
        backend["url"] = f"{host}:{engines[int(port)]}"
    moved["listen"] = moved["admin_listen"] = "127.0.0.1:0"
    path = tmp_path / "demo.yaml"
    path.write_text(yaml.safe_dump(moved), encoding="utf-8")
    with Running([*words[1:-1], str(path)]) as running:
        yield int(running.said(LISTENING)[1])


def test_the_two_commands_come_first() -> None:
    first = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert first == ["make demo", "make test"]


def test_make_knows_the_targets() -> None:
    named = {match[1] for match in re.finditer(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)}
    assert {"demo", "test", "check"} <= named
    for target in named:
        assert recipe(target)


def test_the_demo_ends_with_its_table() -> None:
    """All that `make demo` does, but for staying up, in less time. The sticky fleet finds more in its caches."""
    words = shlex.split(recipe("demo").splitlines()[-1])
    assert Path(words[0]).name == "stickyroute"
    outcome = run(*words[1:], "--once", "--seconds", "1.5", timeout_s=110)
    assert outcome.returncode == 0, outcome.stderr
    shares = re.search(r"found in cache +([\d.]+)% +([\d.]+)%", outcome.stdout)
    assert shares is not None, outcome.stdout
    assert float(shares[2]) > float(shares[1]) > 0
    assert "requests to gpu-4" in outcome.stdout
    assert "Traceback" not in outcome.stderr


def test_the_configuration_is_right(config: Path) -> None:
    assert [b.weight for b in load_settings(config).backends] == [1, 1, 2]
    (words,) = [words for words in commands("stickyroute") if words[1] == "check"]
    assert words == ["stickyroute", "check", "stickyroute.yaml"]
    outcome = run_forked("check", str(config))
    assert outcome.returncode == 0, outcome.stderr


def test_every_serve_command_starts(config: Path) -> None:
    shown = [words for words in commands("stickyroute") if words[1] == "serve"]
    assert len(shown) == 3
    for words in shown:
        arguments = [str(config) if word == "stickyroute.yaml" else word for word in words[1:]]
        with Running([*arguments, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]) as running:
            running.said(LISTENING)
            assert running.stop() == 0


def test_the_client_gets_its_answer(proxy: int, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks("python")
    assert "127.0.0.1:8080" in program
    exec(compile(program.replace("127.0.0.1:8080", f"127.0.0.1:{proxy}"), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_curl_gets_its_answer(proxy: int) -> None:
    (words,) = commands("curl")
    url = next(word for word in words if word.startswith("http://"))
    given = [words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H"]
    body = words[words.index("-d") + 1]
    assert url == "http://127.0.0.1:8080/v1/chat/completions"
    backends = set()
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=60)
        connection.request("POST", "/v1/chat/completions", body, dict(given))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert json.loads(answer.read())["choices"]
        backends.add(answer.getheader("x-stickyroute-backend"))
        connection.close()
    assert len(backends) == 1
    assert None not in backends


def test_what_it_says_of_the_configuration_is_the_default() -> None:
    policy = load_settings(ROOT / "config" / "stickyroute.yaml").policy
    assert f"\npolicy: {policy} " in README


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
