"""A client on a raw socket: sends any bytes, reads one reply at a time and is strict about its framing.

Owns nothing but its connection. A reply that breaks HTTP's rules raises BadFraming; one that was cut raises
Truncated with what had arrived, so that a test can tell the two from a complete reply.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tests.support.fake_backend import reset

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
TIMEOUT_S = 15.0


class BadFraming(AssertionError):
    """A reply that is not one valid HTTP/1.1 message."""


class Truncated(Exception):
    """The connection ended inside a reply. `reset` tells a TCP reset from an orderly close."""

    def __init__(self, response: Response | None, raw: bytes, was_reset: bool) -> None:
        super().__init__(f"cut after {len(response.body) if response else 0} bytes of body, raw {raw[:80]!r}")
        self.response = response
        self.raw = raw
        self.reset = was_reset


class Response:
    """One reply. `pieces` are (arrival in loop seconds, bytes): chunks, or the reads of another body."""

    def __init__(self, minor: int, status: int, reason: bytes, fields: list[tuple[str, str]]) -> None:
        self.minor, self.status, self.reason, self.fields = minor, status, reason, fields
        self.pieces: list[tuple[float, bytes]] = []
        self.framing = "none"
        self.informational: list[Response] = []
        self.trailers: list[tuple[str, str]] = []
        self.head_s = 0.0

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for given, value in self.fields if given == name.lower()]

    def get(self, name: str) -> str | None:
        """The value of a field that may come once at most."""
        values = self.all(name)
        if len(values) > 1:
            raise BadFraming(f"{name} came {len(values)} times: {values}")
        return values[0] if values else None

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def backend(self) -> str:
        """The fake that answered, by its own word."""
        return str(self.json["backend"])

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this reply."""
        tokens = {token.strip().lower() for value in self.all("connection") for token in value.split(",")}
        return "close" in tokens or (self.minor == 0 and "keep-alive" not in tokens)


