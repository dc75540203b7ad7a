"""The compiled build: what pyproject.toml names exists, and the wheel that comes out runs."""

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ROOT, environment

HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "hooks"
]
NAMED = [f"{folder}/{name}" for folder, names in HOOK["custom"]["modules"].items() for name in names.split()]


def test_every_module_to_compile_exists_and_is_named_once() -> None:
    assert [name for name in NAMED if not (ROOT / f"{name}.py").is_file()] == []
    assert len(set(NAMED)) == len(NAMED)


def test_the_decision_and_the_splice_are_among_them() -> None:
    assert {
        "stickyroute/routing/policies/sticky",
        "stickyroute/routing/index",
        "stickyroute/http/lane",
    } <= set(NAMED)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_compiled_wheel_has_sources_and_modules_and_says_so(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    shutil.copytree(
        ROOT / "stickyroute", checkout / "stickyroute", ignore=shutil.ignore_patterns("__pycache__")
    )
    before = sorted(checkout.rglob("*"))
    # Without our extras, whose stubs mypy would find through the venv of the tests.
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    built = subprocess.run(
        [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."],
        cwd=checkout, env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    assert sorted(checkout.rglob("*")) == before
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.name.endswith("-any.whl")
    files = zipfile.ZipFile(wheel).namelist()
    for name in NAMED:
        assert f"{name}.py" in files
        assert any(file.startswith(f"{name}.") and file.endswith(".so") for file in files), name

    folder = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(folder)
    said = subprocess.run(
        [sys.executable, "-m", "stickyroute", "--version"],
        cwd=tmp_path, env=environment() | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert said.stdout.endswith("(compiled)\n")


def test_without_a_compiler_it_says_what_is_missing_and_leaves_nothing(tmp_path: Path) -> None:
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["CompileHook"]
    build_data: dict[str, Any] = {"force_include": {}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.setenv("TMPDIR", str(tmp_path))
        with pytest.raises(RuntimeError, match="apt-get install gcc"):
            hook(str(ROOT), HOOK["custom"], None, None, str(tmp_path), "wheel").initialize(
                "standard", build_data
            )
    assert build_data == {"force_include": {}}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_module_that_mypyc_refuses_is_told_and_nothing_is_built(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "stickyroute/openai").mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "stickyroute/__init__.py").write_text('__version__ = "1.0"\n')
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "."],
        cwd=checkout, env=os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert built.returncode != 0
    assert "mypyc or the C compiler failed" in built.stderr
    assert list(tmp_path.glob("*.whl")) == []
