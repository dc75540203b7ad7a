"""One request as it arrived at a fake backend, and the means to answer it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.fake_backend.connection import Connection

Script = Callable[["Call"], Awaitable[None]]
Fields = Sequence[tuple[str, str]]


class PeerGone(ConnectionError):
    """The peer closed its connection while a script was still answering."""


class Call:
    """One request as it arrived, and the means to answer it. Scripts get this object; tests read it later."""

    def __init__(self, connection: Connection, head: bytes) -> None:
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


def reset(transport: Any) -> None:
    """Close a connection with a TCP reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
