"""What looking at a large fleet costs: `python -m bench.watching --backends 500 --seconds 30`.

Processes: this one serves every backend, each on a port of its own, with a real engine's page of metrics;
`stickyroute serve` watches them and has nothing else to do. Prints the share of a core that takes, settled, and
what was asked how often. `--close` has the backends close each connection after its answer, which is the most that
watching can cost; engines close theirs after 5 s without a question.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop

from bench.dataplane.cpu import cpu_s, rss_bytes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests" / "data" / "captures" / "vllm2-metrics-after-evict.txt"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","max_model_len":32768}]}'
IDLE_S = 5.0


class Backend(asyncio.Protocol):
    """One connection to one of the backends."""

    def __init__(self, answers: dict[bytes, bytes], asked: collections.Counter[bytes], close: bool) -> None:
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


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def measure(backends: int, seconds: float, settle_s: float, close: bool) -> dict[str, object]:
    page = PAGE.read_bytes()
    answers = {b"/metrics": answer(page), b"/health": answer(b""), b"/v1/models": answer(MODELS)}
    asked: collections.Counter[bytes] = collections.Counter()
    loop = asyncio.get_running_loop()
    servers, ports = [], []
    for _ in range(backends):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        servers.append(await loop.create_server(lambda: Backend(answers, asked, close), sock=sock))
        ports.append(sock.getsockname()[1])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\nbackends:\n")
        config.writelines(
            f"  - {{name: b{i}, url: 'http://127.0.0.1:{port}'}}\n" for i, port in enumerate(ports)
        )
        config.flush()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stickyroute", "serve", "--config", config.name,
            cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            told = b""
            while not re.search(rb"listening on", line := await process.stderr.readline()):
                told += line
                if not line:
                    raise SystemExit("stickyroute did not start: " + told.decode())
            drain = asyncio.create_task(process.stderr.read(), name="stderr")
            await asyncio.sleep(settle_s)
            asked.clear()
            cpu, began = cpu_s([process.pid]), time.monotonic()
            await asyncio.sleep(seconds)
            wall = time.monotonic() - began
            used = cpu_s([process.pid]) - cpu
            rss = rss_bytes([process.pid])
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        await drain
    for server in servers:
        server.close()
    return {
        "backends": backends,
        "page_bytes": len(page),
        "wall_s": round(wall, 1),
        "core_share": round(used / wall, 4),
        "a_second": {name.decode(): round(count / wall, 1) for name, count in sorted(asked.items())},
        "rss_mib": round(rss / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backends", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle-s", type=float, default=30.0, help="before it is measured")
    parser.add_argument("--close", action="store_true", help="a connection for each question")
    options = parser.parse_args()
    os.chdir(ROOT)
    result = uvloop.run(measure(options.backends, options.seconds, options.settle_s, options.close))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
