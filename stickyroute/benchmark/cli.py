"""`stickyroute bench`: replay, run, compare, report.

Owns the commands and the progress shown. The work is in `jobs`, `single`, `compare` and `knee`; flags become a
scenario in `flags`; what is left behind is `output`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvloop

from stickyroute.benchmark.compare import Comparison, find_routers
from stickyroute.benchmark.flags import add_markdown, add_out, add_scenario, parameters_of, scenario_of_flags
from stickyroute.benchmark.jobs import Done, done, run_scenario
from stickyroute.benchmark.knee import at_knees, find_knees
from stickyroute.benchmark.output import document, made, save, write
from stickyroute.benchmark.progress import Progress
from stickyroute.benchmark.report.document import Report
from stickyroute.benchmark.results import Row, Summary
from stickyroute.benchmark.scenario import Scenario
from stickyroute.benchmark.single import run_single
from stickyroute.benchmark.workloads import WORKLOADS, make_workload
from stickyroute.errors import ConfigError


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
    except (ConfigError, ValueError, OSError) as error:
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
        "scenario or a workload, three workloads with round_robin, ring, bounded_ring and sticky.",
    )
    replay.set_defaults(run=_replay)
    add_scenario(replay)
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
    add_out(run)

    peers = commands.add_parser(
        "compare",
        help="each router in turn over HTTP in front of the same simulated fleet",
        description="Start a simulated fleet with cold caches and each router in turn in front of it, "
        "interleaved over repeats. Needs a checkout, for bench/drivers.",
    )
    peers.set_defaults(run=_compare)
    add_scenario(peers)
    peers.add_argument(
        "--router", action="append", default=[], metavar="NAME[:POLICY]", help="see bench/drivers"
    )
    peers.add_argument(
        "--peers-venv", action="append", default=[], metavar="DIR", help="where peers are installed"
    )
    peers.add_argument(
        "--within", type=float, metavar="MINUTES", help="begin no run that would probably end later"
    )
    peers.add_argument(
        "--resume", action="store_true", help="keep the figures that an interrupted comparison left in --out"
    )

    report = commands.add_parser(
        "report",
        help="table and page again, from JSON files",
        description="Render results again; several are joined.",
    )
    report.set_defaults(run=_report)
    report.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add_out(report)
    add_markdown(report)
    return parser


def _at_knees(scenario: Scenario, processes: int) -> tuple[Scenario, list[str]]:
    """The scenario at the knees of its workloads if it asks for that, and a fact about them."""
    if not scenario.knee:
        return scenario, []
    progress = Progress("knees")
    knees = find_knees(scenario, processes, lambda n, of, last: progress.step(n / of, str(last)))
    progress.done(f"{len(knees)} found")
    told = "; ".join(str(knee) for knee in knees)
    fact = (
        f"knees of {scenario.knee}, the largest load with {scenario.knee_good:.0%} of the first tokens within "
        f"{scenario.slo_ttft_s:g} s: {told}; run at {', '.join(f'{factor:g} x' for factor in scenario.at)}"
    )
    return at_knees(scenario, knees), [fact]


def _replay(flags: argparse.Namespace) -> int:
    scenario = scenario_of_flags(flags)
    if flags.replicas:
        scenario = replace(scenario, replicas=(flags.replicas,))
    scenario, knees = _at_knees(scenario, flags.processes)
    progress = Progress(scenario.name)

    def tell(done: int, whole: int, last: Summary) -> None:
        progress.step(done / whole, f"{done}/{whole}  {last.workload}, {last.policy}, seed {last.seed}")

    found = run_scenario(scenario, flags.processes, tell)
    progress.done(f"{len(found)} runs")
    report = document(scenario, found, ["virtual time, no sockets", *knees])
    return save(report, flags.out, f"replay-{scenario.name}", flags.markdown)


def _compare(flags: argparse.Namespace) -> int:
    scenario = scenario_of_flags(flags)
    lineup = find_routers(scenario, flags.router, flags.peers_venv)
    scenario, knees = _at_knees(scenario, os.cpu_count() or 1)
    stem = f"compare-{scenario.name}"
    how = f"over HTTP, real time, open loop: `stickyroute bench compare {flags.scenario or ''}`"
    progress = Progress(scenario.name)

    def report_of(found: Sequence[Done]) -> Report:
        return document(scenario, found, [how, *knees, *lineup.labels])

    def keep(found: list[Done], share: float, note: str) -> None:
        progress.step(share, note)
        write(flags.out / f"{stem}.json", report_of(found).as_json())

    known = _known(flags.out / f"{stem}.json", scenario) if flags.resume else []
    within_s = flags.within * 60 if flags.within else math.inf
    comparison = Comparison(scenario, lineup, progress.update, keep, known, within_s)
    with _bytecode_kept():
        try:
            uvloop.run(comparison.run())
        except KeyboardInterrupt:
            progress.done("interrupted; --resume goes on from here")
    found = comparison.results()
    progress.done(f"{len(found)} runs")
    return save(report_of(found), flags.out, stem, flags.markdown)


@contextmanager
def _bytecode_kept() -> Iterator[None]:
    """Where no bytecode is kept, each of a hundred fleets and routers would compile every module again."""
    if not os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="stickyroute-bytecode-") as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        try:
            yield
        finally:
            del os.environ["PYTHONPYCACHEPREFIX"]
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _known(path: Path, scenario: Scenario) -> list[Done]:
    """What an interrupted comparison left behind. Raises ConfigError if it was another scenario."""
    if not path.exists():
        return []
    report = Report.read(path)
    if report.scenario != scenario.digest:
        raise ConfigError(
            f"{path} is of another scenario, or of this one before it was changed; leave out --resume"
        )
    return [Done(summary, report.series_of(summary)) for summary in report.summaries]


def _report(flags: argparse.Namespace) -> int:
    reports = [Report.read(path) for path in flags.files]
    first = reports[0]
    for other in reports[1:]:
        first.facts += [fact for fact in other.facts if fact not in first.facts]
        first.summaries += other.summaries
        first.series += other.series
    stem = "report" if len(reports) > 1 else flags.files[0].stem
    return save(first, flags.out, stem, flags.markdown)


def _run(flags: argparse.Namespace) -> int:
    workload = make_workload(flags.workload, parameters_of(flags.set))
    progress = Progress(flags.workload)
    count = errors = 0

    def tell(row: Row) -> None:
        nonlocal count, errors
        count += 1
        errors += bool(row.error)
        failed = f", {errors} failed" if errors else ""
        progress.update(row.at_s / workload.seconds, f"{count} answers{failed}")

    run, facts = uvloop.run(run_single(flags.url, flags.model, workload, flags.seed, flags.engine, tell))
    progress.done(f"{count} answers in {run.duration_s:.0f} s")
    one = done(Scenario(flags.workload), run)
    title = f"{flags.workload} against {flags.url}"
    report = Report(title, made(), facts, 1.0, 2.5, [one.summary], [one.series] if one.series else [])
    return save(report, flags.out, f"run-{flags.workload}")
