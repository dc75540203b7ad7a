"""Drills in virtual time on simulated engines, with the product's fleet, health, keys and policies.

`members`: one of eight engines dies, comes back empty after 90 s, and a ninth is added 90 s later. Printed: how many
of 20,000 keys got another home, and how few could have; the hit rate before, in the worst 10 s after, and from how
many seconds after the event on three times 10 s in a row had 95 % of it again; whose context was moved, how long one
engine and how long all of them take to compute those contexts, and when 95 % of these users had asked again, before
which nobody can have computed theirs.

`surge`: for a minute three times the traffic, which no longer fits the caches; or as much more by people of one
engine alone. Printed: hit rates before, at worst and after, the seconds from its end until 95 % of before, and those
until 95 % of the users who were there before had asked again.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from statistics import median

from bench.recovery.drill import Drill, Event, asked_again_s, hit_rate, prefill_s, recovered_s
from bench.recovery.surge import Surge
from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.workloads.agentic import Agentic
from stickyroute.benchmark.workloads.chat import Chat
from stickyroute.simulator.profiles import H100_QWEN3_32B

POLICIES = ("sticky", "bounded_ring", "ring", "least_tokens")
WORKLOADS: dict[str, Chat | Agentic] = {
    "chat": Chat(rate=16.0, seconds=420.0),
    "agentic": Agentic(rate=7.0, seconds=420.0),
}
EVENTS = [(150.0, "lose"), (240.0, "return"), (330.0, "add")]
TOLD = {"lose": "an engine dies", "return": "it is back, empty", "add": "one more"}
BEFORE_S = 60.0
SURGE_BLOCKS = 6000  # 96,000 tokens an engine: the steady part fits
WANTED = 0.95


def worst(drill: Drill, begin_s: float, end_s: float) -> float:
    """The lowest hit rate of 10 s."""
    return min(hit_rate(drill.rows, float(at), at + 10.0) for at in range(int(begin_s), int(end_s) - 9))


def moved(event: Event, spec: FleetSpec) -> tuple[int, float, float, float]:
    """Users who were sent elsewhere than before, the seconds that one engine and that all take to compute their
    contexts, and the seconds until 95 % of them had asked again."""
    users = [
        user for user, visit in event.later.items()
        if user in event.visits and event.visits[user].slot != visit.slot
    ]  # fmt: skip
    if not users:
        return 0, 0.0, 0.0, 0.0
    one_s = prefill_s(spec, sum(event.visits[user].tokens for user in users))
    return len(users), one_s, one_s / spec.engines, asked_again_s(event, users)


def members(policy: str, workload: Chat | Agentic, seeds: int) -> list[str]:
    """The lines of one policy's table: medians over the seeds."""
    spec = FleetSpec()
    found: dict[str, list[list[float]]] = {name: [] for _, name in EVENTS}
    lost = 0
    for seed in range(seeds):
        drill = Drill(workload, policy, spec, seed, list(EVENTS))
        drill.run()
        lost += sum(1 for row in drill.rows if row.error)
        ends = [event.at_s for event in drill.events[1:]] + [workload.seconds]
        for event, end_s in zip(drill.events, ends, strict=True):
            before = hit_rate(drill.rows, event.at_s - BEFORE_S, event.at_s)
            found[event.name].append(
                [
                    event.moved,
                    event.minimum,
                    before,
                    worst(drill, event.at_s, min(event.at_s + 60, end_s)),
                    recovered_s(drill.rows, event.at_s, end_s, WANTED * before),
                    *moved(event, spec),
                ]
            )
    lines = []
    for name, runs in found.items():
        keys, least, before, low, back, users, one_s, all_s, asked_s = map(median, zip(*runs, strict=True))
        lines.append(
            f"| `{policy}` | {TOLD[name]} | {keys:.1%} ({least:.1%}) | {before:.1%} | {low:.1%} | {back:.0f} s "
            f"| {users:.0f} | {one_s:.0f} s, {all_s:.1f} s | {asked_s:.0f} s |"
        )
    lines.append(f"\n{policy}: {lost / seeds:.0f} requests in flight were lost with the engine\n")
    return lines


def surge(policy: str, workload: Surge, seeds: int) -> str:
    """One line: medians over the seeds."""
    spec = FleetSpec(replace(H100_QWEN3_32B, blocks=SURGE_BLOCKS), workload.engines)
    found = []
    end_s = workload.begin_s + workload.surge_s
    for seed in range(seeds):
        drill = Drill(workload, policy, spec, seed, [(end_s, "mark")])
        run = drill.run()
        rows = drill.rows
        before = hit_rate(rows, workload.begin_s - BEFORE_S, workload.begin_s)
        waits = [
            row.ttft_s for row in rows if row.ttft_s is not None and workload.begin_s <= row.at_s < end_s
        ]
        found.append(
            [
                before,
                worst(drill, workload.begin_s, end_s),
                recovered_s(rows, end_s, workload.seconds, WANTED * before),
                asked_again_s(
                    drill.events[0], [user for user in drill.events[0].visits if user.startswith("user")]
                ),
                sum(waits) / len(waits),
                sum(engine.preemptions for engine in run.engines),
            ]
        )
    before, low, back, asked_s, ttft_s, preempted = map(median, zip(*found, strict=True))
    what = "the fleet" if workload.engine is None else "one engine's people"
    return (
        f"| `{policy}` | {what} | {before:.1%} | {low:.1%} | {back:.0f} s | {asked_s:.0f} s | {ttft_s:.2f} s "
        f"| {preempted:.0f} |"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m bench.recovery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("drill", choices=("members", "surge"))
    arguments.add_argument("--policies", nargs="+", default=POLICIES, metavar="NAME")
    arguments.add_argument("--workload", choices=WORKLOADS, default="chat", help="of `members`")
    arguments.add_argument("--rate", type=float, help="requests a second, of `members`")
    arguments.add_argument("--seeds", type=int, default=3)
    told = arguments.parse_args()
    workload = WORKLOADS[told.workload]
    if told.rate is not None:
        workload = replace(workload, rate=told.rate)
    out = sys.stdout.write
    if told.drill == "members":
        out(
            "| policy | event | keys moved (least possible) | hit rate before | worst 10 s | 95 % of it again after "
            "| users moved | their contexts, one engine, all | 95 % of them asked again after |\n"
            "|---|---|---|---|---|---|---|---|---|\n"
        )
    else:
        out(
            "| policy | surge of | hit rate before | worst 10 s | 95 % of it again after its end "
            "| 95 % of the users asked again after "
            "| mean TTFT in it | preemptions |\n|---|---|---|---|---|---|---|---|\n"
        )
    for policy in told.policies:
        if told.drill == "members":
            out("\n".join(members(policy, workload, told.seeds)) + "\n")
        else:
            for engine in (None, 0):
                out(surge(policy, Surge(engine=engine), told.seeds) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
