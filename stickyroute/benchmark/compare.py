"""Each router in turn, over HTTP, in front of the same simulated fleet with cold caches.

Owns the order of a comparison: repeats outermost and routers inside, so that what else the machine does
hits all of them alike; a fresh fleet and a fresh router for every run; the load in a process of its own
(this one). Routers are started by `bench.drivers`, which a checkout has and an installed package has not.

One run that fails costs its own figures and nothing else: the reason stands where they would be, and it is
tried again once all others have been run, while the time allows.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from stickyroute import defaults
from stickyroute.benchmark.engines import Engines
from stickyroute.benchmark.jobs import Done, done
from stickyroute.benchmark.load import Load
from stickyroute.benchmark.results import Row, Run, summarize
from stickyroute.benchmark.scenario import OMNISCIENT, Case, Scenario
from stickyroute.benchmark.workloads import make_workload
from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError

DIRECT = "direct"
"""No router: the load generator itself goes round the engines."""
_START_S = 20.0
_STOP_S = 10.0
_ATTEMPTS = 3
_WHY_LETTERS = 240

Key = tuple[str, float, str, int]
"""Which run: workload, rate, router, repeat."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """The routers: (name in the report, driver or None for direct); those not installed here; what a driver
    raises when its router does not start."""

    routers: list[tuple[str, Any]]
    absent: list[str]
    error: type[Exception]

    @property
    def labels(self) -> list[str]:
        """The versions in one line, and which routers are not here in another."""
        versions = {driver.name: driver.version for _, driver in self.routers if driver is not None}
        lines = [", ".join(f"{name} {version}" for name, version in versions.items())] if versions else []
        if self.absent:
            lines.append(f"not installed here: {', '.join(self.absent)}")
        return lines


class Comparison:
    """All runs of a scenario. `known` are runs of before, which are not run again.

    `tell(share, note)` is called as a run goes on, `keep(results so far)` after each run. No run is tried
    again past `within_s` of wall clock, and none is begun that would probably end later; a run that was left
    out is in the results, without figures.
    """

    def __init__(
        self,
        scenario: Scenario,
        lineup: Lineup,
        tell: Callable[[float, str], None],
        keep: Callable[[list[Done], float, str], None],
        known: Sequence[Done] = (),
        within_s: float = math.inf,
    ) -> None:
        self._scenario = scenario
        self._lineup = lineup
        self._tell = tell
        self._keep = keep
        self._within_s = within_s
        self._began_s = monotonic()
        self._walls_s: list[float] = []
        self._plan: dict[Key, tuple[Case, str, Any, int]] = {}
        for seed in range(scenario.seeds):
            for case in scenario.runs():
                rate = make_workload(case.workload, case.parameters).rate
                for name, driver in lineup.routers:
                    if any(name == left_out or name.startswith(f"{left_out} ") for left_out in case.without):
                        continue
                    self._plan[(case.label, round(rate, 3), name, seed)] = (case, name, driver, seed)
        self._found = {
            key: one for one in known if (key := _key(one)) in self._plan and not one.summary.refused
        }

    async def run(self) -> list[Done]:
        """Run what is not known yet, then again what has no figures. In the scenario's order."""
        for attempt in range(_ATTEMPTS):
            for key, planned in self._plan.items():
                one = self._found.get(key)
                if one is None or (attempt and one.summary.refused):
                    await self._next(key, planned, again=attempt > 0)
        return self.results()

    def results(self) -> list[Done]:
        return [self._found[key] for key in self._plan if key in self._found]

    async def _next(self, key: Key, planned: tuple[Case, str, Any, int], again: bool) -> None:
        case, name, _driver, seed = planned
        whole = len(self._plan)
        note = f"{case.label}, {name}, repeat {seed + 1}"
        usual_s = sum(self._walls_s) / len(self._walls_s) if self._walls_s else 0.0
        if monotonic() - self._began_s + usual_s > self._within_s:
            if not again:
                self._found[key] = self._without(planned, "left out, since the time was up (--within)")
            return
        began_s = monotonic()
        one = await self._attempt(planned, note)
        self._walls_s.append(monotonic() - began_s)
        self._found[key] = one
        left_s = sum(self._walls_s) / len(self._walls_s) * (whole - len(self._found))
        after = f"; about {left_s / 60:.0f} min left" if left_s else ""
        outcome = one.summary.refused or f"TTFT mean {one.summary.ttft_mean_s * 1e3:.0f} ms"
        self._keep(self.results(), len(self._found) / whole, f"{note}: {outcome}{after}")

    async def _attempt(self, planned: tuple[Case, str, Any, int], note: str) -> Done:
        case = planned[0]
        share, part = len(self._found) / len(self._plan), 1 / len(self._plan)
        seconds = max(1.0, make_workload(case.workload, case.parameters).seconds)

        def on_row(row: Row) -> None:
            self._tell(share + min(1.0, row.at_s / seconds) * part, note)

        failures = (
            self._lineup.error, ConfigError, aiohttp.ClientError, OSError, TimeoutError,
            subprocess.SubprocessError,
        )  # fmt: skip
        try:
            run = await _one(self._scenario, planned, on_row)
        except failures as error:
            return self._without(planned, f"it did not run: {str(error) or type(error).__name__}")
        return done(self._scenario, run)

    def _without(self, planned: tuple[Case, str, Any, int], why: str) -> Done:
        """The place of a run that has no figures."""
        case, name, _driver, seed = planned
        rate = make_workload(case.workload, case.parameters).rate
        run = Run(case.label, name, seed, 1.0, [], [], how="http", rate=rate)
        words = " ".join(why.split())
        if len(words) > _WHY_LETTERS:  # of a router's output the end tells why it stopped
            words = f"{words[:60]} ... {words[-_WHY_LETTERS:]}"
        return Done(replace(summarize(run), refused=words), None)


