"""Does a simulated fleet keep up with its own clock? Eight engines on one core against 200 streamed requests
a second.

    python -m bench.fidelity.throughput [--engines 8] [--rate 200] [--seconds 10] [--tokens 128] [--profile
    NAME]

The fleet runs in a process of its own, pinned to one core; this process, on another, sends chats of about
600 prompt tokens at random moments (open loop) from 200 users, each to the engine it belongs to. It fails
when a stream is incomplete, or when the fleet's steps end later than real time allows: more than 1 % of them
by more than 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time

import uvloop

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.profiles import PROFILES
from stickyroute.simulator.server import serve_engines

USERS = 200
WORDS = 400
LATE_S = 0.05
LATE_SHARE = 0.01


class Stream(asyncio.Protocol):
    """One request; counts itself as complete when the reply ended as it should."""

    def __init__(self, data: bytes, ttfts: list[float]) -> None:
        self.complete = asyncio.get_running_loop().create_future()
        self._data = data
        self._ttfts = ttfts
        self._tail = b""
        self._first = False
        self._sent_s = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._sent_s = time.monotonic()
        transport.write(self._data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._first and b"data:" in data:
            self._first = True
            self._ttfts.append(time.monotonic() - self._sent_s)
        self._tail = (self._tail + data)[-32:]
        if self._tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            self.complete.set_result(True)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.complete.done():
            self.complete.set_result(False)


def body(user: int, rand: random.Random, tokens: int) -> bytes:
    system = " ".join(f"user{user} word{number}" for number in range(WORDS // 2))
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"question {rand.getrandbits(40)}"},
    ]
    return json.dumps({"model": "sim", "messages": messages, "max_tokens": tokens, "stream": True}).encode()


async def load(ports: list[int], rate: float, seconds: float, tokens: int) -> tuple[int, int, list[float]]:
    """(requests sent, complete streams, times to the first event in seconds)."""
    loop = asyncio.get_running_loop()
    rand = random.Random(1)
    ttfts: list[float] = []
    streams: list[Stream] = []
    connects = []
    at_s, end_s = loop.time(), loop.time() + seconds
    while at_s < end_s:
        await asyncio.sleep(max(0.0, at_s - loop.time()))
        user = rand.randrange(USERS)
        data = body(user, rand, tokens)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(data)}"
        stream = Stream(f"{head}\r\n\r\n".encode() + data, ttfts)
        streams.append(stream)
        port = ports[user % len(ports)]
        connects.append(
            asyncio.ensure_future(loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port))
        )
        at_s += rand.expovariate(rate)
    await asyncio.gather(*connects)
    complete = await asyncio.gather(*(stream.complete for stream in streams))
    return len(streams), sum(complete), ttfts


async def serve(count: int, profile: str) -> None:
    """The fleet, in a process of its own: prints its ports, and at the end of its input what it cost."""
    engines = await serve_engines([EngineConfig(profile=PROFILES[profile])] * count)
    print(json.dumps([engine.port for engine in engines]), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    began_s, cpu_s = time.monotonic(), time.process_time()
    await reader.read()
    late = total = 0
    for engine in engines:
        late += engine.pace.late(LATE_S)
        total += engine.engine.steps
    result = {
        "cpu_share": (time.process_time() - cpu_s) / (time.monotonic() - began_s),
        "late_share": late / total,
        "worst_s": max(engine.pace.worst_s for engine in engines),
        "tokens": sum(engine.engine.counters.generated for engine in engines),
    }
    print(json.dumps(result), flush=True)
    for engine in engines:
        await engine.close()


async def measure(args: argparse.Namespace) -> int:
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "bench.fidelity.throughput", "--serve"]
    command += ["--engines", str(args.engines), "--profile", args.profile]
    fleet = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert fleet.stdin is not None
    assert fleet.stdout is not None
    os.sched_setaffinity(fleet.pid, cores[:1])
    os.sched_setaffinity(0, cores[-1:])
    ports = json.loads(await fleet.stdout.readline())
    began_s = time.monotonic()
    sent, complete, ttfts = await load(ports, args.rate, args.seconds, args.tokens)
    wall_s = time.monotonic() - began_s
    fleet.stdin.write_eof()
    result = json.loads(await fleet.stdout.readline())
    await fleet.wait()
    ttfts.sort()
    print(f"requests          {sent} sent, {complete} complete, {sent / args.seconds:.0f} a second")
    print(f"tokens            {result['tokens']} streamed, {result['tokens'] / wall_s:.0f} a second")
    print(f"CPU of the fleet  {100 * result['cpu_share']:.0f} % of one core")
    print(
        f"late steps        {100 * result['late_share']:.2f} % by over {1000 * LATE_S:.0f} ms, worst "
        f"{result['worst_s']:.3f} s"
    )
    print(
        f"first event       p50 {1000 * ttfts[len(ttfts) // 2]:.0f} ms, p95 "
        f"{1000 * ttfts[len(ttfts) * 95 // 100]:.0f} ms"
    )
    return 0 if complete == sent and result["late_share"] <= LATE_SHARE else 1


def main() -> int:
    flags = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    flags.add_argument("--engines", type=int, default=8)
    flags.add_argument("--rate", type=float, default=200.0, help="requests a second")
    flags.add_argument("--seconds", type=float, default=10.0)
    flags.add_argument("--tokens", type=int, default=128, help="tokens of every answer")
    flags.add_argument("--profile", choices=sorted(PROFILES), default="h100-llama-8b")
    flags.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = flags.parse_args()
    if args.serve:
        uvloop.run(serve(args.engines, args.profile))
        return 0
    return int(uvloop.run(measure(args)))


if __name__ == "__main__":
    sys.exit(main())
