"""The load generator: drives one address through one phase and samples the CPU time of the processes in
between.

Owns the client's side of the wire, on raw protocols, and the counting: requests, events, reads, errors,
CPU. It knows neither which router it talks to nor what the numbers are compared with.

`python -m bench.dataplane.load` reads one phase a line as JSON on standard input, {"phase": "unary",
"port": ..., "pids": [...], ...}, and answers each with one line of JSON. CPU is in seconds, latencies in
milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, cast

import uvloop

from bench.dataplane.cpu import cpu_s, rss_bytes

USERS = 64
SEED = 20260501
PARAGRAPH_ENDS = 0.012  # after a word: a paragraph of about 80 words, so an escaped newline now and then
DIGITS = "##########"  # where a request's ten changing digits go
PHASE_LIMIT_S = 60.0
ENOUGH = 0.95  # of the tokens due in a window, and of a read for each; fewer, and something else was measured
WORDS = [
    *("the", "model", "of", "a", "fleet", "keeps", "what", "it", "has", "seen", "and", "answers", "sooner"),
    *("when", "question", "returns", "to", "where", "its", "prefix", "is", "warm", "while", "every", "other"),
    *(
        "engine",
        "would",
        "have",
        "read",
        "all",
        "again",
        "before",
        "first",
        "token",
        "can",
        "leave",
        "for",
        "patient",
    ),
]

Result = dict[str, Any]


@cache
def prose() -> str:
    """Words in paragraphs, about a mebibyte: users' prompts are cut from it at places of their own."""
    rng = random.Random(SEED)
    return "".join(
        rng.choice(WORDS) + ("\n\n" if rng.random() < PARAGRAPH_ENDS else " ") for _ in range(180_000)
    )


class Prompts:
    """Chat requests of one size by `USERS` users in turn, the last characters of each unlike any before."""

    def __init__(self, prompt_bytes: int, directive: str, stream: bool) -> None:
        self._sent = 0
        self._parts = [self._parts_of(user, prompt_bytes, directive, stream) for user in range(USERS)]

    @staticmethod
    def _parts_of(user: int, prompt_bytes: int, directive: str, stream: bool) -> tuple[bytes, bytes]:
        """The request before and after its ten changing digits."""
        text, at = prose(), user * 12_000
        prompt = f"{directive} user {user}: {text[at:]}{text[:at]}"
        body = {
            "model": "sim",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": prompt[: prompt_bytes - len(DIGITS)] + DIGITS},
            ],
            "max_tokens": 64,
            "temperature": 0.7,
            "stream": stream,
            "user": f"user-{user:04}",
        }
        content = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: router.test\r\naccept: application/json\r\n"
            "accept-encoding: gzip, deflate\r\nuser-agent: OpenAI/Python 2.8.0\r\n"
            "content-type: application/json\r\n"
            f"authorization: Bearer sk-0123456789abcdef\r\nx-session-id: user-{user:04}\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        before, _, after = content.partition(DIGITS.encode())
        return head.encode() + before, after

    def next(self) -> bytes:
        """The next user's next request, head and body."""
        self._sent += 1
        before, after = self._parts[self._sent % USERS]
        return b"%b%010d%b" % (before, self._sent, after)


@cache
def prompts_of(prompt_bytes: int, directive: str, stream: bool) -> Prompts:
    """The prompts of one size, made once: their digits never repeat in this process."""
    return Prompts(prompt_bytes, directive, stream)


class Connection(asyncio.Protocol):
    """One client connection, one request at a time. `done` learns whether the reply was whole and good."""

    def __init__(self, done: Callable[[Connection, bool], None], on_first_event: Callable[[], None]) -> None:
        self._done = done
        self._on_first_event = on_first_event
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self.reads = 0  # reads that brought part of a body, since the request
        self.events = 0  # server-sent events, since the request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop does not derive its own from it

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._busy = True
        self._head: bytes | None = b""
        self._status, self._left, self._tail = 0, 0, b""
        self.reads = self.events = 0
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._busy:
            self._finish(False)

    def _finish(self, good: bool) -> None:
        self._busy = False
        self._done(self, good)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._start_body(data[: end + 2].lower())
            data = data[end + 4 :]
        if data:
            self.reads += 1
        if self._left >= 0:  # a body of known length
            self._left -= len(data)
            if self._left <= 0:
                self._finish(self._status == 200 and self._left == 0)
            return
        seen = self._tail + data  # 6 bytes of the last read, lest a mark is split between two
        first = not self.events
        self.events += seen.count(b"\ndata: ")
        self._tail = seen[-6:]
        if first and self.events:
            self._on_first_event()
        if seen.endswith(b"0\r\n\r\n"):
            self._finish(self._status == 200)

    def _start_body(self, head: bytes) -> None:
        self._head = None
        self._status = int(head[9:12])
        _, found, length = head.partition(b"\r\ncontent-length:")
        self._left = int(length.split(b"\r\n", 1)[0]) if found else -1


