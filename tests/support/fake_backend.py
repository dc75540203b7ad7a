"""A backend on a raw socket that does exactly what a test tells it, and remembers everything it saw.

Owns the server side of a test: scripts for each path, listening and dying on command, what arrived and when.
Knows nothing of stickyroute. A *canary* is a listener that must never be contacted.
"""

from __future__ import annotations

import asyncio
import gzip as gzip_module
import hashlib
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

Script = Callable[["Call"], Awaitable[None]]
Fields = Sequence[tuple[str, str]]

PROBES = {"/v1/models", "/health", "/metrics"}
EVENT = b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class PeerGone(ConnectionError):
    """The peer closed its connection while a script was still answering."""


class Call:
    """One request as it arrived, and the means to answer it. Scripts get this object; tests read it later."""

    def __init__(self, connection: _Connection, head: bytes) -> None:
        self.connection = connection
        self.fake = connection.fake
        self.head = head
        self.arrived_s = asyncio.get_running_loop().time()
        lines = head[:-4].split(b"\r\n")
        method, target, version = lines[0].split(b" ")
        self.method, self.target, self.version = method.decode(), target.decode("latin-1"), version
        self.path = self.target.partition("?")[0]
        pairs = [line.partition(b":") for line in lines[1:]]
        self.fields = [(n.decode("latin-1"), v.strip().decode("latin-1")) for n, _, v in pairs]
        self.body = b""
        self.gone = asyncio.Event()
        """Set the moment the peer closes or resets."""
        self.gone_s: float | None = None
        self.finished = asyncio.Event()
        """Set when the script ran to its end."""
        self._chunked = False

    def all(self, name: str) -> list[str]:
        """Every value of a field, in order."""
        return [value for given, value in self.fields if given.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        """The value of a field that may come once at most."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def names(self) -> set[str]:
        return {name.lower() for name, _ in self.fields}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()

    @property
    def request_id(self) -> str | None:
        return self.get("x-request-id")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    # Answering.

    async def send(self, data: bytes) -> None:
        """Write raw bytes and wait until the transport takes more. Raises PeerGone."""
        await self.connection.send(data)

    def head_of(self, status: int, fields: Fields, framing: str, length: int | None) -> bytes:
        """A reply's head. `framing`: length, chunked, close or none."""
        lines = [f"HTTP/1.1 {status} Whatever"]
        lines += [f"{name}: {value}" for name, value in fields]
        self._chunked = framing == "chunked"
        if framing == "length":
            lines.append(f"Content-Length: {length}")
        elif framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif framing == "close":
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def start(
        self, status: int = 200, fields: Fields = (), *, framing: str = "chunked", length: int | None = None
    ) -> None:
        """Send a reply's head."""
        await self.send(self.head_of(status, fields, framing, length))

    async def piece(self, data: bytes) -> None:
        """Send a piece of body in the framing that was chosen."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def end(self, framing: str = "chunked", trailers: bytes = b"") -> None:
        """End the body in its framing."""
        if framing == "chunked":
            await self.send(b"0\r\n" + trailers + b"\r\n")
        elif framing == "close":
            self.close()

    def close(self) -> None:
        """Close in good order, after what was written."""
        self.connection.transport.close()

    def reset(self) -> None:
        """Close with a TCP reset. What was written and not yet sent is lost, as it would be."""
        reset(self.connection.transport)


class _Connection(asyncio.Protocol):
    """Parses requests one by one and runs the script of each; notices at once when its peer leaves."""

    def __init__(self, fake: FakeBackend) -> None:
        self.fake = fake
        self.buffer = bytearray()
        self.call: Call | None = None
        self.task: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost = False
        self.served = 0
        self.idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.fake.connections.append(self)
        if self.fake.rcvbuf is not None:
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, self.fake.rcvbuf
            )
        if self.fake.refuse_reading:
            self.transport.pause_reading()
        self.fake.changed()

    def data_received(self, data: bytes) -> None:
        if self.call is not None and self.call.method == "UPGRADED":
            self.fake.tunnelled += data
            self.fake.changed()
            return
        self.buffer += data
        self._next()

    def _next(self) -> None:
        if self.task is not None and not self.task.done():
            return
        if self.call is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self.call = Call(self, bytes(self.buffer[: end + 4]))
            del self.buffer[: end + 4]
        call = self.call
        if call.all("transfer-encoding"):
            body = self._chunks()
            if body is None:
                return
            call.body = body
        else:
            length = int(call.get("content-length") or 0)
            if len(self.buffer) < length:
                return
            call.body = bytes(self.buffer[:length])
            del self.buffer[:length]
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self.fake.note(call)
        self.task = asyncio.get_running_loop().create_task(self._answer(call), name=f"answer {call.target}")

    def _chunks(self) -> bytes | None:
        body, at = bytearray(), 0
        while True:
            line = self.buffer.find(b"\r\n", at)
            if line < 0:
                return None
            size = int(self.buffer[at:line].partition(b";")[0], 16)
            at = line + 2
            if size == 0:
                stop = self.buffer.find(b"\r\n", at)
                if stop < 0:
                    return None
                del self.buffer[: stop + 2]
                return bytes(body)
            if len(self.buffer) < at + size + 2:
                return None
            body += self.buffer[at : at + size]
            at += size + 2

    async def _answer(self, call: Call) -> None:
        try:
            await self.fake.script_for(call)(call)
        except PeerGone:
            return
        call.finished.set()
        self.fake.completed.append(call)
        self.fake.changed()
        self.served += 1
        if self.call is not None and self.call.method == "UPGRADED":
            return
        self.call = None
        if self.lost:
            return
        if self.fake.idle_close_s is not None:
            self.idle_timer = asyncio.get_running_loop().call_later(
                self.fake.idle_close_s, self.transport.close
            )
        if self.buffer:
            asyncio.get_running_loop().call_soon(self._next)

    async def send(self, data: bytes) -> None:
        if not self.lost:
            self.transport.write(data)
            await self.writable.wait()
        if self.lost:
            raise PeerGone
        self.fake.sent_bytes += len(data)
        self.fake.changed()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def eof_received(self) -> bool:
        self._gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()
        self.writable.set()
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self.fake.changed()

    def _gone(self) -> None:
        self.lost = True
        if self.call is not None and not self.call.gone.is_set():
            self.call.gone_s = asyncio.get_running_loop().time()
            self.call.gone.set()
            self.fake.changed()


class FakeBackend:
    """The server. `on(path, script)` says how to answer; else a small JSON reply tells what arrived."""

    def __init__(
        self,
        name: str = "a",
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        idle_close_s: float | None = None,
        models: Iterable[str] = ("m",),
        models_status: int = 200,
    ) -> None:
        self.name = name
        self.host = host
        self.tls = tls
        self.idle_close_s = idle_close_s
        self.models: list[dict[str, Any]] = [{"id": model, "object": "model"} for model in models]
        self.models_status = models_status
        self.health_status = 200
        self.metrics_text = ""
        self.rcvbuf: int | None = None
        self.refuse_reading = False
        """Accept connections and never read from them."""
        self.port = 0
        self.requests: list[Call] = []
        """Everything but the proxy's own probes."""
        self.probes: list[Call] = []
        self.completed: list[Call] = []
        self.connections: list[_Connection] = []
        self.tunnelled = b""
        self.sent_bytes = 0
        """What peers have taken, but for what one transport buffers."""
        self._scripts: dict[str, Script] = {}
        self._server: asyncio.Server | None = None
        self._change = asyncio.Event()

    # Life.

    async def listen(self) -> FakeBackend:
        """Accept connections; on the same port as before, when there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self.host, self.port, ssl=self.tls, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones live on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.sleep(0)

    def drop_idle(self) -> None:
        """Close the connections on which nothing is being answered."""
        for connection in self.open:
            if connection.task is None or connection.task.done():
                connection.transport.close()

    async def die(self) -> None:
        """Stop listening and reset every connection, as a killed process does."""
        await self.refuse()
        for connection in self.open:
            if connection.task is not None:
                connection.task.cancel()
            reset(connection.transport)

    async def close(self) -> None:
        """Stop everything in good order."""
        await self.refuse()
        tasks = [c.task for c in self.connections if c.task is not None and not c.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self.open:
            connection.transport.abort()
        await asyncio.sleep(0)

    # Telling it what to do.

    def on(self, path: str, *scripts: Script) -> None:
        """How to answer a path ("*": all others). Several scripts are used in turn, the last for good."""
        left = list(scripts)

        async def in_turn(call: Call) -> None:
            await (left.pop(0) if len(left) > 1 else left[0])(call)

        self._scripts[path] = in_turn

    def script_for(self, call: Call) -> Script:
        script = self._scripts.get(call.path)
        if script is None and call in self.probes:
            return self._probe
        return script or self._scripts.get("*", echo)

    async def _probe(self, call: Call) -> None:
        if call.path == "/v1/models":
            rows = json.dumps({"object": "list", "data": self.models}).encode()
            await reply(self.models_status, rows)(call)
        elif call.path == "/health":
            await reply(self.health_status, b"")(call)
        else:
            await reply(200, self.metrics_text.encode(), fields=[("Content-Type", "text/plain")])(call)

    # What it saw.

    def note(self, call: Call) -> None:
        probe = call.method == "GET" and any(call.path.endswith(path) for path in PROBES)
        (self.probes if probe else self.requests).append(call)
        self.changed()

    def changed(self) -> None:
        self._change.set()

    async def until(self, true: Callable[[], object], timeout_s: float = 10) -> None:
        """Wait until `true()` holds, looked at whenever something happens here."""
        async with asyncio.timeout(timeout_s):
            while not true():
                self._change.clear()
                await self._change.wait()

    async def arrived(self, count: int = 1, timeout_s: float = 10) -> Call:
        """Wait for the `count`-th request; returns it."""
        await self.until(lambda: len(self.requests) >= count, timeout_s)
        return self.requests[count - 1]

    @property
    def open(self) -> list[_Connection]:
        return [connection for connection in self.connections if not connection.lost]

    @property
    def executed(self) -> list[str | None]:
        """The request ids that were begun here, in order."""
        return [call.request_id for call in self.requests]

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """This backend as an entry of the configuration."""
        return {"name": self.name, "url": self.url, **more}


@asynccontextmanager
async def fakes(*names: str, **options: Any) -> Any:
    """Listening fake backends, one for each name."""
    backends = [await FakeBackend(name, **options).listen() for name in names or ("a",)]
    try:
        yield backends if len(backends) > 1 else backends[0]
    finally:
        for backend in backends:
            await backend.close()


class Canary:
    """A listener that must never be contacted."""

    def __init__(self) -> None:
        self.contacts = 0

    async def __aenter__(self) -> Self:
        def contacted() -> asyncio.Protocol:
            self.contacts += 1
            return asyncio.Protocol()

        self._server = await asyncio.get_running_loop().create_server(contacted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.sleep(0)


def reset(transport: Any) -> None:
    """Close a connection with a TCP reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


# Scripts.


async def echo(call: Call) -> None:
    """A small JSON reply that tells who answered and what arrived."""
    told = {
        "object": "chat.completion",
        "backend": call.fake.name,
        "sha256": call.sha256,
        "target": call.target,
    }
    await reply(200, json.dumps(told).encode())(call)


def reply(
    status: int = 200,
    body: bytes = b'{"ok":true}',
    *,
    fields: Fields = (("Content-Type", "application/json"),),
    framing: str = "length",
    gzip: bool = False,
) -> Script:
    """One reply, whole, in the given framing."""
    if gzip:
        body = gzip_module.compress(body)
        fields = [*fields, ("Content-Encoding", "gzip")]

    async def script(call: Call) -> None:
        head = call.head_of(status, fields, framing, len(body))
        if framing == "length":
            await call.send(head if call.method == "HEAD" else head + body)
            return
        await call.send(head)
        if body and call.method != "HEAD":
            await call.piece(body)
        await call.end(framing)

    return script


def stream(
    events: Sequence[bytes],
    *,
    gap_s: float = 0,
    first_s: float = 0,
    then: str = "end",
    framing: str = "chunked",
    fields: Fields = (("Content-Type", "text/event-stream"),),
) -> Script:
    """Events one by one. `then`: end, reset, close or hang."""

    async def script(call: Call) -> None:
        await asyncio.sleep(first_s)
        await call.start(200, fields, framing=framing, length=sum(map(len, events)))
        for i, event in enumerate(events):
            if i:
                await asyncio.sleep(gap_s)
            await call.piece(event)
        await finish(call, then, framing)

    return script


async def finish(call: Call, then: str, framing: str = "chunked") -> None:
    """End an answer one way or another."""
    if then == "end":
        await call.end(framing)
    elif then == "reset":
        await asyncio.sleep(0.02)  # a reset throws away what the kernel has not sent yet
        call.reset()
        raise PeerGone
    elif then == "close":
        call.close()
        raise PeerGone
    else:
        await call.gone.wait()
        raise PeerGone


def events(count: int) -> list[bytes]:
    """SSE events like an engine's, and the final one."""
    return [EVENT % i for i in range(count)] + [DONE]


def silent() -> Script:
    """Take the request and say nothing until the peer leaves."""
    return lambda call: finish(call, "hang")


def drop(then: str = "close") -> Script:
    """Take the request and end the connection without a byte."""
    return lambda call: finish(call, then)


def raw(data: bytes, then: str = "close") -> Script:
    """These bytes, whatever they mean."""

    async def script(call: Call) -> None:
        await call.send(data)
        if then != "keep":
            await finish(call, then)

    return script


def held(gate: asyncio.Event, script: Script = echo) -> Script:
    """Answer once the test opens the gate, or give up when the peer leaves."""

    async def wait(call: Call) -> None:
        opened = asyncio.create_task(gate.wait())
        left = asyncio.create_task(call.gone.wait())
        await asyncio.wait({opened, left}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        left.cancel()
        if call.gone.is_set():
            raise PeerGone
        await script(call)

    return wait
