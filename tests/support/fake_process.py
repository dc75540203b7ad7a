"""A fake backend as a process of its own, so that it can be killed with SIGKILL in the middle of its work.

It answers every chat request after a short pause, streamed when asked, and writes one line to its log when it
begins a request and one when it has sent the last byte. The log survives the kill.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.fake_backend import DONE, EVENT, Call, FakeBackend, reply

ROOT = Path(__file__).parents[2]


class FakeProcess:
    """The process and its log, seen from the test."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.name, self.process, self.port, self._log = name, process, port, log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _ids(self, word: str) -> list[str]:
        lines = [line.split(" ", 1) for line in self._log.read_text().splitlines() if " " in line]
        return [rest for begin, rest in lines if begin == word]

    @property
    def begun(self) -> list[str]:
        """Ids of the requests it began, in order."""
        return self._ids("begin")

    @property
    def ended(self) -> list[str]:
        """Ids of the requests it answered to the last byte."""
        return self._ids("end")

    async def kill(self) -> None:
        """SIGKILL: its sockets are reset by the kernel."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def fake_process(
    name: str, folder: Path, *, port: int = 0, work_s: float = 0.02
) -> AsyncIterator[FakeProcess]:
    """Start one; it is gone when the block ends."""
    log = folder / f"{name}.log"
    log.touch()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.fake_process", f"--name={name}", f"--log={log}",
        f"--port={port}", f"--work-s={work_s}",
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            port = int(await process.stdout.readline())
        yield FakeProcess(name, process, port, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _serve(name: str, port: int, log: Path, work_s: float) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND)

    def tell(word: str, call: Call) -> None:
        os.write(out, f"{word} {call.request_id}\n".encode())

    async def work(call: Call) -> None:
        tell("begin", call)
        if call.json.get("stream"):
            await call.start(200, [("Content-Type", "text/event-stream")])
            for i in range(5):
                await asyncio.sleep(work_s / 5)
                await call.piece(EVENT % i)
            await call.piece(DONE)
            await call.end()
        else:
            await asyncio.sleep(work_s)
            await reply(200, b'{"object":"chat.completion","backend":"%b"}' % name.encode())(call)
        tell("end", call)

    fake = FakeBackend(name)
    fake.port = port
    fake.on("/v1/chat/completions", work)
    await fake.listen()
    print(fake.port, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Listen until killed; the port is the first line of stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--work-s", type=float, default=0.02)
    args = parser.parse_args()
    asyncio.run(_serve(args.name, args.port, args.log, args.work_s))


if __name__ == "__main__":
    main()
