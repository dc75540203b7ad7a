"""`python -m bench.churn`: 300 reloads and 10,000 updates of discovery in one process, with a request now and then.

Backends come, go, move and change weight; policy, limits and keys change with reloads. What is counted before and
after, at rest and with the same members: tasks, open descriptors, resident memory, objects. Exits with 1 if tasks or
descriptors are more than before, or memory grew by more than 3 %.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.chaos.load import _ask
from stickyroute.app import App
from stickyroute.settings import Settings
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.server import serve_engines
from stickyroute.watch.discovery.places import Place

ENGINES = 8
POLICIES = ("bounded_ring", "sticky", "least_tokens", "ring")


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def at_rest(app: App) -> dict[str, int]:
    """What there is once nothing is under way."""
    for _ in range(30):
        await asyncio.sleep(0.2)
        app.live.tidy()
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "rss_bytes": rss_bytes(),
        "objects": len(gc.get_objects()),
    }


async def ask(app: App, rand: random.Random) -> int:
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": f"Hello {rand.random()}"}], "max_tokens": 4}
    ).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    reply = await _ask(app.port, head % len(body) + body)
    return reply.parser.get_status_code() if reply is not None else 0


async def churn(reloads: int, updates: int, seed: int) -> dict[str, Any]:
    rand = random.Random(seed)
    engines = await serve_engines([EngineConfig(model="m", speedup=20)] * ENGINES)
    folder = tempfile.TemporaryDirectory(prefix="stickyroute-churn-")
    listing = Path(folder.name) / "backends.yaml"
    listing.write_text("".join(f"- {{name: d{i}, url: '{e.url}'}}\n" for i, e in enumerate(engines[2:])))
    base: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "backends": [{"name": f"s{i}", "url": e.url} for i, e in enumerate(engines[:2])],
        "discovery": [{"kind": "file", "path": str(listing)}],
    }
    app = App(Settings(**base))
    await app.start()
    assert app._discovery is not None
    statuses: dict[int, int] = {}
    times: dict[str, list[float]] = {"reload": [], "update": []}

    async def say_hello() -> None:
        status = await ask(app, rand)
        statuses[status] = statuses.get(status, 0) + 1

    async def reload(values: dict[str, Any]) -> None:
        began_s = time.monotonic()
        await app.live.put(json.dumps({**base, **values}).encode(), "churn")
        times["reload"].append(time.monotonic() - began_s)

    async def update(places: list[Place]) -> None:
        assert app._discovery is not None
        began_s = time.monotonic()
        app._discovery._followed[0].found(places)
        await app.live.refound()
        times["update"].append(time.monotonic() - began_s)

    everybody = [Place(f"d{i}", "127.0.0.1", e.port) for i, e in enumerate(engines[2:])]

    def some() -> list[Place]:
        chosen = [place for place in everybody if rand.random() < 0.7]
        if rand.random() < 0.2 and len(chosen) > 1:  # two of them change places
            a, b = rand.sample(range(len(chosen)), 2)
            chosen[a], chosen[b] = (
                Place(chosen[a].name, "127.0.0.1", chosen[b].port),
                Place(chosen[b].name, "127.0.0.1", chosen[a].port),
            )
        return chosen

    async def go(reloads: int, updates: int) -> None:
        for number in range(reloads):
            weights = [{**b, "weight": rand.randrange(1, 4)} for b in base["backends"][: 1 + number % 2]]
            await reload(
                {
                    "backends": weights,
                    "policy": rand.choice(POLICIES),
                    "hold": {"requests": rand.randrange(3)},
                }
            )
            await say_hello()
        for number in range(updates):
            await update(some())
            if number % 20 == 0:
                await say_hello()
            await asyncio.sleep(0)
        await reload({})
        await update(everybody)
        await say_hello()

    try:
        await go(reloads // 10, updates // 10)
        before = await at_rest(app)
        await go(reloads, updates)
        after = await at_rest(app)
    finally:
        await app.stop(0.0)
        for engine in engines:
            await engine.close()
        folder.cleanup()
    return {
        "reloads": reloads,
        "updates": updates,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "before": before,
        "after": after,
        "ms": {
            kind: {"median": round(sorted(t)[len(t) // 2] * 1e3, 2), "max": round(max(t) * 1e3, 2)}
            for kind, t in times.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.churn", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--reloads", type=int, default=300)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    result = uvloop.run(churn(options.reloads, options.updates, options.seed))
    print(json.dumps(result, indent=2))
    before, after = result["before"], result["after"]
    flat = after["tasks"] <= before["tasks"] and after["descriptors"] <= before["descriptors"] + 2
    sys.exit(0 if flat and after["rss_bytes"] <= before["rss_bytes"] * 1.03 else 1)


if __name__ == "__main__":
    main()
