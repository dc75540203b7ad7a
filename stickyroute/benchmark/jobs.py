"""All runs of a scenario in virtual time, over several processes.

Owns the list of runs, the worker processes and what each sends back. One run never depends on another, so the
number of processes changes nothing but the time it takes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

from stickyroute.benchmark.replay import Replay
from stickyroute.benchmark.results import Run, Summary, summarize
from stickyroute.benchmark.scenario import Case, Scenario
from stickyroute.benchmark.workloads import make_workload

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a case, a policy, a seed, a number of replicas."""

    case: Case
    policy: str
    seed: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Done:
    """The figures of a run, and the gauges of its engines over time as JSON values (of the first seed
    only)."""

    summary: Summary
    series: dict[str, Any] | None


def jobs_of(scenario: Scenario) -> list[Job]:
    """Every run, seeds outermost, so that an interrupted scenario has something of everything."""
    jobs: list[Job] = []
    for seed in range(scenario.seeds):
        for case in scenario.runs():
            for replicas in scenario.replicas:
                jobs += [Job(case, policy, seed, replicas) for policy in scenario.policies]
    return jobs


def run_job(scenario: Scenario, job: Job) -> Done:
    """Replay one run."""
    workload = make_workload(job.case.workload, job.case.parameters)
    run = Replay(workload, job.policy, scenario.spec, job.seed, job.replicas).run()
    run.workload = job.case.label
    return done(scenario, run)


def done(scenario: Scenario, run: Run) -> Done:
    """A run boiled down to what reports need."""
    spec = scenario.spec
    per_token_s = spec.profile.time.prefill_token_s * spec.profile.gpus
    return Done(summarize(run, scenario.slo_ttft_s, per_token_s), series_of(run) if run.seed == 0 else None)


def series_of(run: Run) -> dict[str, Any]:
    """The samples of a run, column by column: for each engine a list over time."""
    samples = run.samples
    return {
        "workload": run.workload,
        "policy": run.policy,
        "replicas": run.replicas,
        "rate": run.rate,
        "at_s": [round(sample.at_s, 1) for sample in samples],
        "load": _columns([[r + w for r, w in zip(s.running, s.waiting, strict=True)] for s in samples], 0),
        "kv": _columns([sample.kv for sample in samples], 3),
    }


def _columns(rows: list[list[float]], digits: int) -> list[list[float]]:
    return [[round(value, digits) for value in column] for column in zip(*rows, strict=True)]


def run_scenario(
    scenario: Scenario, processes: int, tell: Callable[[int, int, Summary], None] | None = None
) -> list[Done]:
    """Replay everything. `tell(done, all, last)` after each run. In the scenario's order, whoever was
    first."""
    jobs = jobs_of(scenario)
    told = (lambda count, one: tell(count, len(jobs), one.summary)) if tell is not None else None
    return spread(scenario, run_job, jobs, processes, told)


def spread(
    scenario: Scenario,
    work: Callable[[Scenario, Item], Result],
    items: Sequence[Item],
    processes: int,
    tell: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """`work` on every item, over so many processes; the results in the order of the items. `tell(done, last)` after
    each."""
    found: dict[int, Result] = {}

    def note(place: int, one: Result) -> None:
        found[place] = one
        if tell is not None:
            tell(len(found), one)

    if processes <= 1 or len(items) == 1:
        for place, item in enumerate(items):
            note(place, work(scenario, item))
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            running = {pool.submit(work, scenario, item): place for place, item in enumerate(items)}
            try:
                for future in as_completed(running):
                    note(running[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [found[place] for place in sorted(found)]
