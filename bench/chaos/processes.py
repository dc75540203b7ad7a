"""The processes of a run: engines and replicas of the proxy, and the configuration file that the replicas share."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def http(
    port: int, method: str, path: str, body: bytes = b"", timeout_s: float = 5.0
) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(
                b"%b %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
                % (method.encode(), path.encode(), port, len(body), body)
            )
            reply = await reader.read()
        finally:
            writer.close()
    head, _, rest = reply.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), rest


class Process:
    """A child with its stderr in a file."""

    def __init__(self, name: str, arguments: list[str], log: Path, ready: bytes) -> None:
        self.name = name
        self._arguments = arguments
        self.log = log
        self._ready = ready
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            start = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *self._arguments, cwd=ROOT, stdout=log, stderr=log
            )
        async with asyncio.timeout(120):
            while self._ready not in self.log.read_bytes()[start:]:
                if self.process.returncode is not None:
                    raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")
                await asyncio.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            os.kill(self.process.pid, number)

    async def ended(self, timeout_s: float = 60.0) -> int:
        assert self.process is not None
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.signal(signal.SIGKILL)
            await self.process.wait()


class Engine(Process):
    """A simulated engine on a port that it keeps."""

    def __init__(self, number: int, folder: Path, speedup: float) -> None:
        self.number = number
        self.port = free_port()
        self.requests = folder / f"engine{number}.requests"
        arguments = ["-m", "bench.chaos.engine", str(self.port), str(self.requests), str(speedup)]
        super().__init__(f"engine{number}", arguments, folder / f"engine{number}.log", b"ready")

    async def fault(self, **fault: Any) -> None:
        await http(self.port, "POST", "/sim/faults", json.dumps(fault).encode())

    async def heal(self) -> None:
        await http(self.port, "DELETE", "/sim/faults")


class Replica(Process):
    """A replica of the proxy. `port` is the public one."""

    def __init__(self, number: int, folder: Path, config: Path) -> None:
        self.number = number
        self.port, self.admin_port = free_port(), free_port()
        arguments = [
            "-m", "stickyroute", "serve", "--config", str(config),
            f"--listen=127.0.0.1:{self.port}", f"--admin-listen=127.0.0.1:{self.admin_port}",
        ]  # fmt: skip
        super().__init__(f"replica{number}", arguments, folder / f"replica{number}.log", b"listening on")

    async def fleet(self) -> dict[str, Any]:
        """What /fleet says of each backend, by name; empty while the replica is away."""
        try:
            status, body = await http(self.admin_port, "GET", "/fleet", timeout_s=2.0)
        except (OSError, TimeoutError, IndexError):
            return {}
        return {b["name"]: b for b in json.loads(body)["backends"]} if status == 200 else {}


class Configuration:
    """The file that both replicas watch. `names` of engines by number, `weights`, and who is left out."""

    def __init__(self, path: Path, engines: list[Engine], policy: str) -> None:
        self.path = path
        self._engines = engines
        self._policy = policy
        self.names = {engine.number: f"e{engine.number}" for engine in engines}
        self.weights = {engine.number: 1 for engine in engines}
        self.absent: set[int] = set()

    def text(self) -> str:
        lines = [f"policy: {self._policy}", "response_headers: true", "scrape: {interval_s: 1}", "backends:"]
        lines += [
            f"  - {{name: {self.names[e.number]}, url: 'http://127.0.0.1:{e.port}', weight: {self.weights[e.number]}}}"
            for e in self._engines
            if e.number not in self.absent
        ]
        return "\n".join(lines) + "\n"

    def write(self, text: str | None = None) -> None:
        """Put it in place whole, as editors and ConfigMaps do."""
        new = self.path.with_suffix(".new")
        new.write_text(self.text() if text is None else text)
        os.replace(new, self.path)
