"""`stickyroute bench run`: a workload against an address, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stickyroute.benchmark.cli import main

LOAD = ("--workload", "no_overlap", "--set", "rate=20", "--set", "seconds=1", "--set", "prompt_tokens=100",
        "--set", "answer_tokens=4")  # fmt: skip


@pytest.fixture
def engine() -> Iterator[str]:
    """The address of a simulated engine in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "stickyroute.benchmark.fleet_process",
        '{"profile": "demo", "engines": 1}',
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run-no_overlap.json").read_text())
    return found


def test_the_hit_rate_is_the_engines_own_if_they_are_named(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", engine, "--engine", engine, "--out", str(tmp_path), *LOAD]) in (0, 3)
    found = written(tmp_path)
    assert found["facts"][0] == "hit rate by the engines' counters"
    summary = found["summaries"][0]
    assert (summary["policy"], summary["errors"], summary["how"]) == (engine, 0, "http")
    assert summary["requests"] > 5
    assert summary["computed_tokens"] > 0
    assert f"no_overlap against {engine}" in capsys.readouterr().out


def test_without_engines_to_ask_it_is_what_replies_report(engine: str, tmp_path: Path) -> None:
    assert main(["run", engine, "--out", str(tmp_path), *LOAD]) in (0, 3)
    found = written(tmp_path)
    assert found["facts"][0] == "hit rate by usage.cached_tokens of the replies"
    assert found["summaries"][0]["computed_tokens"] > 0


def test_an_address_where_nobody_is_and_one_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "http://127.0.0.1:9", "--engine", "http://127.0.0.1:9", *LOAD]) == 2
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert main(["run", "127.0.0.1:9", *LOAD]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err
    assert main(["run", "http://127.0.0.1:9", "--model", "m", "--out", str(tmp_path), *LOAD]) == 3
    found = written(tmp_path)
    assert "x connect: " in found["facts"][-1]
    assert found["summaries"][0]["errors"] > 5
    assert "every request failed" in found["summaries"][0]["refused"]
