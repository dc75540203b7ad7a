"""`python -m bench.chaos --seconds 120 --seed 1`: 8 simulated engines, two replicas of `stickyroute serve`, 100
requests a second, and everything that can go wrong. Prints a report as JSON; exits with 1 if a promise was broken:

- no request is lost (not answered at all) or answered twice, and none was finished by two engines;
- every engine that was well again is used again;
- no request fails, but streams that had begun on an engine that was then killed, restarted, reset or lost its core.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.chaos.day import CUTS, Day, Event
from bench.chaos.load import Load, Outcome
from bench.chaos.processes import Configuration, Engine, Replica


async def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rand = random.Random(options.seed)
    engines = [Engine(number, folder, options.speedup) for number in range(options.engines)]
    config = Configuration(folder / "fleet.yaml", engines, options.policy)
    config.write()
    replicas = [Replica(number, folder, config.path) for number in range(2)]
    day = Day(engines, replicas, config, rand)
    load = Load(replicas, options.rate, options.users, random.Random(options.seed + 1))
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        await asyncio.gather(*(replica.start() for replica in replicas))
        began_s = time.monotonic()
        clients = asyncio.create_task(load.run(), name="clients")
        await asyncio.sleep(3)
        await day.run(options.seconds)
        await asyncio.sleep(2)
        await load.stop()
        await clients
        lines = {replica.name: len(replica.log.read_bytes().splitlines()) for replica in replicas}
        tracebacks = sum(replica.log.read_text().count("Traceback") for replica in replicas)
        left = [await replica.fleet() for replica in replicas]
    finally:
        for process in (*replicas, *engines):
            await process.close()
    report = judge(load.outcomes, day.events, engines, began_s)
    report["log_lines"] = lines
    report["tracebacks"] = tracebacks
    report["in_flight_at_the_end"] = sum(b["in_flight"] for fleet in left for b in fleet.values())
    return report


def judge(
    outcomes: list[Outcome], events: list[Event], engines: list[Engine], began_s: float
) -> dict[str, Any]:
    finished: collections.Counter[str] = collections.Counter()
    for engine in engines:
        for line in engine.requests.read_text().splitlines():
            what, request_id = line.split(" ")
            finished[request_id] += what == "done"
    kinds = collections.Counter(outcome.kind or "lost" for outcome in outcomes)
    wrong = []
    excused: collections.Counter[str] = collections.Counter()
    for outcome in outcomes:
        if outcome.kind == "whole":
            continue
        fault = _excuse(outcome, events) if outcome.kind == "cut" else None
        if fault is not None:
            excused[fault] += 1
        else:
            wrong.append(
                {
                    "id": outcome.request_id,
                    "kind": outcome.kind or "lost",
                    "why": outcome.why,
                    "backend": outcome.backend,
                    "replica": outcome.replica,
                    "at_s": round(outcome.began_s - began_s, 2),
                    "ended_s": round(outcome.ended_s - began_s, 2),
                    "stream": outcome.stream,
                }
            )
    whole = [outcome for outcome in outcomes if outcome.kind == "whole"]
    return {
        "requests": len(outcomes),
        "whole": kinds["whole"],
        "cut_streams_that_had_begun_on_a_faulty_engine": dict(excused),
        "lost": kinds["lost"],
        "answered_twice": kinds["twice"],
        "finished_by_two_engines": sum(1 for count in finished.values() if count > 1),
        "failures_not_excused": len(wrong),
        "failures": wrong[:20],
        "clients_that_went_to_the_other_replica": sum(outcome.moved > 0 for outcome in outcomes),
        "latency_s": _spread([outcome.ended_s - outcome.began_s for outcome in whole]),
        "events": dict(collections.Counter(event.kind for event in events)),
        "noticed_s": _times(events, "noticed_s"),
        "back_s": _times(events, "back_s"),
        "never_back": [
            f"{event.kind} {event.engine} at {event.at_s - began_s:.1f}"
            for event in events
            if event.shows and len(event.back_s.keys() | event.away) < 2
        ],
        "keys": [
            {
                "at_s": round(event.at_s - began_s, 1),
                "kind": event.kind,
                "moved": event.moved_share,
                "minimum": event.minimum_share,
            }
            for event in events
            if event.moved_share is not None
        ],
        "faults": [
            f"{event.at_s - began_s:.1f}-{max(0.0, event.until_s - began_s):.1f} {event.kind} {event.engine}"
            for event in events
        ],
    }


def _excuse(outcome: Outcome, events: list[Event]) -> str | None:
    """The fault that may have cut a stream: on its engine, of a kind that cuts, while it ran."""
    for event in events:
        until_s = (event.until_s or time.monotonic()) + 1.0
        same = outcome.backend.rstrip("x") == event.engine.rstrip("x")
        if event.kind in CUTS and same and event.at_s - 0.5 <= outcome.ended_s <= until_s:
            return event.kind
    return None


def _times(events: list[Event], name: str) -> dict[str, Any]:
    """By kind: over events and replicas."""
    by_kind: dict[str, list[float]] = {}
    unseen: collections.Counter[str] = collections.Counter()
    for event in events:
        times = list(getattr(event, name).values())
        by_kind.setdefault(event.kind, []).extend(times)
        unseen[event.kind] += not times
    return {
        kind: {**_spread(times), "events_unseen": unseen[kind]}
        for kind, times in sorted(by_kind.items())
        if times
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "count": len(values),
        "median": round(statistics.median(ordered), 3),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max": round(ordered[-1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description="A bad day, made to order.")
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long things go wrong")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--users", type=int, default=80)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--speedup", type=float, default=2.0, help="of the simulated engines")
    parser.add_argument("--policy", default="bounded_ring")
    parser.add_argument("--keep", type=Path, help="folder for logs, instead of one that is removed")
    options = parser.parse_args()
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        report = uvloop.run(run(options, options.keep))
    else:
        with tempfile.TemporaryDirectory(prefix="stickyroute-chaos-") as folder:
            report = uvloop.run(run(options, Path(folder)))
    print(json.dumps(report, indent=2))
    broken = (
        report["lost"]
        + report["answered_twice"]
        + report["finished_by_two_engines"]
        + len(report["never_back"])
    )
    sys.exit(1 if broken + report["failures_not_excused"] else 0)


if __name__ == "__main__":
    main()
