"""Many backends in this process, each on a port of its own, and the proxy in front of them as a process.

Owns the ports, the start and the end; what is measured is its users'.
"""

from __future__ import annotations

import asyncio
import collections
import json
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests" / "data" / "captures" / "vllm2-metrics-after-evict.txt"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","max_model_len":32768}]}'
PORTS = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
IDLE_S = 5.0


class Backend(asyncio.Protocol):
    """One connection to one of the backends; `asked` counts by path. With `close` it is closed after each answer."""

    def __init__(
        self, answers: dict[bytes, bytes], asked: collections.Counter[bytes], close: bool = False
    ) -> None:
        self._answers = answers
        self._asked = asked
        self._close = close
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._asked[b"connections"] += 1

    def data_received(self, data: bytes) -> None:
        path = data.split(b" ", 2)[1]
        self._asked[path] += 1
        self._transport.write(self._answers[path])
        if self._close:
            self._transport.close()
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()


def answers() -> dict[bytes, bytes]:
    """What a vLLM engine says to whoever watches it."""
    bodies = {b"/metrics": PAGE.read_bytes(), b"/health": b"", b"/v1/models": MODELS}
    return {
        path: b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for path, body in bodies.items()
    }


@asynccontextmanager
async def many(count: int, backend: Callable[[], Backend]) -> AsyncIterator[list[dict[str, Any]]]:
    """So many backends, as a configuration names them."""
    loop = asyncio.get_running_loop()
    members = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            sock = socket.socket()
            sock.bind(("127.0.0.1", 0))
            server = await loop.create_server(backend, sock=sock)
            stack.callback(server.close)
            members.append({"name": f"b{number}", "url": f"http://127.0.0.1:{sock.getsockname()[1]}"})
        yield members


class Served(NamedTuple):
    """A running `stickyroute serve`."""

    pid: int
    port: int
    admin_port: int


@asynccontextmanager
async def stickyroute(members: Sequence[dict[str, Any]]) -> AsyncIterator[Served]:
    """`stickyroute serve` in front of `members`, with all other settings as they are by default. Raises SystemExit when
    it does not start."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        json.dump({**PORTS, "backends": members}, config)
        config.flush()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stickyroute", "serve", "--config", config.name,
            cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        reading = None
        try:
            assert process.stderr is not None
            told = b""
            while (found := re.search(rb"port (\d+)\).*port (\d+)\)", told)) is None:
                line = await process.stderr.readline()
                told += line
                if not line:
                    raise SystemExit("stickyroute did not start: " + told.decode())
            reading = asyncio.create_task(process.stderr.read(), name="stderr")
            yield Served(process.pid, int(found[1]), int(found[2]))
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            if reading is not None:
                await reading
