"""`python -m stickyroute.benchmark.fleet_process JSON`: the engines of a scenario in a process of their own.

Owns their ports: free ones, printed in one line of URLs once all answer. Ends on SIGTERM, SIGINT, or when
whoever started it is gone (its standard output cannot tell, so it is the parent's id).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import uvloop

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import serve_engines

_LOOK_S = 1.0


async def _serve(spec: FleetSpec) -> None:
    engines = await serve_engines([EngineConfig(profile=spec.profile)] * spec.engines)
    print(" ".join(engine.url for engine in engines), flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parent = os.getppid()
    while not stop.is_set() and os.getppid() == parent:
        try:
            await asyncio.wait_for(stop.wait(), _LOOK_S)
        except TimeoutError:
            continue
    for engine in engines:
        await engine.close()


if __name__ == "__main__":
    uvloop.run(_serve(FleetSpec.of(json.loads(sys.argv[1]))))
