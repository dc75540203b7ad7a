"""Our command as a process of its own, without the second that an interpreter takes to load it.

Owns the starting: one process, the server, has the command's modules and forks for each start. What comes of it differs
from `python -m stickyroute` only in how it came to have its modules. The server is the suite's where there are several
workers (`share`), else it starts when it is first needed.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Forked", "share"]

ROOT = Path(__file__).parents[3]
_SHARED = "TESTS_FORK_SERVER"  # where it listens, for the workers


class Forked:
    """`stickyroute ARGUMENTS`, much like a `Popen`. `files` are its standard input, output and errors."""

    returncode: int | None

    def __init__(
        self, arguments: Sequence[str], files: tuple[int, int, int], env: Mapping[str, str], folder: Path
    ) -> None:
        self.returncode = None
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(os.environ.get(_SHARED) or share())
        wanted = json.dumps({"arguments": list(arguments), "env": dict(env), "folder": str(folder)}).encode()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        self._line.sendmsg([len(wanted).to_bytes(4, "big")], [rights])
        self._line.sendall(wanted)
        self._told = b""
        self.pid = int(self._tell(None) or 0)
        assert self.pid, "the server of processes is gone"

    def poll(self) -> int | None:
        """Its exit code, where it has ended; that of Popen."""
        return self._ended(0)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises TimeoutExpired."""
        code = self._ended(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0)
        return code

    async def ended(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises TimeoutExpired."""
        return await asyncio.to_thread(self.wait, timeout_s)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            line = self._tell(timeout_s)
            if line is not None:
                self.returncode = int(line)
                self._line.close()
        return self.returncode

    def _tell(self, timeout_s: float | None) -> str | None:
        """The next line from its watcher; nothing where there is none in time."""
        while b"\n" not in self._told:
            if not select.select([self._line], [], [], timeout_s)[0]:
                return None
            data = self._line.recv(100)
            assert data, "the watcher of the process is gone"
            self._told += data
        line, _, self._told = self._told.partition(b"\n")
        return line.decode()


def share() -> str:
    """Start the server, for this process and those it starts from now on; where it listens."""
    folder = tempfile.TemporaryDirectory(prefix="fork-server-")
    where = str(Path(folder.name) / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked", where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    listens, stdin = server.stdout, server.stdin

    def end() -> None:
        stdin.close()
        listens.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    assert listens.readline() == b"listening\n"
    os.environ[_SHARED] = where
    return where
