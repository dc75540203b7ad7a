"""An HTTP client for load: streams of one address, with the time of every token.

Owns the client's side of the wire on raw protocols, so that hundreds of streams cost little: a pool of
kept-alive connections without a cap, server-sent events read as they come, the first token told from the
first byte. Knows nothing of workloads or schedules.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httptools
import orjson

from stickyroute.clock import monotonic

_IDLE_LIMIT_S = 3.0  # engines on uvicorn close idle connections after 5 s
_TOKEN_FIELDS = ("content", "reasoning_content", "reasoning", "text")


@dataclass(slots=True)
class Reply:
    """What came back. Times are of `clock.monotonic`, 0 until they happened.

    `gaps_s` are the pauses between two events with a token; `text` is what was said; the token counts are the
    server's own `usage`, None if it sent none. `error` is empty for a whole reply with status 200.
    """

    sent_s: float = 0.0
    first_byte_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    done_s: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


class Client:
    """`async with Client(url) as client`. The path of `url` comes before the paths asked for."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the load generator speaks to http://HOST:PORT, not to {url!r}")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._base = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._loop = asyncio.get_running_loop()
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; running requests end with an error, and no other begins."""
        self._closed = True
        for connection in list(self._open):
            connection.transport.abort()

    async def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Reply:
        """Send `body` as JSON and read the reply to its end. Failures are in `Reply.error`, never raised.

        A kept connection that turns out to be closed before any byte came is replaced by a fresh one, once.
        """
        lines = [
            f"POST {self._base}{path} HTTP/1.1",
            f"host: {self._authority}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        reply = Reply(sent_s=monotonic())
        while True:
            connection = self._reuse()
            reused = connection is not None
            if connection is None:
                try:
                    _, connection = await self._loop.create_connection(
                        lambda: _Connection(self._loop, self._idle, self._open), self._host, self._port
                    )
                except OSError as error:
                    reply.error = f"connect: {error.strerror or error}"
                    reply.done_s = monotonic()
                    return reply
            await connection.exchange(data, reply)
            if self._closed or not (reply.error and reused and not reply.first_byte_s):
                return reply
            reply.error = ""

    def _reuse(self) -> _Connection | None:
        limit_s = monotonic() - _IDLE_LIMIT_S
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.idle_since_s > limit_s:
                return connection
            if connection.open:
                connection.transport.close()
        return None


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, idle: deque[_Connection], opened: set[_Connection]
    ) -> None:
        self.open = False
        self.idle_since_s = 0.0
        self._loop = loop
        self._idle = idle
        self._opened = opened
        self._parser: Any = None
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_s = 0.0
        self._sse = False
        self._rest = b""
        self._framed = False

    def exchange(self, data: bytes, reply: Reply) -> asyncio.Future[None]:
        """Send a request; the future is done when its reply is over, well or badly."""
        self._parser = httptools.HttpResponseParser(self)
        self._reply = reply
        self._done = self._loop.create_future()
        self._sse = False
        self._rest = b""
        self._framed = False
        self.transport.write(data)
        return self._done

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.open = True
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.transport.abort()  # nobody asked
            return
        self._now_s = monotonic()
        if not reply.first_byte_s:
            reply.first_byte_s = self._now_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"malformed reply: {error}")
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._opened.discard(self)
        reply = self._reply
        if reply is not None:
            self._now_s = monotonic()
            if exc is None and reply.status and not self._framed:
                self.on_message_complete()  # a reply that ends with its connection
            else:
                self._finish("connection lost" if reply.status else "connection lost before a reply")

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        assert self._reply is not None
        self._reply.headers[key] = value.decode("latin-1")
        if key in ("content-length", "transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        reply = self._reply
        assert reply is not None
        reply.status = self._parser.get_status_code()
        self._sse = reply.headers.get("content-type", "").startswith("text/event-stream")

    def on_body(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not self._sse:
            self._rest = data
            return
        *events, self._rest = data.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            self._event(event)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is None or reply.status < 200:
            return
        if not self._sse:
            self._whole(self._rest)
        error = reply.error
        if not error and reply.status != 200:
            error = f"status {reply.status}"
        keep = self.open and self._framed and self._parser.should_keep_alive()
        self._finish(error)
        if keep:
            self.idle_since_s = self._now_s
            self._idle.append(self)
        elif self.open:
            self.transport.close()

    def _finish(self, error: str) -> None:
        reply, done = self._reply, self._done
        self._reply = self._done = None
        assert reply is not None
        reply.error = error
        reply.done_s = self._now_s
        if done is not None and not done.done():
            done.set_result(None)

    def _event(self, event: bytes) -> None:
        reply = self._reply
        assert reply is not None
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                continue
            try:
                value = orjson.loads(payload)
            except orjson.JSONDecodeError:
                reply.error = reply.error or "an event is not JSON"
                continue
            self._value(reply, value)

    def _value(self, reply: Reply, value: Any) -> None:
        if not isinstance(value, dict):
            return
        if "error" in value:
            reply.error = "an error inside the stream"
        for choice in value.get("choices") or ():
            delta = choice.get("delta") or choice
            said = ""
            for name in _TOKEN_FIELDS:
                said = said or delta.get(name) or ""
            if said:
                reply.text.append(said)
                if reply.first_token_s:
                    reply.gaps_s.append(self._now_s - reply.last_token_s)
                else:
                    reply.first_token_s = self._now_s
                reply.last_token_s = self._now_s
        if value.get("usage"):
            _read_usage(reply, value["usage"])

    def _whole(self, body: bytes) -> None:
        """A reply that was not streamed: its first token is known to have been there only at the end."""
        reply = self._reply
        assert reply is not None
        if reply.status != 200:
            return
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            reply.error = "the reply is not JSON"
            return
        if isinstance(value, dict):
            for choice in value.get("choices") or ():
                reply.text.append(
                    (choice.get("message") or choice).get("content") or choice.get("text") or ""
                )
            if value.get("usage"):
                _read_usage(reply, value["usage"])


def _read_usage(reply: Reply, usage: dict[str, Any]) -> None:
    reply.prompt_tokens = usage.get("prompt_tokens")
    reply.output_tokens = usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details") or {}
    reply.cached_tokens = details.get("cached_tokens")
