"""Compiles the hot modules when the wheel is built, where that is asked for: `make wheel`, or

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .

The sources are the same and stay in the wheel; mypyc makes extension modules of those that pyproject.toml names, which
Python prefers. Without the variable the wheel is pure Python, and works alike. Needs a C compiler and Python's headers,
and takes some four minutes of CPU. Nothing is written beside the sources: an editable install never is compiled.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(
    name="stickyroute",
    packages=[],
    script_args=["--quiet", "build_ext", "--inplace"],
    ext_modules=mypycify({arguments!r}, opt_level="2", debug_level="0", multi_file=True, group_name={group!r}),
)
"""
GROUP = "stickyroute_compiled"  # what the compiled modules share, in a module beside the package


class CompileHook(BuildHookInterface[Any]):
    """Option, in pyproject.toml: `modules`, the names of those to compile for each folder of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in a folder of its own, and add what comes out. Raises RuntimeError with what is missing or wrong."""
        if version == "editable":
            self.app.display_warning("an editable install runs the sources: nothing is compiled")
            return
        _check_compiler()
        self._folder = folder = Path(mkdtemp(prefix="stickyroute-build-"))
        try:
            self._compile(folder, build_data)
        except BaseException:
            shutil.rmtree(folder)
            raise

    def _compile(self, folder: Path, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        shutil.copytree(root / "stickyroute", folder / "stickyroute", ignore=shutil.ignore_patterns("*.so"))
        modules = [
            f"{package}/{name}.py"
            for package, names in self.config["modules"].items()
            for name in names.split()
        ]
        # What is only imported is not judged here: its optional packages and their stubs need not be installed.
        arguments = ["--config-file", str(root / "pyproject.toml"), "--follow-imports=silent", *modules]
        setup = folder / "setup.py"
        setup.write_text(SETUP.format(arguments=arguments, group=GROUP))
        done = subprocess.run(
            [sys.executable, setup.name], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"mypyc or the C compiler failed:\n{done.stdout}{done.stderr}")
        for path in [*folder.glob("*.so"), *folder.glob("stickyroute/**/*.so")]:
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Forget the folder."""
        if version != "editable":
            shutil.rmtree(self._folder)


def _check_compiler() -> None:
    otherwise = "; without HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 the package installs as it is"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise RuntimeError(
            f"to compile, {compiler} is needed (Debian and Ubuntu: apt-get install gcc libc6-dev){otherwise}"
        )
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        package = f"python3.{sys.version_info[1]}-dev"
        raise RuntimeError(
            f"to compile, Python.h is needed (Debian and Ubuntu: apt-get install {package}){otherwise}"
        )
