"""`stickyroute bench`: replay, run, compare, report.

Owns the flags, the files written and the progress shown. The work is in `jobs`, `load` and `compare`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import uvloop
import yaml

from stickyroute import __version__
from stickyroute.benchmark.compare import compare
from stickyroute.benchmark.engines import Engines
from stickyroute.benchmark.jobs import Done, run_scenario
from stickyroute.benchmark.load import Load
from stickyroute.benchmark.progress import Progress
from stickyroute.benchmark.report import page, table
from stickyroute.benchmark.report.document import Report
from stickyroute.benchmark.results import EngineTotals, Row, Run, Summary, summarize
from stickyroute.benchmark.scenario import Scenario, load_scenario, quick_scenario, standard_scenario
from stickyroute.benchmark.workloads import WORKLOADS, make_workload
from stickyroute.errors import ConfigError

_OUT = Path("bench-results")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `stickyroute bench` with `argv` (without "bench") and return the exit code.

    Without a command it is `replay`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "replay")
    flags = _parser().parse_args(arguments)
    try:
        code: int = flags.run(flags)
        return code
    except (ConfigError, ValueError) as error:
        print(f"stickyroute bench: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stickyroute bench", description="Measure routing. See docs/benchmarking.md."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    replay = commands.add_parser(
        "replay",
        help="policies on simulated engines in virtual time: a scenario, or --workload",
        description="Replay workloads through policies onto simulated engines, in virtual time. Without a "
        "scenario or a workload, three workloads with round_robin, ring and bounded_ring.",
    )
    replay.set_defaults(run=_replay)
    _add_scenario(replay)
    replay.add_argument("--replicas", type=int, metavar="N", help="router replicas, each with its own state")
    replay.add_argument(
        "--processes", type=int, default=min(8, os.cpu_count() or 1), help="worker processes (default: cores)"
    )

    run = commands.add_parser(
        "run",
        help="one workload over HTTP, open loop, against any OpenAI-compatible address",
        description="Send a workload to URL, open loop. Exit code 3 if the load generator fell behind: "
        "such a run has no figures.",
    )
    run.set_defaults(run=_run)
    run.add_argument("url", metavar="URL", help="base URL without /v1")
    run.add_argument("--model", default="sim", help="the model to ask for (default sim)")
    run.add_argument(
        "--engine", action="append", default=[], metavar="URL", help="an engine whose counters to read"
    )
    run.add_argument("--workload", default="chat", choices=sorted(WORKLOADS))
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the workload"
    )
    run.add_argument("--seed", type=int, default=0)
    _add_out(run)

    peers = commands.add_parser(
        "compare",
        help="each router in turn over HTTP in front of the same simulated fleet",
        description="Start a simulated fleet with cold caches and each router in turn in front of it, "
        "interleaved over repeats. Needs a checkout, for bench/drivers.",
    )
    peers.set_defaults(run=_compare)
    _add_scenario(peers)
    peers.add_argument(
        "--router", action="append", default=[], metavar="NAME[:POLICY]", help="see bench/drivers"
    )
    peers.add_argument(
        "--peers-venv", action="append", default=[], metavar="DIR", help="where peers are installed"
    )

    report = commands.add_parser(
        "report",
        help="table and page again, from JSON files",
        description="Render results again; several are joined.",
    )
    report.set_defaults(run=_report)
    report.add_argument("files", nargs="+", type=Path, metavar="FILE")
    _add_out(report)
    return parser


def _add_scenario(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "scenario", nargs="?", type=Path, metavar="SCENARIO", help="YAML file, see bench/scenarios"
    )
    command.add_argument("--workload", action="append", default=[], choices=sorted(WORKLOADS))
    command.add_argument(
        "--policy", action="append", default=[], metavar="NAME", help="a policy, or omniscient"
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a workload's parameter"
    )
    command.add_argument("--seeds", type=int, metavar="N", help="repeats with different seeds (default 3)")
    command.add_argument(
        "--rate", action="append", default=[], type=float, help="run at this rate; may be repeated"
    )
    _add_out(command)


def _add_out(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", type=Path, default=_OUT, metavar="DIR", help=f"where files go (default {_OUT}/)"
    )


def _scenario(flags: argparse.Namespace) -> Scenario:
    """The file's, the flags', or the standard one; flags win over the file."""
    if flags.workload:
        scenario = quick_scenario(
            flags.workload,
            flags.policy or ["round_robin", "ring", "bounded_ring"],
            flags.seeds or 3,
            _set(flags.set),
        )
    else:
        scenario = load_scenario(flags.scenario) if flags.scenario else standard_scenario()
        if flags.policy:
            scenario = replace(scenario, policies=tuple(flags.policy))
        if flags.seeds:
            scenario = replace(scenario, seeds=flags.seeds)
    if flags.rate:
        scenario = replace(scenario, rates=tuple(flags.rate))
    return scenario


def _set(assignments: Sequence[str]) -> dict[str, Any]:
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError("--set: write KEY=VALUE, such as rate=30")
        values[key] = yaml.safe_load(text)
    return values


def _replay(flags: argparse.Namespace) -> int:
    scenario = _scenario(flags)
    if flags.replicas:
        scenario = replace(scenario, replicas=(flags.replicas,))
    progress = Progress(scenario.name)

    def tell(done: int, whole: int, last: Summary) -> None:
        progress.step(done / whole, f"{done}/{whole}  {last.workload}, {last.policy}, seed {last.seed}")

    found = run_scenario(scenario, flags.processes, tell)
    progress.done(f"{len(found)} runs")
    return _write(scenario, found, flags.out, f"replay-{scenario.name}", ["virtual time, no sockets"])


def _compare(flags: argparse.Namespace) -> int:
    scenario = _scenario(flags)
    progress = Progress(scenario.name)
    found, labels = uvloop.run(compare(scenario, flags.router, flags.peers_venv, progress.update))
    progress.done(f"{len(found)} runs")
    return _write(scenario, found, flags.out, f"compare-{scenario.name}", ["over HTTP, real time", *labels])


def _write(scenario: Scenario, found: list[Done], out: Path, stem: str, facts: list[str]) -> int:
    profile = scenario.spec.profile
    room = profile.blocks * profile.block_size
    report = Report(
        title=f"stickyroute bench: {scenario.name}",
        made=_made(),
        facts=[
            *([scenario.about] if scenario.about else []),
            f"{scenario.spec.engines} simulated engines, {profile.name}, {room:,} KV tokens each",
            *facts,
        ],
        slo_ttft_s=scenario.slo_ttft_s,
        gpu_hour_usd=scenario.gpu_hour_usd,
        summaries=[one.summary for one in found],
        series=[one.series for one in found if one.series is not None],
    )
    return _save(report, out, stem)


def _save(report: Report, out: Path, stem: str) -> int:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}.json").write_text(report.as_json(), encoding="utf-8")
    (out / f"{stem}.html").write_text(page.render(report), encoding="utf-8")
    print(table.render(report))
    print(f"\n{out / stem}.json\n{out / stem}.html")
    return 3 if report.summaries and all(summary.refused for summary in report.summaries) else 0


def _made() -> str:
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, stickyroute {__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )


def _report(flags: argparse.Namespace) -> int:
    reports = [Report.read(path) for path in flags.files]
    first = reports[0]
    for other in reports[1:]:
        first.facts += [fact for fact in other.facts if fact not in first.facts]
        first.summaries += other.summaries
        first.series += other.series
    return _save(first, flags.out, "report" if len(reports) > 1 else flags.files[0].stem)


def _run(flags: argparse.Namespace) -> int:
    return uvloop.run(_run_http(flags))


async def _run_http(flags: argparse.Namespace) -> int:
    workload = make_workload(flags.workload, _set(flags.set))
    progress = Progress(flags.workload)
    engines = Engines([url.rstrip("/") for url in flags.engine])
    count = 0

    def tell(row: Row) -> None:
        nonlocal count
        count += 1
        progress.update(row.at_s / workload.seconds, f"{count} answers")

    await engines.begin()
    try:
        load = Load(flags.url, flags.model, on_row=tell)
        requests = workload.requests(Random(f"workload {flags.seed}"))
        loaded = await load.run(requests, engines.sample if flags.engine else None)
        gained = await engines.gained() if flags.engine else _totals(loaded.rows)
    finally:
        await engines.end()
    progress.done(f"{count} answers in {loaded.duration_s:.0f} s")
    run = Run(
        flags.workload, flags.url, flags.seed, loaded.duration_s, loaded.rows, gained, loaded.samples,
        loaded.lateness, how="http", rate=workload.rate,
    )  # fmt: skip
    source = (
        "hit rate by the engines' counters"
        if flags.engine
        else "hit rate by usage.cached_tokens of the replies"
    )
    late = loaded.lateness
    facts = [source, f"load generator late by {late.p50_s * 1e3:.1f} ms p50, {late.p99_s * 1e3:.1f} ms p99"]
    report = Report(f"{flags.workload} against {flags.url}", _made(), facts, 1.0, 2.5, [summarize(run)])
    return _save(report, flags.out, f"run-{flags.workload}")


def _totals(rows: list[Row]) -> list[EngineTotals]:
    """Without engines to ask, what their replies reported."""
    known = [row for row in rows if row.cached_tokens is not None]
    return [
        EngineTotals(
            queries=sum(row.prompt_tokens for row in known),
            hits=sum(row.cached_tokens or 0 for row in known),
            requests=len(rows),
        )
    ]
