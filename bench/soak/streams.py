"""Thousands of slow streams through one stickyroute process: `python -m bench.soak.streams --streams 2000`.

Processes: backends that send one event every `--gap-s`, `stickyroute serve`, and this one as the clients, who
all keep their stream open at the same time. Prints errors, growth of the proxy's resident memory a stream at
the widest point, and how long /healthz takes meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import uvloop

ROOT = Path(__file__).parents[2]
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk",'
    b'"choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


@dataclass(frozen=True, slots=True)
class SoakResult:
    """`whole`: streams that ended with the last event; `errors`: all others. Times in seconds."""

    streams: int
    whole: int
    errors: int
    error_samples: list[str]
    events: int
    rss_idle_bytes: int
    rss_wide_bytes: int
    rss_bytes_per_stream: float
    healthz_p50_s: float
    healthz_p99_s: float
    healthz_max_s: float
    health_public_p99_s: float
    cpu_us_per_event: float
    wall_s: float


class _Engine(asyncio.Protocol):
    """One connection of the backend: any POST is a stream of slow events."""

    def __init__(self, events: int, gap_s: float) -> None:
        self._events, self._gap_s = events, gap_s
        self._left = 0
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but ancestry

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = re.search(rb"(?i)\ncontent-length: (\d+)", head)
        if length and len(body) < int(length[1]):
            return
        self._buffer = b""
        if head.startswith(b"GET"):
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(MODELS) + MODELS)
            return
        self._left = self._events
        self._transport.write(HEAD)
        self._next()

    def _next(self) -> None:
        event = EVENT if self._left else DONE
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        if not self._left:
            self._transport.write(b"0\r\n\r\n")
            return
        self._left -= 1
        self._timer = asyncio.get_running_loop().call_later(self._gap_s, self._next)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Client(asyncio.Protocol):
    """One client: sends a request and reads until the reply is complete."""

    def __init__(self, user: int) -> None:
        body = json.dumps(
            {
                "model": "m",
                "stream": True,
                "user": f"u{user}",
                "messages": [{"role": "user", "content": "hello " * 40}],
            }
        ).encode()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        self.events = 0
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.error = ""
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but ancestry
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun.is_set():
            if not data.startswith(b"HTTP/1.1 200"):
                self.error = data[:200].decode("latin-1")
            self.begun.set()
        self.events += data.count(b"data: ")
        self._tail = (self._tail + data)[-40:]
        if self._tail.endswith(DONE + b"\r\n0\r\n\r\n"):
            self.over.set()
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set():
            self.error = self.error or f"cut after {self.events} events: {exc!r}"
        self.begun.set()
        self.over.set()


async def _get(port: int, path: str) -> float:
    """Seconds that one GET on a new connection takes."""
    began_s = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    status = await reader.readline()
    await reader.read()
    writer.close()
    if b" 200 " not in status:
        raise RuntimeError(f"GET {path}: {status!r}")
    return time.perf_counter() - began_s


async def _watch(port: int, path: str, times_s: list[float], stop: asyncio.Event) -> None:
    while not stop.is_set():
        times_s.append(await _get(port, path))
        await asyncio.sleep(0.05)


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _percentile(times_s: list[float], share: float) -> float:
    return sorted(times_s)[max(0, math.ceil(share * len(times_s)) - 1)]


async def _start(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def _serve_proxy(
    backends: list[int],
) -> tuple[asyncio.subprocess.Process, int, int, asyncio.Task[bytes]]:
    flags = [f"--backend=http://127.0.0.1:{port}" for port in backends]
    proxy = await _start(
        "-m", "stickyroute", "serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", *flags
    )
    assert proxy.stderr is not None
    while line := (await proxy.stderr.readline()).decode():
        found = re.search(r"listening on .*port (\d+)\D.*admin on .*port (\d+)", line)
        if found:
            rest = asyncio.create_task(proxy.stderr.read(), name="stderr of stickyroute")
            return proxy, int(found[1]), int(found[2]), rest
    raise RuntimeError("stickyroute did not start")


async def soak(*, streams: int, events: int, gap_s: float, backends: int = 2) -> SoakResult:
    """Run it once. Needs about 2 file descriptors a stream here and in the proxy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    running: list[asyncio.subprocess.Process] = []
    stop = asyncio.Event()
    try:
        ports = []
        for _ in range(backends):
            engine = await _start(
                "-m", "bench.soak.streams", "--engine", f"--events={events}", f"--gap-s={gap_s}"
            )
            running.append(engine)
            assert engine.stdout is not None
            ports.append(int(await engine.stdout.readline()))
        proxy, port, admin_port, _ = await _serve_proxy(ports)
        running.append(proxy)
        return await _drive(proxy.pid, port, admin_port, streams, stop)
    finally:
        stop.set()
        for process in running:
            if process.returncode is None:
                process.terminate()
        for process in running:
            await process.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _drive(pid: int, port: int, admin_port: int, streams: int, stop: asyncio.Event) -> SoakResult:
    loop = asyncio.get_running_loop()
    warm = [_Client(user) for user in range(5)]  # so that lazy imports and caches are not counted
    for client in warm:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    await asyncio.gather(*(client.begun.wait() for client in warm))
    rss_idle, cpu_before_s, began_s = _rss_bytes(pid), _cpu_s(pid), time.perf_counter()
    admin_s: list[float] = []
    public_s: list[float] = []
    watchers = [
        asyncio.create_task(_watch(admin_port, "/healthz", admin_s, stop), name="healthz"),
        asyncio.create_task(_watch(port, "/health", public_s, stop), name="health"),
    ]
    clients = [_Client(user) for user in range(streams)]
    for start in range(0, streams, 100):
        batch = clients[start : start + 100]
        await asyncio.gather(*(loop.create_connection(lambda c=c: c, "127.0.0.1", port) for c in batch))
    await asyncio.gather(*(client.begun.wait() for client in clients))
    rss_wide = _rss_bytes(pid)
    await asyncio.gather(*(client.over.wait() for client in clients))
    wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(pid) - cpu_before_s
    stop.set()
    await asyncio.gather(*watchers)
    bad = [client.error for client in clients if client.error]
    total = sum(client.events for client in clients)
    return SoakResult(
        streams=streams,
        whole=streams - len(bad),
        errors=len(bad),
        error_samples=sorted(set(bad))[:5],
        events=total,
        rss_idle_bytes=rss_idle,
        rss_wide_bytes=rss_wide,
        rss_bytes_per_stream=(rss_wide - rss_idle) / streams,
        healthz_p50_s=statistics.median(admin_s),
        healthz_p99_s=_percentile(admin_s, 0.99),
        healthz_max_s=max(admin_s),
        health_public_p99_s=_percentile(public_s, 0.99),
        cpu_us_per_event=cpu_s / total * 1e6,
        wall_s=wall_s,
    )


async def _engine(events: int, gap_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: _Engine(events, gap_s), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Run one soak and print its result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--events", type=int, default=60)
    parser.add_argument("--gap-s", type=float, default=0.5)
    parser.add_argument("--backends", type=int, default=2)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        uvloop.run(_engine(args.events, args.gap_s))
        return
    result = uvloop.run(
        soak(streams=args.streams, events=args.events, gap_s=args.gap_s, backends=args.backends)
    )
    print(json.dumps(asdict(result), indent=2))


if __name__ == "__main__":
    main()
