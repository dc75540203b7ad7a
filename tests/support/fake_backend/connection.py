"""The wire of a fake backend: requests parsed one by one, the script of each run, a peer's leaving noticed."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from tests.support.fake_backend.call import Call, PeerGone

if TYPE_CHECKING:
    from tests.support.fake_backend.server import FakeBackend


class Connection(asyncio.Protocol):
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
            # uvloop begins to read when this callback has returned, whatever it did.
            asyncio.get_running_loop().call_soon(transport.pause_reading)
        self.fake.changed()

    def data_received(self, data: bytes) -> None:
        if self.fake.refuse_reading:
            return
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