class Clients:
    """Open connections to one port and the tally over them."""

    def __init__(self) -> None:
        self.all: list[Connection] = []
        self.errors = 0
        self.finished = 0
        self.events = 0  # of finished replies
        self.begun = 0  # replies whose first event has come
        self.then: Callable[[Connection], None] = lambda connection: None
        self.changed = asyncio.Event()

    async def connect(self, port: int, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, connection = await loop.create_connection(
                lambda: Connection(self._ended, self._began), "127.0.0.1", port
            )
            self.all.append(connection)

    def _began(self) -> None:
        self.begun += 1
        self.changed.set()

    def _ended(self, connection: Connection, good: bool) -> None:
        self.finished += 1
        self.events += connection.events
        if good:
            self.then(connection)
        else:
            self.errors += 1
        self.changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until `reached()`, or until an error makes it pointless."""
        while not reached() and not self.errors:
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        self.then = lambda connection: None
        for connection in self.all:
            connection.close()


async def closed_loop(asked: Result) -> Result:
    """`requests` requests over `connections` connections, each sending its next when its last is answered.

    The first `warmup` are not counted. With `tokens` each is a stream of that many events in one write.
    """
    tokens = asked["tokens"]
    prompts = prompts_of(asked["prompt_bytes"], f"[tokens={tokens} every_ms=0]", bool(tokens))
    clients = Clients()
    await clients.connect(asked["port"], asked["connections"])

    async def batch(requests: int) -> None:
        left = requests

        def send(connection: Connection) -> None:
            nonlocal left
            if left:
                left -= 1
                connection.send(prompts.next())

        goal = clients.finished + requests
        clients.then = send
        for connection in clients.all:
            send(connection)
        await clients.until(lambda: clients.finished >= goal)

    await batch(asked["warmup"])
    events, began_s, began_cpu = clients.events, time.perf_counter(), cpu_s(asked["pids"])
    if not clients.errors:
        await batch(asked["requests"])
    used = cpu_s(asked["pids"]) - began_cpu
    wall = time.perf_counter() - began_s
    expected = asked["requests"] * (tokens + 1) if tokens else 0
    result = {
        "cpu_s": used,
        "wall_s": wall,
        "requests": asked["requests"],
        "errors": clients.errors,
        "missing_events": expected - (clients.events - events),
        "rss_bytes": rss_bytes(asked["pids"]),
    }
    clients.close()
    return result


async def paced(asked: Result) -> Result:
    """`streams` streams at once, a token every `every_ms` each; what `window_s` in the middle cost.

    `disturbed`: tokens came late or several to a read; the machine stalled, or the router held back."""
    every_ms, window_s = asked["every_ms"], asked["window_s"]
    tokens = int((window_s + asked["slack_s"]) * 1000 / every_ms)
    prompts = prompts_of(asked["prompt_bytes"], f"[tokens={tokens} every_ms={every_ms}]", True)
    clients = Clients()
    await clients.connect(asked["port"], asked["streams"])
    for connection in clients.all:
        connection.send(prompts.next())
    await clients.until(lambda: clients.begun == asked["streams"])

    def counted() -> tuple[int, int]:
        return sum(c.events for c in clients.all), sum(c.reads for c in clients.all)

    events, reads = counted()
    began_s, began_cpu = time.perf_counter(), cpu_s(asked["pids"])
    await asyncio.sleep(window_s)
    used = cpu_s(asked["pids"]) - began_cpu
    wall = time.perf_counter() - began_s
    events_after, reads_after = counted()
    ended_early = clients.finished
    rss = rss_bytes(asked["pids"])
    await clients.until(lambda: clients.finished == asked["streams"])
    seen, expected = events_after - events, asked["streams"] * window_s * 1000 / every_ms
    result = {
        "cpu_s": used,
        "wall_s": wall,
        "tokens": seen,
        "reads": reads_after - reads,
        "errors": clients.errors,
        "disturbed": bool(ended_early) or seen < ENOUGH * expected or reads_after - reads < ENOUGH * seen,
        "missing_events": asked["streams"] * (tokens + 1) - clients.events,
        "rss_bytes": rss,
    }
    clients.close()
    return result


async def open_loop(asked: Result) -> Result:
    """`requests` requests, one every `every_ms` whatever became of the others; latency to the last byte.

    The first `warmup` are not counted. A connection is opened when none is idle.
    """
    prompts = prompts_of(asked["prompt_bytes"], "[tokens=0 every_ms=0]", False)
    clients = Clients()
    await clients.connect(asked["port"], asked["connections"])
    loop = asyncio.get_running_loop()
    idle = list(clients.all)
    sent: dict[Connection, float] = {}
    latencies: list[float] = []

    def answered(connection: Connection) -> None:
        latencies.append((time.perf_counter() - sent.pop(connection)) * 1000)
        idle.append(connection)

    clients.then = answered
    total = asked["warmup"] + asked["requests"]
    began = loop.time()
    for number in range(total):
        await asyncio.sleep(began + number * asked["every_ms"] / 1000 - loop.time())
        if not idle:
            await clients.connect(asked["port"], 1)
            idle.append(clients.all[-1])
        connection = idle.pop()
        sent[connection] = time.perf_counter()
        connection.send(prompts.next())
    await clients.until(lambda: clients.finished == total)
    clients.close()
    counted = [round(latency, 4) for latency in latencies[asked["warmup"] :]]
    return {"errors": clients.errors, "missing_events": 0, "latencies_ms": counted}


PHASES: dict[str, Callable[[Result], Awaitable[Result]]] = {
    "closed_loop": closed_loop,
    "paced": paced,
    "open_loop": open_loop,
}


async def drive(asked: Result) -> Result:
    """Run one phase within its time limit."""
    return await asyncio.wait_for(PHASES[asked["phase"]](asked), PHASE_LIMIT_S)


def main() -> None:
    for line in sys.stdin:
        try:
            result = uvloop.run(drive(json.loads(line)))
        except (OSError, TimeoutError) as error:
            result = {"failed": repr(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
