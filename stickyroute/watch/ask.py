"""One question to a backend at a time, with as little work as can be: GET over HTTP/1.1, connections kept for the
next question.

Owns the connections of the watchers, their credentials and TLS, and what can go wrong with a question. Must not
know what is asked or what an answer means. With hundreds of backends, each asked every few seconds, this is what
watching costs: aiohttp's client takes about 1 ms for the same, this a tenth of that.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import cast

import httptools

from stickyroute import __version__
from stickyroute.clock import monotonic
from stickyroute.fleet import BackendSpec
from stickyroute.watch.tls import backend_tls

__all__ = ["Answer", "AskFailed", "Asker", "tls_context"]

IDLE_S = 4.0
"""Engines (uvicorn) close a connection that was idle for 5 s."""
_OUR_WANT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a machine that has no descriptor, port or memory left: they say nothing about a backend."""
_HEAD = (
    "GET %s HTTP/1.1\r\nHost: %s\r\n%sUser-Agent: stickyroute/" + __version__ + "\r\n"
    "Accept: */*\r\nAccept-Encoding: identity\r\n\r\n"
)


class AskFailed(Exception):
    """No whole answer came. `refused`: no connection could be made, so that nobody listens there; `ours`: this
    machine has no descriptor, port or memory to ask with, which says nothing of the backend."""

    def __init__(self, why: str, *, refused: bool = False, ours: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.refused = refused
        self.ours = ours


class Answer:
    """`body` is None where it is longer than was allowed."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: bytes | None) -> None:
        self.status = status
        self.body = body


class _Line(asyncio.Protocol):
    """One connection; `answer` waits for the reply to the question under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[Answer] | None = None
        self.idle_since_s = 0.0
        self.keep = False
        self._limit_bytes = 0
        self._parser: httptools.HttpResponseParser | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, head: bytes, limit_bytes: int) -> asyncio.Future[Answer]:
        assert self.transport is not None
        self.keep = False
        self._limit_bytes = limit_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._size = 0
        self._heard = False
        self.answer = answer = asyncio.get_running_loop().create_future()
        self.transport.write(head)
        return answer

    @property
    def heard(self) -> bool:
        """Whether a byte of the reply has come."""
        return self._heard

    def data_received(self, data: bytes) -> None:
        if self.answer is None or self._parser is None:
            self.close()  # nobody asked
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the answer is not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        parser, answer = self._parser, self.answer
        self.transport = None
        if answer is None or answer.done():
            return
        # A body without a length ends with the connection.
        if exc is None and parser is not None and self._heard and parser.get_status_code() and not self.keep:
            self._finish()
        else:
            self._fail("the connection was closed")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._limit_bytes:
            self._body.append(data)
        else:
            self._body.clear()
            self._finish()
            self.close()

    def on_message_complete(self) -> None:
        parser = self._parser
        if parser is not None and parser.get_status_code() >= 200:
            self.keep = parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        answer, self.answer = self.answer, None
        if answer is not None and not answer.done() and self._parser is not None:
            whole = self._size <= self._limit_bytes
            status = self._parser.get_status_code()
            answer.set_result(Answer(status, b"".join(self._body) if whole else None))
        self._body = []

    def _fail(self, why: str) -> None:
        answer, self.answer = self.answer, None
        if answer is not None and not answer.done():
            answer.set_exception(AskFailed(why))
        self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


Contexts = dict[tuple[str | None, bool], ssl.SSLContext]
"""TLS that is made already, by CA file and whether certificates are checked. One takes 40 ms of CPU to make."""


class Asker:
    """Questions to one backend. `contexts` are shared with others. Raises ConfigError for an unreadable CA file."""

    def __init__(self, spec: BackendSpec, contexts: Contexts | None = None) -> None:
        self.spec = spec
        host = f"[{spec.host}]" if ":" in spec.host else spec.host
        usual = 443 if spec.scheme == "https" else 80
        self._authority = host if spec.port == usual else f"{host}:{spec.port}"
        self._credential = f"Authorization: Bearer {spec.api_key}\r\n" if spec.api_key else ""
        self._base_path = spec.base_path.rstrip("/")
        self._tls = tls_context(spec, {} if contexts is None else contexts)
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()

    async def get(self, path: str, *, timeout_s: float, limit_bytes: int) -> Answer:
        """Ask for `path`; `timeout_s` bounds all of it, connecting included. Raises AskFailed."""
        head = (_HEAD % (self._base_path + path, self._authority, self._credential)).encode()
        try:
            async with asyncio.timeout(timeout_s):
                line = self._idle_line()
                if line is not None:
                    try:
                        return await self._ask(line, head, limit_bytes)
                    except AskFailed:
                        if line.heard:
                            raise
                        # It was closed at the other end meanwhile, as engines do.
                return await self._ask(await self._connect(), head, limit_bytes)
        except TimeoutError:
            raise AskFailed("no answer in time") from None

    def close(self) -> None:
        """Drop every connection."""
        for line in (*self._idle, *self._busy):
            line.close()
        self._idle.clear()

    def _idle_line(self) -> _Line | None:
        oldest_s = monotonic() - IDLE_S
        while self._idle:
            line = self._idle.pop()
            transport = line.transport
            if transport is not None and not transport.is_closing() and line.idle_since_s > oldest_s:
                return line
            line.close()
        return None

    async def _ask(self, line: _Line, head: bytes, limit_bytes: int) -> Answer:
        self._busy.add(line)
        try:
            answer = await line.ask(head, limit_bytes)
        except BaseException:
            line.close()
            raise
        finally:
            self._busy.discard(line)
        if line.keep and line.transport is not None and not line.transport.is_closing():
            line.idle_since_s = now_s = monotonic()
            self._idle.append(line)
            while self._idle[0].idle_since_s < now_s - IDLE_S:
                self._idle.pop(0).close()
        else:
            line.close()
        return answer

    async def _connect(self) -> _Line:
        loop, spec = asyncio.get_running_loop(), self.spec
        try:
            _, line = await loop.create_connection(
                _Line,
                spec.host,
                spec.port,
                ssl=self._tls,
                server_hostname=spec.host if self._tls is not None else None,
            )
        except ssl.SSLError as error:
            raise AskFailed(f"cannot be reached: TLS: {error.reason or error}", refused=True) from None
        except OSError as error:
            if error.errno in _OUR_WANT:
                raise AskFailed(f"cannot be asked: {error}", ours=True) from None
            raise AskFailed(f"cannot be reached: {error.strerror or error}", refused=True) from None
        except UnicodeError:
            raise AskFailed("cannot be reached: its host is no name", refused=True) from None
        return line


def tls_context(spec: BackendSpec, contexts: Contexts) -> ssl.SSLContext | None:
    """How to speak to a backend with https, out of `contexts` or added to them; None for plain HTTP. Raises
    ConfigError."""
    if spec.scheme != "https":
        return None
    known = contexts.get((spec.ca, spec.tls_verify))
    if known is not None:
        return known
    context = contexts[spec.ca, spec.tls_verify] = backend_tls(spec)
    return context
