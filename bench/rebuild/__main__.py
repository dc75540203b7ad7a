"""How long a stream stands still while a large fleet changes: `python -m bench.rebuild --backends 500`.

Processes: this one serves every backend, each on a port of its own, and reads one stream of an event every 5 ms through
`stickyroute serve`, which meanwhile gets configurations with one backend more, one less, or another weight. Prints the
longest pauses between two events, without changes and with them, and how long a change took.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import os
import time

import aiohttp
import uvloop

from bench.watching.backends import PORTS, ROOT, Backend, answers, many, stickyroute

TICK_S = 0.005
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
_ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class Streaming(Backend):
    """A backend whose chat completions go on until the connection closes."""

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"POST"):
            super().data_received(data)
            return
        if self._idle is not None:
            self._idle.cancel()
        self._transport.write(_HEAD)
        self._tick()

    def _tick(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_CHUNK)
            self._idle = asyncio.get_running_loop().call_later(TICK_S, self._tick)


class Reader(asyncio.Protocol):
    """Notes when something came."""

    def __init__(self) -> None:
        self.arrived_s: list[float] = []

    def data_received(self, data: bytes) -> None:
        self.arrived_s.append(time.monotonic())

    def pauses_ms(self) -> list[float]:
        """The longest five since the last call, first dropped."""
        times, self.arrived_s = self.arrived_s, []
        pauses = sorted((b - a for a, b in itertools.pairwise(times)), reverse=True)
        return [round(pause * 1e3, 1) for pause in pauses[:5]]


async def measure(backends: int, changes: int, settle_s: float) -> dict[str, object]:
    asked: collections.Counter[bytes] = collections.Counter()
    said = answers()
    async with (
        many(backends + 1, lambda: Streaming(said, asked)) as members,
        stickyroute(members[:-1]) as served,
        aiohttp.ClientSession() as session,
    ):
        await asyncio.sleep(settle_s)
        transport, reader = await asyncio.get_running_loop().create_connection(
            Reader, "127.0.0.1", served.port
        )
        transport.write(_ASK)
        await asyncio.sleep(1.0)
        reader.pauses_ms()
        await asyncio.sleep(changes)
        quiet = reader.pauses_ms()
        took_s = []
        for number in range(changes):
            chosen = [dict(m) for m in members[: backends + number % 2]]
            chosen[number % backends]["weight"] = 1 + number % 3
            began_s = time.monotonic()
            url = f"http://127.0.0.1:{served.admin_port}/config"
            async with session.put(url, json={**PORTS, "backends": chosen}) as reply:
                if reply.status != 200:
                    raise SystemExit(f"{reply.status}: {await reply.text()}")
            took_s.append(time.monotonic() - began_s)
            await asyncio.sleep(1.0)
        changed = reader.pauses_ms()
        transport.close()
    return {
        "backends": backends,
        "changes": changes,
        "longest_pauses_ms": {"at rest": quiet, "while it changes": changed},
        "change_s": {"median": round(sorted(took_s)[len(took_s) // 2], 2), "max": round(max(took_s), 2)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backends", type=int, default=500)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--settle-s", type=float, default=20.0, help="until every backend was looked at")
    options = parser.parse_args()
    os.chdir(ROOT)
    print(json.dumps(uvloop.run(measure(options.backends, options.changes, options.settle_s)), indent=2))


if __name__ == "__main__":
    main()
