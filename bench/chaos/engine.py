"""One simulated engine in a process of its own, that writes down which requests it began, finished or gave up:
`python -m bench.chaos.engine PORT LOG SPEEDUP`. Each line is written at once, so that kill -9 loses none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import uvloop

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import RunningEngine, serve_engines


def record(engine: RunningEngine, descriptor: int) -> None:
    """Have the engine tell of each request."""
    ids: dict[Any, bytes] = {}
    generate, ended = engine.generate, engine._ended

    def say(what: bytes, request_id: bytes) -> None:
        os.write(descriptor, b"%b %b\n" % (what, request_id))

    def told_generate(connection: Any, request: Any, *more: Any) -> None:
        request_id = request.headers.get(b"x-request-id", b"-")
        say(b"begun", request_id)
        generate(connection, request, *more)
        ids[connection.exchange] = request_id

    def told_ended(generation: Any, left: bool) -> None:
        whole = not left and len(generation._reasons) == len(generation.choices)
        say(b"done" if whole else b"cut", ids.pop(generation, b"-"))
        ended(generation, left)

    engine.generate = told_generate  # type: ignore[method-assign]
    engine._ended = told_ended  # type: ignore[method-assign]


async def serve(port: int, log: str, speedup: float) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    (engine,) = await serve_engines([EngineConfig(model="m", speedup=speedup)], port=port)
    record(engine, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    print("ready", flush=True)
    await stop.wait()
    await engine.close()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