def _key(one: Done) -> Key:
    summary = one.summary
    return summary.workload, round(summary.rate, 3), summary.policy, summary.seed


def find_routers(scenario: Scenario, routers: Sequence[str], venvs: Sequence[str]) -> Lineup:
    """`routers` are NAME or NAME:POLICY; without any, every policy of the scenario through stickyroute, and
    every router of the scenario that is installed here or in `venvs`.

    Raises ConfigError for a name nobody knows, and for one that was asked for and is not installed.
    """
    try:
        drivers = importlib.import_module("bench.drivers")
    except ModuleNotFoundError:
        sys.path.insert(0, str(Path.cwd()))
        try:
            drivers = importlib.import_module("bench.drivers")
        except ModuleNotFoundError:
            raise ConfigError("compare starts routers with bench/drivers: run it in a checkout") from None
    wanted = list(routers)
    if not wanted:
        wanted = [f"stickyroute:{policy}" for policy in scenario.policies if policy != OMNISCIENT]
        wanted += scenario.routers
    lineup = Lineup([], [], drivers.DriverError)
    for text in wanted:
        name, _, policy = text.partition(":")
        if name == DIRECT:
            lineup.routers.append((f"{DIRECT} round_robin", None))
            continue
        if name not in drivers.DRIVERS:
            raise ConfigError(f"routers: unknown {name!r}; known: {DIRECT}, {', '.join(drivers.DRIVERS)}")
        driver = drivers.DRIVERS[name].find(list(venvs))
        if driver is None:
            if routers:
                raise ConfigError(f"routers: {name} is not installed here")
            if name not in lineup.absent:
                lineup.absent.append(name)
            continue
        driver.policy = policy
        if name == "stickyroute":
            # Its launcher keys on one field, for the cost rig; here the product's own default is on trial.
            os.environ["STICKYROUTE_AFFINITY__SOURCES"] = json.dumps(defaults.AFFINITY_SOURCES)
        lineup.routers.append((f"{name} {policy or driver.default_policy}", driver))
    if not lineup.routers:
        raise ConfigError("nothing to compare: no router was found")
    return lineup


async def _one(scenario: Scenario, planned: tuple[Case, str, Any, int], on_row: Callable[[Row], None]) -> Run:
    """One run of one router on a fleet of its own."""
    case, name, driver, seed = planned
    workload = make_workload(case.workload, case.parameters)
    with tempfile.TemporaryDirectory(prefix="stickyroute-compare-") as folder:
        async with _fleet(scenario) as urls:
            running = None
            if driver is not None:
                running = await asyncio.to_thread(driver.start, urls, Path(folder))
            engines = Engines(urls)
            try:
                await engines.begin()
                load = Load(running.url if running is not None else urls, "sim", on_row=on_row)
                requests = workload.requests(Random(f"workload {seed}"))
                loaded = await load.run(requests, engines.sample, scenario.grace_s)
                gained = await engines.gained()
            finally:
                await engines.end()
                if running is not None:
                    await asyncio.to_thread(running.stop)
    return Run(
        workload=case.label,
        policy=name,
        seed=seed,
        duration_s=loaded.duration_s,
        rows=loaded.rows,
        engines=gained,
        samples=loaded.samples,
        lateness=loaded.lateness,
        how="http",
        rate=workload.rate,
    )


@asynccontextmanager
async def _fleet(scenario: Scenario) -> AsyncIterator[list[str]]:
    """The engines of a scenario in a process of their own, with cold caches; yields their URLs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stickyroute.benchmark.fleet_process", json.dumps(scenario.fleet),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        urls = line.decode().split()
        if len(urls) != scenario.spec.engines:
            raise ConfigError("the simulated fleet did not start")
        yield urls
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
