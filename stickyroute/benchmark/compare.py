"""Each router in turn, over HTTP, in front of the same simulated fleet with cold caches.

Owns the order of a comparison: repeats outermost and routers inside, so that what else the machine does
hits all of them alike; a fresh fleet and a fresh router for every run; the load in a process of its own
(this one). Routers are started by `bench.drivers`, which a checkout has and an installed package has not.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from stickyroute import defaults
from stickyroute.benchmark.engines import Engines
from stickyroute.benchmark.jobs import Done, done
from stickyroute.benchmark.load import Load
from stickyroute.benchmark.results import Row, Run
from stickyroute.benchmark.scenario import OMNISCIENT, Case, Scenario
from stickyroute.benchmark.workloads import make_workload
from stickyroute.errors import ConfigError

DIRECT = "direct"
"""No router: the load generator itself goes round the engines."""
_START_S = 20.0
_ATTEMPTS = 3


async def compare(
    scenario: Scenario, routers: Sequence[str], venvs: Sequence[str], tell: Callable[[float, str], None]
) -> tuple[list[Done], list[str]]:
    """Run everything. Returns the results and a line for each router with its version.

    `routers` are NAME or NAME:POLICY; without any, every policy of the scenario through stickyroute, and
    every router of the scenario that is installed here.
    """
    lineup = _lineup(scenario, routers, list(venvs))
    cases = scenario.runs()
    whole = scenario.seeds * len(cases) * len(lineup)
    found: list[Done] = []
    for seed in range(scenario.seeds):
        for case in cases:
            for name, driver in lineup:
                note = f"{case.label}, {name}, repeat {seed + 1}"
                before = len(found) / whole

                seconds = max(1.0, make_workload(case.workload, case.parameters).seconds)

                def on_row(
                    row: Row, before: float = before, note: str = note, seconds: float = seconds
                ) -> None:
                    tell(before + min(1.0, row.at_s / seconds) / whole, note)

                for _ in range(_ATTEMPTS):  # a run whose generator fell behind says nothing of the router
                    run = await _one(scenario, case, name, driver, seed, on_row)
                    if run.lateness.kept_up:
                        break
                found.append(done(scenario, run))
    labels = [f"{name}: {driver.label}" for name, driver in lineup if driver is not None]
    return found, labels


def _lineup(scenario: Scenario, routers: Sequence[str], venvs: list[str]) -> list[tuple[str, Any]]:
    """(name in the report, driver or None for direct)."""
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
    lineup: list[tuple[str, Any]] = []
    for text in wanted:
        name, _, policy = text.partition(":")
        if name == DIRECT:
            lineup.append((f"{DIRECT} round_robin", None))
            continue
        if name not in drivers.DRIVERS:
            raise ConfigError(f"routers: unknown {name!r}; known: {DIRECT}, {', '.join(drivers.DRIVERS)}")
        driver = drivers.DRIVERS[name].find(venvs)
        if driver is None:
            if routers:
                raise ConfigError(f"routers: {name} is not installed here")
            continue
        driver.policy = policy
        if name == "stickyroute":
            # Its launcher keys on one field, for the cost rig; here the product's own default is on trial.
            os.environ["STICKYROUTE_AFFINITY__SOURCES"] = json.dumps(defaults.AFFINITY_SOURCES)
        lineup.append((f"{name} {policy or driver.default_policy}", driver))
    if not lineup:
        raise ConfigError("nothing to compare: no router was found")
    return lineup


async def _one(
    scenario: Scenario, case: Case, name: str, driver: Any, seed: int, on_row: Callable[[Row], None]
) -> Run:
    """One run of one router on a fleet of its own."""
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
                loaded = await load.run(workload.requests(Random(f"workload {seed}")), engines.sample)
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
        await process.wait()
