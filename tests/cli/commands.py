"""Runs a command of ours as a process and reads what it says, without sleeping."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forked import Forked

ROOT = Path(__file__).parents[2]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables without any of ours, the venv's commands first in PATH, and `extra`."""
    clean = {name: value for name, value in os.environ.items() if not name.upper().startswith("STICKYROUTE_")}
    bin_folder = str(Path(sys.executable).parent)
    return {**clean, "PATH": bin_folder + os.pathsep + clean.get("PATH", ""), **(extra or {})}


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*arguments: str, timeout_s: float = 60, **extra: str) -> subprocess.CompletedProcess[str]:
    """`stickyroute ARGUMENTS` to its end, as the process of an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-m", "stickyroute", *arguments],
        cwd=ROOT, env=environment(extra), capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def run_forked(*arguments: str, timeout_s: float = 60, **extra: str) -> subprocess.CompletedProcess[str]:
    """The same without the second that an interpreter takes to start."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        files = (nothing.fileno(), out.fileno(), err.fileno())
        process = Forked(arguments, files, environment(extra), ROOT)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, code, *said)


class Running:
    """`stickyroute ARGUMENTS` as long as the block lasts; its output, both kinds together, is in `lines`.

    `anew`: by an interpreter of its own, as a shell would start it.
    """

    process: Forked | subprocess.Popen[bytes]

    def __init__(
        self, arguments: Sequence[str], extra: Mapping[str, str] | None = None, *, anew: bool = False
    ) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        reading, writing = os.pipe()
        self._output = os.fdopen(reading, encoding="utf-8")
        with open(writing, "wb", 0), open(os.devnull, "rb") as nothing:
            if anew:
                self.process = subprocess.Popen(
                    [sys.executable, "-u", "-m", "stickyroute", *arguments],
                    cwd=ROOT, env=environment(extra), stdin=nothing, stdout=writing, stderr=writing,
                )  # fmt: skip
            else:
                files = (nothing.fileno(), writing, writing)
                self.process = Forked(arguments, files, environment(extra), ROOT)
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self._output.close()

    def said(self, pattern: str, timeout_s: float = 30) -> re.Match[str]:
        """The first line with the pattern in it, waited for; fails when the command ends without it."""
        return self.said_times(pattern, 1, timeout_s)[0]

    def said_times(self, pattern: str, count: int, timeout_s: float = 30) -> list[re.Match[str]]:
        """The first `count` lines with the pattern in them."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._find(pattern)) >= count, timeout_s)
            found = self._find(pattern)
        assert len(found) >= count, f"never said {pattern!r}:\n" + "\n".join(self.lines)
        return found[:count]

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def _find(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in self.lines if (match := re.search(pattern, line))]

    def _read(self) -> None:
        for line in self._output:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
