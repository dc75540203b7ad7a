"""Starts stickyroute for a test: in this process, or as a process of its own.

Owns the start, the stop and the ports. `RunningProxy.metrics()` is what a scrape of the admin port says.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import traceback
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from stickyroute.app import App
from stickyroute.live.live import Origin
from stickyroute.live.reload import Reloader
from stickyroute.settings import Settings, load_settings
from tests.support.fake_backend import FakeBackend
from tests.support.forked import Forked
from tests.support.raw_client import RawClient, Response, request

ROOT = Path(__file__).parents[2]
_PORTS = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
INDEX = {"index_entries": 1 << 14}  # rather than megabytes, which take longer than most tests
Backends = Iterable[FakeBackend | dict[str, Any] | str]


class Samples:
    """One scrape. What is asked for is parsed, no more: a whole page takes longer than most tests."""

    def __init__(self, text: str) -> None:
        self._lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    def __len__(self) -> int:
        return len(self._lines)

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name whose labels include these."""
        lines = [line for line in self._lines if line.startswith((f"{name}{{", f"{name} "))]
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        samples = (sample for family in families for sample in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


class Proxy:
    """A running proxy, known by its two ports."""

    host = "127.0.0.1"
    port: int
    admin_port: int

    async def client(self, **options: Any) -> RawClient:
        """A new connection to the public port."""
        return await RawClient.connect(self.port, self.host, **options)

    async def ask(self, body: bytes | None = None, **options: Any) -> Response:
        """One request on a connection of its own."""
        async with await self.client() as client:
            return await client.ask(
                request(body, **options), method=options.get("method", "POST"), minor=options.get("minor", 1)
            )

    async def admin(self, path: str) -> Response:
        """A GET on the admin port."""
        async with await RawClient.connect(self.admin_port) as client:
            return await client.ask(
                request(method="GET", path=path, headers={"Connection": "close"}, host="localhost"),
                method="GET",
            )

    async def put_config(self, text: str, query: str = "", **headers: str) -> Response:
        """PUT /config on the admin port."""
        async with await RawClient.connect(self.admin_port) as client:
            ask = request(
                text.encode(),
                method="PUT",
                path=f"/config{query}",
                headers={"Connection": "close", "Content-Type": "application/yaml", **headers},
                host="localhost",
            )
            return await client.ask(ask, method="PUT")

    async def metrics(self) -> Samples:
        """What a scrape says now."""
        return Samples((await self.admin("/metrics")).body.decode())

    async def in_flight(self) -> float:
        return (await self.metrics()).sum("stickyroute_backend_in_flight")

    async def until_metrics(self, true: Callable[[Samples], object], timeout_s: float = 10) -> Samples:
        """Scrape until `true` holds."""
        async with asyncio.timeout(timeout_s):
            while not true(samples := await self.metrics()):
                await asyncio.sleep(0.01)
        return samples

    async def settled(self) -> None:
        """Wait until nothing is in flight."""
        await self.until_metrics(lambda samples: samples.sum("stickyroute_backend_in_flight") == 0)


class RunningProxy(Proxy):
    """In this process: `app` is at hand."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.port = app.port
        self.admin_port = app.admin_port


def entry(backend: FakeBackend | dict[str, Any] | str) -> dict[str, Any] | str:
    return backend.settings() if isinstance(backend, FakeBackend) else backend


@asynccontextmanager
async def run_proxy(backends: Backends, **settings: Any) -> AsyncIterator[RunningProxy]:
    """A proxy in front of `backends` on free ports of 127.0.0.1; `settings` as in the configuration file.

    An exception that reaches the event loop meanwhile, from a callback or a lost task, fails the test.
    """
    values = {**_PORTS, **settings, "sticky": {**INDEX, **settings.get("sticky", {})}}
    async with _running(App(Settings(backends=[entry(backend) for backend in backends], **values))) as proxy:
        yield proxy


@asynccontextmanager
async def run_configured(path: Path) -> AsyncIterator[RunningProxy]:
    """A proxy that goes by a file, as `stickyroute serve --config` does, on free ports of 127.0.0.1.

    It looks at the file a hundred times a second.
    """
    app = App(load_settings(path, _PORTS), Origin(path, _PORTS))
    app.reloader = Reloader(app.live, 0.01)
    async with _running(app) as proxy:
        yield proxy


@asynccontextmanager
async def _running(app: App) -> AsyncIterator[RunningProxy]:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    await app.start()
    try:
        yield RunningProxy(app)
    finally:
        await app.stop(0.0)
    assert not unhandled, "\n".join(_told(context) for context in unhandled)


def _told(context: dict[str, Any]) -> str:
    exception = context.get("exception")
    trace = traceback.format_exception(exception) if exception is not None else []
    return f"{context.get('message')}\n{''.join(trace)}"


class ServeProcess(Proxy):
    """`stickyroute serve` as a process of its own."""

    def __init__(self, process: Forked, stderr: asyncio.StreamReader) -> None:
        self.process = process
        self.lines: list[str] = []
        self._stderr = stderr
        self._started = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="stderr of stickyroute")

    async def _read(self) -> None:
        while line := await self._stderr.readline():
            self.lines.append(line.decode().rstrip())
            found = re.search(r"listening on .*port (\d+)\D.*admin on .*port (\d+)", self.lines[-1])
            if found:
                self.port, self.admin_port = int(found[1]), int(found[2])
                self._started.set()
        self._started.set()

    async def started(self, timeout_s: float = 20) -> None:
        async with asyncio.timeout(timeout_s):
            await self._started.wait()
        assert hasattr(self, "port"), "did not start:\n" + "\n".join(self.lines)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self, timeout_s: float = 20) -> int:
        """Wait for the process to end by itself."""
        code = await self.process.ended(timeout_s)
        async with asyncio.timeout(timeout_s):
            await self._reading
        return code

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.ended()
        await self._reading

    @property
    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def serve_process(
    backends: Backends, *arguments: str, env: dict[str, str] | None = None
) -> AsyncIterator[ServeProcess]:
    """`stickyroute serve` in front of `backends`, as a process of its own."""
    named = [
        f"{b['name']}={b['url']}" if isinstance(b, dict) else str(b)
        for b in (entry(backend) for backend in backends)
    ]
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    words = ["serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]
    words += [f"--backend={backend}" for backend in named]
    try:
        process = Forked(
            [*words, *arguments], (nothing, nothing, writing), {**os.environ, **(env or {})}, ROOT
        )
    finally:
        os.close(writing)
        os.close(nothing)
    stderr = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stderr), os.fdopen(reading, "rb", 0)
    )
    serve = ServeProcess(process, stderr)
    try:
        await serve.started()
        yield serve
    finally:
        await serve.close()
        transport.close()
