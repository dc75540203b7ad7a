"""How long a stream stands still while a large fleet changes: `python -m bench.rebuild --backends 500`.

Processes: this one serves every backend, each on a port of its own, and reads one stream of an event every 5 ms through
`stickyroute serve`, which meanwhile gets configurations with one backend more, one less, or another weight. Prints the
longest pauses between two events, without changes and with them, and how late this process's own loop was.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import uvloop

from bench.watching.__main__ import MODELS, PAGE, ROOT, Backend, answer

TICK_S = 0.005
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)


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


async def measure(backends: int, changes: int) -> dict[str, object]:
    answers = {
        b"/metrics": answer(PAGE.read_bytes()),
        b"/health": answer(b""),
        b"/v1/models": answer(MODELS),
    }
    asked: collections.Counter[bytes] = collections.Counter()
    loop = asyncio.get_running_loop()
    servers, members = [], []
    for number in range(backends + 1):
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        servers.append(await loop.create_server(lambda: Streaming(answers, asked, False), sock=sock))
        members.append({"name": f"b{number}", "url": f"http://127.0.0.1:{sock.getsockname()[1]}"})
    base = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        json.dump({**base, "backends": members[:-1]}, config)
        config.flush()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stickyroute", "serve", "--config", config.name,
            cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            told = b""
            while (found := re.search(rb"port (\d+)\).*port (\d+)\)", told)) is None:
                line = await process.stderr.readline()
                told += line
                if not line:
                    raise SystemExit("stickyroute did not start: " + told.decode())
            drain = asyncio.create_task(process.stderr.read(), name="stderr")
            port, admin = int(found[1]), int(found[2])
            await asyncio.sleep(20.0)  # every backend was looked at
            transport, reader = await loop.create_connection(Reader, "127.0.0.1", port)
            body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
            transport.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            await asyncio.sleep(1.0)
            reader.pauses_ms()
            await asyncio.sleep(changes)
            quiet = reader.pauses_ms()
            took_s = []
            async with aiohttp.ClientSession() as session:
                for number in range(changes):
                    chosen = [dict(m) for m in members[: backends + number % 2]]
                    chosen[number % backends]["weight"] = 1 + number % 3
                    began_s = time.monotonic()
                    url = f"http://127.0.0.1:{admin}/config"
                    async with session.put(url, json={**base, "backends": chosen}) as reply:
                        if reply.status != 200:
                            raise SystemExit(f"{reply.status}: {await reply.text()}")
                    took_s.append(time.monotonic() - began_s)
                    await asyncio.sleep(1.0)
            changed = reader.pauses_ms()
            transport.close()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
        await drain
    for server in servers:
        server.close()
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
    options = parser.parse_args()
    os.chdir(Path(ROOT))
    print(json.dumps(uvloop.run(measure(options.backends, options.changes)), indent=2))


if __name__ == "__main__":
    main()
