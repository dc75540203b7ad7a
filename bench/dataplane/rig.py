"""Runs the phases: a fleet, a load generator and every router, taking turns.

Owns the processes and the order in which things are measured. What a router is comes from its launcher
(`bench.drivers`), what is sent from `load`, what it means from `report`. In a round every router is started
afresh, and each phase is cut into short slices that the routers take in turn (A, B, C, then C, B, A): what
slows the machine for a second slows all of them, and slice k of one router is the pair of slice k of another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.dataplane.cpu import rss_bytes
from bench.drivers import Driver, DriverError, Running

REPOSITORY = Path(__file__).resolve().parents[2]
DIRECT = "direct"


TRIES = 3  # of a slice that was disturbed
SLICES = 5  # of each phase in a round, after one that only warms up


@dataclass(frozen=True, slots=True)
class Phase:
    """One thing measured: its key in results, what the load generator is asked for one slice of it, and how many
    slices there are in a round at most."""

    key: str
    asked: dict[str, Any]
    slices: int = 1000


def phases(scale: float) -> list[Phase]:
    """The phases of a round. `scale` multiplies how much each sends."""

    def count(requests: int) -> int:
        return max(10, int(requests * scale))

    def closed(key: str, prompt_bytes: int, requests: int, tokens: int) -> Phase:
        asked = {"phase": "closed_loop", "prompt_bytes": prompt_bytes, "tokens": tokens, "connections": 32}
        return Phase(key, {**asked, "requests": count(requests), "warmup": count(requests // 5)})

    streams = {"phase": "paced", "prompt_bytes": 1024, "streams": 100, "every_ms": 20}
    arrivals = {"phase": "open_loop", "prompt_bytes": 1024, "connections": 8, "every_ms": 3}
    return [
        closed("unary_1k", 1024, 1000, 0),
        closed("unary_32k", 32 * 1024, 600, 0),
        closed("unary_200k", 200 * 1024, 200, 0),
        closed("coalesced", 1024, 600, 64),
        # As long as a long answer: what half a second costs swings by half here, up and down within two seconds,
        # for every router alike, and a connection's first packets cost more than those that follow.
        Phase("token", {**streams, "window_s": max(0.1, 8.0 * scale), "slack_s": 0.6}, slices=3),
        Phase("latency", {**arrivals, "requests": count(150), "warmup": count(20)}),
    ]


@dataclass(slots=True)
class Samples:
    """What was measured of one router: per phase one result a slice, None where it went wrong."""

    label: str
    slices: dict[str, list[dict[str, Any] | None]] = field(default_factory=dict)
    idle_rss_bytes: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    disturbed: dict[str, int] = field(default_factory=dict)

    def add(self, phase: str, result: dict[str, Any]) -> None:
        """Keep a good result; a slice with errors, or one that was disturbed, gives no number."""
        bad = result.get("failed") or result["errors"] or result["missing_events"]
        if not bad and result.get("disturbed"):
            self.disturbed[phase] = self.disturbed.get(phase, 0) + 1
            bad = True
        elif bad:
            brief = {key: value for key, value in result.items() if key != "latencies_ms"}
            self.failures.append(f"{phase}: {json.dumps(brief)}")
        self.slices.setdefault(phase, []).append(None if bad else result)

    def good(self, phase: str) -> list[dict[str, Any]]:
        """The results of the slices that went well."""
        return [result for result in self.slices.get(phase, []) if result is not None]


class Child:
    """A process of ours that speaks lines of JSON."""

    def __init__(self, module: str, args: list[str], cpus: set[int] | None) -> None:
        pin = ["taskset", "-c", ",".join(map(str, sorted(cpus)))] if cpus else []
        self._process = subprocess.Popen(
            [*pin, sys.executable, "-m", module, *args],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return self.hear()

    def stop(self) -> None:
        """Close its input, which ends it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def child(module: str, args: list[str], cpus: set[int] | None) -> Iterator[Child]:
    process = Child(module, args, cpus)
    try:
        yield process
    finally:
        process.stop()


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores each side may use; None leaves it to the scheduler."""

    router: set[int] | None
    rest: set[int] | None

    @classmethod
    def chosen(cls, pin: bool) -> Cores:
        """With `pin`, one core for the router and another for fleet and load, where there are two."""
        usable = sorted(os.sched_getaffinity(0))
        if not pin or len(usable) < 2:
            return cls(None, None)
        return cls({usable[-1]}, {usable[0]})


def run(
    drivers: list[Driver],
    *,
    repeats: int,
    scale: float,
    pin: bool,
    spread: bool = False,
    only: Collection[str] = (),
    engines: int = 4,
    say: Callable[[str], None],
) -> dict[str, Samples]:
    """Measure every driver and the fleet without a router (`DIRECT`); samples by driver key.

    `only`: the phases to run, by key; all by default.
    """
    cores = Cores.chosen(pin)
    samples = {DIRECT: Samples("no router"), **{driver.key: Samples(driver.label) for driver in drivers}}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stickyroute-dataplane-")))
        spread_flag = ["--spread"] if spread else []
        fleet_args = ["--engines", str(engines), *spread_flag]
        fleet = stack.enter_context(child("bench.dataplane.fleet", fleet_args, cores.rest))
        ports: list[int] = fleet.hear()["ports"]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        load = stack.enter_context(child("bench.dataplane.load", [], cores.rest))
        for number in range(repeats):
            say(f"round {number + 1} of {repeats}")
            with ExitStack() as started:
                routers: dict[str, Running | None] = {DIRECT: None}
                for driver in drivers:
                    try:
                        running = driver.start(urls, folder / f"{number}-{driver.key}", cores.router)
                    except DriverError as error:
                        samples[driver.key].failures.append(str(error))
                        continue
                    started.callback(running.stop)
                    routers[driver.key] = running
                chosen = [phase for phase in phases(scale) if not only or phase.key in only]
                measure(routers, ports[0], load, chosen, samples, say)
    return samples


def measure(
    routers: dict[str, Running | None],
    fleet_port: int,
    load: Child,
    chosen: list[Phase],
    samples: dict[str, Samples],
    say: Callable[[str], None],
) -> None:
    """One round of all routers; `DIRECT` (no router) takes part where latency is measured."""
    trees = {name: running.pids() for name, running in routers.items() if running is not None}
    for name, pids in trees.items():
        samples[name].idle_rss_bytes.append(rss_bytes(pids))
    for phase in chosen:
        say(f"  {phase.key}")
        for number in range(min(SLICES, phase.slices) + 1):
            turns = list(routers.items())
            for name, running in reversed(turns) if number % 2 else turns:
                if running is None and phase.key != "latency":
                    continue
                port = fleet_port if running is None else running.port
                asked = {**phase.asked, "port": port, "pids": trees.get(name, [])}
                result = load.ask(asked)
                for _ in range(TRIES - 1):
                    if not result.get("disturbed"):
                        break
                    result = load.ask(asked)
                if number:
                    samples[name].add(phase.key, result)
    for name, running in routers.items():
        if running is not None and running.pids() != trees[name]:
            samples[name].failures.append(
                f"the process tree changed while measured: {trees[name]}, {running.pids()}"
            )
