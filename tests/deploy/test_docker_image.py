"""The Dockerfile copies what the package needs and no more; it runs what exists, without rights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from stickyroute.settings import load_settings
from tests.cli.commands import ROOT, environment, run

INSTRUCTIONS = {
    "FROM", "WORKDIR", "RUN", "COPY", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD",
}  # fmt: skip


def stages() -> list[list[tuple[str, str]]]:
    """The Dockerfile as stages of (instruction, arguments)."""
    found: list[list[tuple[str, str]]] = []
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, arguments.strip()))
    return found


def copied() -> list[str]:
    """What the build stage takes from the repository."""
    return [
        source
        for instruction, arguments in stages()[0]
        if instruction == "COPY"
        for source in arguments.split()[:-1]
    ]


def test_only_known_instructions_and_two_stages() -> None:
    assert {instruction for stage in stages() for instruction, _ in stage} <= INSTRUCTIONS
    assert len(stages()) == 2
    assert stages()[0][0][1].endswith(" AS build")
    assert any(i == "COPY" and a.startswith("--from=build /opt/") for i, a in stages()[1])
    assert not any(i == "COPY" and not a.startswith("--from=") for i, a in stages()[1])


def test_it_runs_as_a_user_without_rights() -> None:
    (user,) = (arguments for instruction, arguments in stages()[1] if instruction == "USER")
    assert int(user) > 0


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert rules[0] == "*"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source.removeprefix("./"), rule) for rule in allowed), source


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built from nothing but what the Dockerfile copies."""
    folder = tmp_path_factory.mktemp("src")
    for source in copied():
        path = ROOT / source
        if path.is_dir():
            shutil.copytree(path, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / source)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_the_package_builds_from_what_is_copied(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "stickyroute").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert ours <= names
    assert not any(name.startswith(("tests/", "bench/")) for name in names)


def test_the_entry_point_is_the_command(wheel: Path) -> None:
    last = dict(stages()[1])
    assert json.loads(last["ENTRYPOINT"]) == ["stickyroute"]
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "stickyroute = stickyroute.cli:main" in archive.read(entry_points).decode()


def test_the_default_command_reads_the_mounted_file() -> None:
    command = json.loads(dict(stages()[1])["CMD"])
    assert command == ["serve", "--config", "/etc/stickyroute/stickyroute.yaml"]
    outcome = run(*command[:2], "/nowhere/stickyroute.yaml")
    assert outcome.returncode == 2
    assert "cannot read /nowhere/stickyroute.yaml" in outcome.stderr


def test_the_ports_it_names_are_the_defaults() -> None:
    settings = load_settings(ROOT / "config" / "stickyroute.yaml")
    exposed = dict(stages()[1])["EXPOSE"].split()
    assert exposed == [str(settings.listen_address.port), str(settings.admin_address.port)]
