"""`python -m bench.metrics`: a scrape of a large fleet after an hour of hostile names, and what it holds up.

Makes a process's counters as traffic would leave them (every backend with every status and reason, a million requests
whose model names and paths clients made up), scrapes them over HTTP from the real admin port, and prints how long a
scrape takes, how large it is, and how long it keeps the event loop at a time. Times are milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from statistics import median

import uvloop
from aiohttp import web

from stickyroute import __version__
from stickyroute.control import Deps, build_admin
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.fleet.sample import Sample
from stickyroute.metrics import Metrics
from stickyroute.openai.usage import Usage
from stickyroute.settings import Settings

REASONS = ("home", "warm", "spill", "failover", "no_key")
STATUSES = (200, 404, 503)


def fleet_of(backends: int, models: int) -> Fleet:
    names = tuple(f"model-{number}" for number in range(models))
    return Fleet(
        [
            BackendSpec(
                name=f"gpu-{number:03d}", scheme="http", host="127.0.0.1", port=1 + number, models=names
            )
            for number in range(backends)
        ],
        64,
    )


def hour_of_traffic(metrics: Metrics, models: int, hostile: int) -> None:
    """Every series there can be, and `hostile` requests with names that nobody has."""
    fleet = metrics.fleet
    for backend in fleet.backends:
        sample = Sample(
            kv_utilization=0.5, running=8, waiting=1, preemptions=3, queries_tokens=9, hits_tokens=5
        )
        fleet.record_sample(backend.slot, sample, time.monotonic())
        for model in range(models):
            pool = f"model-{model}"
            for reason in REASONS:
                for status in STATUSES:
                    metrics.record(
                        pool,
                        backend.name,
                        "/v1/chat/completions",
                        status,
                        reason,
                        0.1,
                        2.0,
                        500,
                        5000,
                        0.02,
                        3000,
                    )
            metrics.record(
                pool, backend.name, "/v1/chat/completions", 200, "home", 0.1, 2.0, 500, 5000, 0.02, 3000,
                Usage(3000, 2000, 100, 10), 1900.0,
            )  # fmt: skip
        for kind in ("refused", "dropped", "broken", "upstream_died"):
            metrics.upstream_failures(backend.name, kind)
    for number in range(hostile):
        metrics.record(
            f"evil-{number}", "gpu-000", f"/v1/evil-{number % 7}", 404, "local", None, 0.001, 100, 100
        )


SCRAPER = """
import http.client, json, sys, time
port, accept, repeats = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
connection = http.client.HTTPConnection("127.0.0.1", port)
seen = []
for _ in range(repeats):
    began = time.perf_counter()
    connection.request("GET", "/metrics", headers={"Accept": accept})
    text = connection.getresponse().read()
    seen.append(((time.perf_counter() - began) * 1e3, len(text), text.count(b"\\n")))
print(json.dumps(seen))
"""
"""A scraper of its own process, as Prometheus is: milliseconds, bytes and lines of each scrape."""


async def scrapes(port: int, accept: str, repeats: int) -> list[tuple[float, int, int]]:
    """What the scraper saw."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRAPER, str(port), accept, str(repeats), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return [(took_ms, size, lines) for took_ms, size, lines in json.loads(out)]


async def measured(args: argparse.Namespace) -> None:
    fleet = fleet_of(args.backends, args.models)
    metrics = Metrics(fleet, __version__)
    hour_of_traffic(metrics, args.models, args.hostile)
    settings = Settings(backends=[{"url": "http://127.0.0.1:1"}])
    runner = web.AppRunner(
        build_admin(Deps(fleet=fleet, metrics=metrics, settings=lambda: settings)), access_log=None
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = int(runner.addresses[0][1])
    for accept in ("text/plain", "application/openmetrics-text"):
        cpu_s = time.process_time()
        seen = await scrapes(port, accept, args.repeats)
        cpu_ms = (time.process_time() - cpu_s) * 1e3 / args.repeats
        times = [took_ms for took_ms, _, _ in seen]
        print(
            f"{accept}: {args.backends} backends, {args.models} models, {args.hostile} hostile requests: "
            f"{seen[0][2]} lines, {seen[0][1] / 1024:.0f} KiB; first {times[0]:.1f} ms, "
            f"median {median(times):.1f}, slowest after the first {max(times[1:]):.1f}, CPU {cpu_ms:.1f} each"
        )
    held: list[float] = []
    for _ in range(args.repeats):
        parts = metrics.text()
        while True:
            began = time.perf_counter()
            if next(parts, None) is None:
                break
            held.append((time.perf_counter() - began) * 1e3)
    print(
        f"held the loop in {len(held) // args.repeats} parts: median {median(held):.2f} ms, longest {max(held):.2f} ms"
    )
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description=__doc__)
    parser.add_argument("--backends", type=int, default=64)
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--hostile", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=21)
    uvloop.run(measured(parser.parse_args()))


if __name__ == "__main__":
    main()
