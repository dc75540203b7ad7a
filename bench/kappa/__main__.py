"""Replays a scenario with every way to price a copy, and prints one line a run and a table at the end.

Owns the ways that are not part of the product: one measured kappa for the fleet, and staying where the prefix is
while the first token would come at most so much later than elsewhere. Knees and runs are the benchmark's own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from stickyroute.benchmark.knee import Knee, at_knees, find_knee
from stickyroute.benchmark.omniscient import Omniscient
from stickyroute.benchmark.prompts import Prompt
from stickyroute.benchmark.replay import YARDSTICKS, Replay
from stickyroute.benchmark.results import Summary, median_of, summarize
from stickyroute.benchmark.scenario import Case, Scenario, load_scenario
from stickyroute.benchmark.workloads import make_workload
from stickyroute.benchmark.workloads.base import Request
from stickyroute.fleet import Lease, Tuning
from stickyroute.routing.cost import missing_tokens, prompt_tokens
from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies import POLICIES
from stickyroute.routing.policies.base import Rand
from stickyroute.routing.policies.sticky import Sticky
from stickyroute.routing.view import FleetView
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.scheduler import Sequence as EngineSequence


class Stay(Sticky):
    """Where most of the prefix is, while its first token comes at most two seconds later than the soonest."""

    __slots__ = ()
    name = "stay"
    wait_s = 2.0

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        tokens = prompt_tokens(keys, view)
        found = missing_tokens(keys, view, tokens)
        if found is None:
            return super().choose(keys, view, tried, rand)
        missing, blocks = found
        loads = view.loads
        first_s = [
            (ahead + own) * each_s
            for ahead, own, each_s in zip(
                view.read(loads.backlog_tokens), missing, view.read(loads.token_s), strict=True
            )
        ]
        most = max(blocks)
        warm = min((m for m in view.placed if blocks[m] == most), key=first_s.__getitem__)
        if first_s[warm] <= min(first_s) + self.wait_s:
            return Decision(view.slots[warm], "warm")
        return super().choose(keys, view, tried, rand)


class Measured(Sticky):
    """One price for the whole fleet: the measured kappa."""

    __slots__ = ()
    name = "measured"

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        kappa = view.loads.kappa
        kappa.fixed = kappa.value
        decision = super().choose(keys, view, tried, rand)
        kappa.fixed = None
        return decision


class _Unanswered:
    """A request whose answer is as long as the mean."""

    __slots__ = ("output_tokens", "prompt_tokens", "reply")

    def __init__(self, request: Request, output_tokens: int) -> None:
        self.reply: Prompt = request.reply
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = output_tokens


class Unanswered(Omniscient):
    """The omniscient router without the one thing that no router can know: how long an answer will be. It takes the
    mean of those so far, for the request and for those that run."""

    name = "omniscient without answers"

    def __init__(self, engines: Sequence[Engine], profile: Profile) -> None:
        super().__init__(engines, profile)
        self._answers, self._answer_tokens = 1, 200

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        return super().choose(_Unanswered(request, self._mean), now_s)  # type: ignore[arg-type]

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        real = sequence.output_tokens
        self._answers += 1
        self._answer_tokens += real
        sequence.output_tokens = self._mean
        super().placed(slot, sequence)
        sequence.output_tokens = real

    @property
    def _mean(self) -> int:
        return self._answer_tokens // self._answers

    def _room_s(self, engine: Engine, tokens: int, step_s: float) -> float:
        cache = engine.cache
        short = tokens - cache.free_blocks * cache.block_size
        places = engine.waiting + 1 - (self._profile.sequences - engine.running)
        if short <= 0 and places <= 0:
            return 0.0
        running = max(1, engine.running)
        leaving = max(places, -(-short // max(1, cache.used_tokens // running)))
        return leaving / running * self._mean * step_s


class Unphased(Omniscient):
    """The omniscient router without where in its step an engine is that only decodes: it takes the middle of it. To
    know more a router would have to note the time of every token."""

    name = "omniscient without steps"

    def _cost_s(self, slot: int, hit: int, tokens: int, answer: int) -> float:
        cost_s = super()._cost_s(slot, hit, tokens, answer)
        engine = self._engines[slot]
        left_s, step_s = engine.next_step_s - self._now_s, self._beside_s(engine)
        return cost_s + step_s / 2 - left_s if left_s <= step_s else cost_s


@dataclass(frozen=True, slots=True)
class Way:
    """A policy, and the kappa it is given (None: none is fixed)."""

    name: str
    policy: str
    kappa: float | None = None


WAYS = (
    Way("by queue", "sticky"),
    Way("measured", "measured"),
    Way("0", "sticky", 0.0),
    Way("1", "sticky", 1.0),
    Way("3", "sticky", 3.0),
    Way("8", "sticky", 8.0),
    Way("stay 2 s", "stay", 0.0),
    Way("least_tokens", "least_tokens"),
    Way("omniscient", "omniscient"),
    Way("without answers", Unanswered.name),
    Way("without steps", Unphased.name),
)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.kappa", description=__doc__)
    arguments.add_argument("scenario", type=Path)
    arguments.add_argument(
        "--knees", type=Path, help="JSON of knees found before; written if it is not there"
    )
    arguments.add_argument("--ways", default="", help="names, by comma; default all")
    arguments.add_argument("--workloads", default="", help="labels, by comma; default all")
    arguments.add_argument("--seeds", type=int, help="default: the scenario's")
    arguments.add_argument("--own", action="store_true", help="at the workloads' own loads, without any knee")
    flags = arguments.parse_args()
    YARDSTICKS[Unanswered.name] = Unanswered
    YARDSTICKS[Unphased.name] = Unphased
    POLICIES[Stay.name] = Stay
    POLICIES[Measured.name] = Measured
    scenario = load_scenario(flags.scenario)
    wanted = [label for label in flags.workloads.split(",") if label]
    ways = [way for way in WAYS if not flags.ways or way.name in flags.ways.split(",")]
    seeds = flags.seeds or scenario.seeds
    lines: dict[str, list[str]] = {}
    for case in scenario.cases:
        if wanted and case.label not in wanted:
            continue
        if flags.own:
            loads = [("own", case)]
        else:
            knee = _knee(scenario, case, flags.knees)
            cases = at_knees(scenario, [knee]).cases
            loads = [(f"{factor:g}", loaded) for factor, loaded in zip(scenario.at, cases, strict=True)]
        for factor, loaded in loads:
            cells = []
            for way in ways:
                found = [_run(scenario, loaded, way, seed) for seed in range(seeds)]
                cells.append(f"{median_of(found, lambda s: s.ttft_mean_s):.3f}")
                _tell(case.label, factor, way, found)
            lines.setdefault(case.label, []).append(f"| {case.label} | {factor} | {' | '.join(cells)} |")
    out = sys.stdout.write
    out(f"\n| workload | x knee | {' | '.join(way.name for way in ways)} |\n")
    out(f"|---|---|{'---|' * len(ways)}\n")
    for rows in lines.values():
        out("\n".join(rows) + "\n")
    return 0


def _knee(scenario: Scenario, case: Case, path: Path | None) -> Knee:
    known = json.loads(path.read_text()) if path is not None and path.exists() else {}
    if case.label in known:
        return Knee(case, *known[case.label])
    knee = find_knee(scenario, case)
    if path is not None:
        known[case.label] = [knee.name, knee.load, knee.rate, knee.bounded]
        path.write_text(json.dumps(known))
    return knee


def _run(scenario: Scenario, case: Case, way: Way, seed: int) -> Summary:
    workload = make_workload(case.workload, case.parameters)
    replay = Replay(workload, way.policy, scenario.spec, seed, tuning=Tuning(kappa=way.kappa))
    return summarize(replay.run(), scenario.slo_ttft_s)


def _tell(label: str, factor: str, way: Way, found: Sequence[Summary]) -> None:
    sys.stdout.write(
        f"{label:22} {factor:>4} {way.name:13}"
        f" ttft {median_of(found, lambda s: s.ttft_mean_s):8.3f}"
        f" p95 {median_of(found, lambda s: s.ttft_p95_s):8.3f}"
        f" hit {median_of(found, lambda s: s.hit_rate):.3f}"
        f" e2e p95 {median_of(found, lambda s: s.latency_p95_s):7.2f}"
        f" itl p95 {median_of(found, lambda s: s.itl_p95_s):.4f}"
        f" good {median_of(found, lambda s: s.good):.3f}"
        f" busiest {median_of(found, lambda s: s.imbalance):.2f}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