class RawClient(asyncio.Protocol):
    """One connection. Use as `async with`, or `await connect(...)` and `close()`."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[float, bytes]] = deque()
        self._news = asyncio.Event()
        self._buffer = bytearray()
        self._now_s = 0.0
        self.ended = asyncio.Event()
        """Set when the peer closed or reset."""
        self.was_reset = False

    @classmethod
    async def connect(
        cls,
        port: int,
        host: str = "127.0.0.1",
        *,
        tls: ssl.SSLContext | None = None,
        rcvbuf: int | None = None,
        name: str | None = None,
    ) -> RawClient:
        """Open a connection. `rcvbuf`: bytes of the kernel's receive buffer, for a slow reader."""
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        if rcvbuf is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        try:
            await loop.sock_connect(sock, (host, port))
            _, client = await loop.create_connection(
                cls, sock=sock, ssl=tls, server_hostname=(name or host) if tls else None
            )
        except BaseException:
            sock.close()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived.append((asyncio.get_running_loop().time(), data))
        self._news.set()

    def eof_received(self) -> bool:
        self.ended.set()
        self._news.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.was_reset = isinstance(exc, ConnectionError)
        self.ended.set()
        self._news.set()

    # Sending and leaving.

    def send(self, data: bytes) -> None:
        """Write bytes as they are; nothing once the connection has ended."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Leave now."""
        self.transport.abort()

    def reset(self) -> None:
        """Leave with a TCP reset."""
        reset(self.transport)

    def stop_reading(self) -> None:
        """Let the kernel's buffers fill up."""
        self.transport.pause_reading()

    def read_again(self) -> None:
        """Take what has piled up."""
        self.transport.resume_reading()

    # Reading.

    async def _more(self) -> bool:
        """Take one more read into the buffer; False when the peer has ended."""
        while not self._arrived:
            if self.ended.is_set():
                return False
            self._news.clear()
            await self._news.wait()
        self._now_s, data = self._arrived.popleft()
        self._buffer += data
        return True

    async def _line(self, response: Response | None) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if not await self._more():
                raise Truncated(response, bytes(self._buffer), self.was_reset)
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        if not line.endswith(b"\r\n"):
            raise BadFraming(f"a line does not end in CRLF: {line!r}")
        return line[:-2]

    async def _exactly(self, size: int, response: Response, *, as_they_come: bool) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            if not self._buffer and not await self._more():
                if not as_they_come and taken:
                    response.pieces.append((self._now_s, bytes(taken)))
                raise Truncated(response, bytes(self._buffer), self.was_reset)
            part = bytes(self._buffer[: size - len(taken)])
            del self._buffer[: len(part)]
            taken += part
            if as_they_come:
                response.pieces.append((self._now_s, part))
        return bytes(taken)

    async def _fields(self, response: Response | None) -> list[tuple[str, str]]:
        fields = []
        while line := await self._line(response):
            name, colon, value = line.partition(b":")
            if not colon or not _TOKEN.fullmatch(name):
                raise BadFraming(f"not a field: {line!r}")
            if b"\r" in value or b"\0" in value:
                raise BadFraming(f"a control character in a field: {line!r}")
            fields.append((name.decode().lower(), value.strip(b" \t").decode("latin-1")))
        return fields

    async def head(self, *, minor: int = 1, method: str = "POST") -> Response:
        """Read the head of the next reply that is not a 1xx; check that it has one framing only."""
        passed: list[Response] = []
        while True:
            line = await self._line(None)
            match = re.fullmatch(rb"HTTP/1\.([01]) ([1-9]\d\d) ([^\0\r]*)", line)
            if not match:
                raise BadFraming(f"not a status line: {line!r}")
            fields = await self._fields(None)
            response = Response(int(match[1]), int(match[2]), match[3], fields)
            response.head_s = self._now_s
            self._check(response, minor, method)
            if response.status >= 200 or response.status == 101:
                response.informational = passed
                return response
            if minor == 0:
                raise BadFraming("a 1xx reply to an HTTP/1.0 client")
            passed.append(response)

    @staticmethod
    def _check(response: Response, minor: int, method: str) -> None:
        length, coding = response.get("content-length"), response.get("transfer-encoding")
        if length is not None and coding is not None:
            raise BadFraming("both Content-Length and Transfer-Encoding")
        if coding is not None and (coding.lower() != "chunked" or minor == 0):
            raise BadFraming(f"Transfer-Encoding: {coding} to an HTTP/1.{minor} client")
        if length is not None and not length.isdigit():
            raise BadFraming(f"Content-Length: {length}")
        status = response.status
        if status < 200 or status == 204:
            if length is not None or coding is not None:
                raise BadFraming(f"a {status} with framing fields")
        elif status == 304 or method == "HEAD":
            pass
        elif coding is not None:
            response.framing = "chunked"
        elif length is not None:
            response.framing = "length"
        else:
            response.framing = "close"
            if not response.closes:
                raise BadFraming("no framing on a connection that stays open")

    async def body(self, response: Response, *, stop_after: int | None = None) -> Response:
        """Read the body of a reply whose head was read; `stop_after` so many chunks of a chunked one."""
        if response.framing == "length":
            await self._exactly(int(response.get("content-length") or 0), response, as_they_come=True)
        elif response.framing == "close":
            while self._buffer or await self._more():
                response.pieces.append((self._now_s, bytes(self._buffer)))
                self._buffer.clear()
            if self.was_reset:
                raise Truncated(response, b"", True)
        elif response.framing == "chunked":
            while stop_after is None or len(response.pieces) < stop_after:
                line = await self._line(response)
                if not re.fullmatch(rb"[0-9a-fA-F]+", line):
                    raise BadFraming(f"not a chunk size: {line!r}")
                if not (size := int(line, 16)):
                    response.trailers = await self._fields(response)
                    break
                data = await self._exactly(size, response, as_they_come=False)
                response.pieces.append((self._now_s, data))
                if await self._line(response):
                    raise BadFraming("a chunk is longer than its size")
        return response

    async def response(
        self, *, minor: int = 1, method: str = "POST", timeout_s: float = TIMEOUT_S
    ) -> Response:
        """Read one whole reply. Raises Truncated, BadFraming, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await self.body(await self.head(minor=minor, method=method))

    async def ask(
        self, request: bytes, *, minor: int = 1, method: str = "POST", timeout_s: float = TIMEOUT_S
    ) -> Response:
        """Send a request, read its reply."""
        self.send(request)
        return await self.response(minor=minor, method=method, timeout_s=timeout_s)

    async def rest(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """Everything until the peer ends the connection."""
        async with asyncio.timeout(timeout_s):
            while await self._more():
                pass
        left = bytes(self._buffer)
        self._buffer.clear()
        return left

    async def read(self, size: int, timeout_s: float = TIMEOUT_S) -> bytes:
        """Exactly `size` raw bytes."""
        async with asyncio.timeout(timeout_s):
            while len(self._buffer) < size:
                if not await self._more():
                    raise Truncated(None, bytes(self._buffer), self.was_reset)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    @property
    def nothing_left(self) -> bool:
        """Whether no byte beyond what was read has arrived."""
        return not self._buffer and not self._arrived


Headers = Mapping[str, str] | Sequence[tuple[str, str]]
CHAT = "/v1/chat/completions"


def chat(text: str = "hello", *, model: str = "m", **more: Any) -> bytes:
    """The body of a chat request."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}], **more}).encode()


def request(
    body: bytes | None = None,
    *,
    path: str = CHAT,
    method: str = "POST",
    headers: Headers = (),
    minor: int = 1,
    chunks: Sequence[bytes] | None = None,
    host: str | None = "api.public",
) -> bytes:
    """A whole request. `chunks` sends the body chunked, in these pieces."""
    lines = [f"{method} {path} HTTP/1.{minor}"]
    if host is not None:
        lines.append(f"Host: {host}")
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if body is None and chunks is None and method == "POST":
        body = chat()
    if (body or chunks) and not any(name.lower() == "content-type" for name, _ in pairs):
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in pairs]
    if chunks is not None:
        lines.append("Transfer-Encoding: chunked")
        wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    else:
        wire = body or b""
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + wire
