"""What every launcher shares: free ports, a process group of its own, readiness by a real request, the
process tree.

Must not know any particular router. Times are seconds; a router that fails to start raises DriverError with
the end of its output.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 2.0
CONSECUTIVE_REPLIES = 4


class DriverError(Exception):
    """A router did not start, or died."""


def free_port() -> int:
    """A port that was free a moment ago: the routers take a number, not a socket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def distribution_version(venv: str, distribution: str) -> str | None:
    """The version of a distribution installed in `venv`, read from its metadata folder, or None."""
    pattern = f"lib/python*/site-packages/{distribution.replace('-', '_')}-*.dist-info"
    for folder in Path(venv).glob(pattern):
        return folder.name.removesuffix(".dist-info").split("-", 1)[1]
    return None


def process_tree(root: int) -> list[int]:
    """`root` and every living descendant, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(entry))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


@dataclass(slots=True)
class Running:
    """A started router: where it listens, its process, and the file that holds its output."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pids(self) -> list[int]:
        """The whole process tree, workers included."""
        return process_tree(self.process.pid)

    def stop(self) -> None:
        """Ask it to end, then end its process group; returns when the process is gone."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True)
class Driver:
    """One router at one place. Subclasses say how to find it and how to start it."""

    name: ClassVar[str]
    default_policy: ClassVar[str]

    program: str
    version: str
    policy: str = field(default="")

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        """The router as installed here, or None."""
        raise NotImplementedError

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        """Write what the router reads into `folder` and return its command line."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name for tables: router, version, policy."""
        return f"{self.name} {self.version}, {self.policy or self.default_policy}"

    @property
    def key(self) -> str:
        """The name for results: of one router with several policies each has its own."""
        return f"{self.name}:{self.policy}" if self.policy else self.name

    def start(self, backends: list[str], folder: Path, cpus: set[int] | None = None) -> Running:
        """Start in front of `backends` (URLs) and return once requests are answered.

        `folder` (made if missing) takes configuration and output; `cpus` pins the router's processes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        argv = self.command(port, backends, folder)
        log = folder / f"{self.name}.log"
        if cpus:
            argv = ["taskset", "-c", ",".join(map(str, sorted(cpus))), *argv]
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=self.folder_to_run_in(folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Running(port, process, log)
        try:
            wait_ready(running)
        except BaseException:
            running.stop()
            raise
        return running

    def folder_to_run_in(self, folder: Path) -> Path:
        """The working directory of the router; its own folder unless a subclass needs another."""
        return folder


def wait_ready(running: Running, within_s: float = READY_WITHIN_S) -> None:
    """Return when the router has relayed a few chat completions in a row; DriverError when it never does."""
    deadline = time.monotonic() + within_s
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1})
    good = 0
    seen = "nothing"
    while good < CONSECUTIVE_REPLIES:
        if running.process.poll() is not None:
            raise DriverError(f"exited with {running.process.returncode}: {tail(running.log)}")
        if time.monotonic() > deadline:
            raise DriverError(f"not ready after {within_s:.0f} s (last: {seen}): {tail(running.log)}")
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            status = connection.getresponse().status
            seen = f"status {status}"
        except (OSError, http.client.HTTPException) as error:
            status, seen = 0, repr(error)
        finally:
            connection.close()
        good = good + 1 if status == 200 else 0
        if not good:
            time.sleep(0.05)


def tail(log: Path, size: int = 1500) -> str:
    """The end of a router's output."""
    return log.read_bytes()[-size:].decode(errors="replace").strip()
