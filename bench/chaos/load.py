"""The clients: so many requests a second, come what may, each through one of two replicas.

A client goes to the other replica when the first refuses its connection or drops it without a byte, as whoever
balances load in front of them would. Everything else that is not the whole answer is written down.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools

from bench.chaos.processes import Replica

PATIENCE_S = 120.0
CHAT = b"/v1/chat/completions"


@dataclass
class Outcome:
    """What became of one request. `kind`: whole, cut (the stream had begun), or failed; `why` in words."""

    request_id: str
    began_s: float
    stream: bool
    kind: str = ""
    why: str = ""
    backend: str = ""
    replica: int = -1
    moved: int = 0
    ttft_s: float = 0.0
    ended_s: float = 0.0
    tokens: int = 0


class Reply:
    """A response as it comes in."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.first_s = 0.0
        self.whole = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        if not self.body:
            self.first_s = time.monotonic()
        self.body += data

    def on_message_complete(self) -> None:
        self.whole = True


@dataclass
class Load:
    """`rate` requests a second by `users` users until `stop`."""

    replicas: list[Replica]
    rate: float
    users: int
    rand: random.Random
    outcomes: list[Outcome] = field(default_factory=list)
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _stop: bool = False

    async def run(self) -> None:
        prefixes = [f"You are user {u}. " + self.rand.randbytes(300).hex() for u in range(self.users)]
        began, sent = time.monotonic(), 0
        while not self._stop:
            due = int((time.monotonic() - began) * self.rate)
            while sent < due:
                user = self.rand.randrange(self.users)
                text = f"{prefixes[user]} Question {self.rand.randrange(1000)}."
                stream, tokens = self.rand.random() < 0.7, self.rand.randrange(6, 20)
                task = asyncio.create_task(self._one(f"r{sent}", f"u{user}", text, stream, tokens))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                sent += 1
            await asyncio.sleep(0.5 / self.rate)

    async def stop(self) -> None:
        """Send no more and wait for what runs."""
        self._stop = True
        while self._running:
            await asyncio.wait(set(self._running))

    async def _one(self, request_id: str, user: str, text: str, stream: bool, tokens: int) -> None:
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": text}],
                "stream": stream,
                "max_tokens": tokens,
            }
        ).encode()
        outcome = Outcome(request_id, time.monotonic(), stream)
        self.outcomes.append(outcome)
        first = self.rand.randrange(2)
        for turn in range(40):
            outcome.replica = (first + turn) % 2
            head = (
                b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                b"X-Session-Id: %b\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n"
                % (CHAT, user.encode(), f"{request_id}.{turn}".encode(), len(body))
            )
            reply = await _ask(self.replicas[outcome.replica].port, head + body)
            if reply is not None:
                _judge(outcome, reply, tokens)
                break
            outcome.moved += 1
            await asyncio.sleep(0.05)
        else:
            outcome.kind, outcome.why = "failed", "no replica took it"
        outcome.ended_s = time.monotonic()


async def _ask(port: int, request: bytes) -> Reply | None:
    """None where not a byte came back."""
    reply = Reply()
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request)
                while data := await reader.read(65536):
                    reply.parser.feed_data(data)
            finally:
                writer.close()
    except (ConnectionError, httptools.HttpParserError):
        pass
    except TimeoutError:
        reply.headers[b"x-timeout"] = b"1"
    return reply if reply.headers else None


def _judge(outcome: Outcome, reply: Reply, tokens: int) -> None:
    outcome.backend = reply.headers.get(b"x-stickyroute-backend", b"").decode()
    outcome.ttft_s = reply.first_s - outcome.began_s if reply.first_s else 0.0
    if b"x-timeout" in reply.headers:
        outcome.kind, outcome.why = "failed", "no whole answer in time"
        return
    status = reply.parser.get_status_code()
    if status != 200:
        outcome.kind, outcome.why = "failed", f"{status} {bytes(reply.body[:200])!r}"
        return
    judge: Callable[[Outcome, Reply, int], None] = _judge_stream if outcome.stream else _judge_whole
    judge(outcome, reply, tokens)


def _judge_whole(outcome: Outcome, reply: Reply, tokens: int) -> None:
    if not reply.whole:
        outcome.kind, outcome.why = "failed", "the answer was cut"
        return
    outcome.tokens = json.loads(reply.body)["usage"]["completion_tokens"]
    outcome.kind = "whole" if outcome.tokens == tokens else "failed"
    outcome.why = "" if outcome.kind == "whole" else f"{outcome.tokens} tokens for {tokens}"


def _judge_stream(outcome: Outcome, reply: Reply, tokens: int) -> None:
    reasons: list[str] = []
    error = ""
    roles = 0
    done = False
    for event in bytes(reply.body).split(b"\n\n"):
        if not event.startswith(b"data: "):
            continue
        if event == b"data: [DONE]":
            done = True
            continue
        try:
            value: dict[str, Any] = json.loads(event[6:])
        except ValueError:
            error = "an event was cut"
            continue
        if "error" in value:
            error = f"an error event: {value['error'].get('message', '')[:60]}"
            continue
        for choice in value["choices"]:
            delta = choice["delta"]
            roles += "role" in delta
            outcome.tokens += bool(delta.get("content"))
            if choice["finish_reason"]:
                reasons.append(choice["finish_reason"])
    if reply.whole and done and reasons in (["length"], ["stop"]) and outcome.tokens == tokens and roles == 1:
        outcome.kind = "whole"
        return
    if roles > 1 or outcome.tokens > tokens:
        outcome.kind, outcome.why = "twice", f"{outcome.tokens} tokens for {tokens}, {roles} beginnings"
        return
    told = error or (f"finish reason {reasons[0]}" if reasons else "the stream was cut")
    outcome.kind = "cut" if outcome.tokens else "failed"
    outcome.why = f"{told} after {outcome.tokens} tokens"
