"""A surge that fills every KV cache, and how soon the hit rate is back: `python -m bench.kappa.thrash`.

Owns the one experiment: shared prefixes at a rate the fleet carries, for a while at one it does not, and the first
rate again. Prints the hit rate and TTFT of each stretch of time by arrival, in virtual time. "Back" is 95 % of
the hit rate just before the surge.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.replay import Replay
from stickyroute.benchmark.results import Row
from stickyroute.benchmark.workloads import make_workload

STAGES = ((15.0, 50.0), (12.0, 60.0), (40.0, 40.0), (12.0, 120.0))
"""(requests a second, seconds): warming up, steady, the surge, steady again."""

STEP_S = 20.0


def hits(rows: Sequence[Row], begin_s: float, end_s: float) -> tuple[float, float]:
    """(hit rate, mean TTFT in seconds) of what arrived in between; zeros for nothing."""
    found = [row for row in rows if begin_s <= row.at_s < end_s and row.ttft_s is not None]
    prompts = sum(row.prompt_tokens for row in found)
    if not prompts:
        return 0.0, 0.0
    return (
        sum(row.cached_tokens or 0 for row in found) / prompts,
        sum(row.ttft_s or 0.0 for row in found) / len(found),
    )


def recovery_s(rows: Sequence[Row], before: float, end_s: float, last_s: float) -> float | None:
    """Seconds after `end_s` until a stretch has 95 % of `before` and none after it has less; None for never."""
    back: float | None = None
    at_s = end_s
    while at_s < last_s:
        rate, _ = hits(rows, at_s, at_s + STEP_S)
        back = (at_s - end_s if back is None else back) if rate >= 0.95 * before else None
        at_s += STEP_S
    return back


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.kappa.thrash", description=__doc__)
    arguments.add_argument("--policy", action="append", help="default: sticky, bounded_ring, omniscient")
    arguments.add_argument("--seeds", type=int, default=3)
    flags = arguments.parse_args()
    ends = [sum(seconds for _, seconds in STAGES[: number + 1]) for number in range(len(STAGES))]
    workload = make_workload("shared_prefixes", {"stages": STAGES, "answer_tokens": 1000})
    for policy in flags.policy or ("sticky", "bounded_ring", "omniscient"):
        for seed in range(flags.seeds):
            rows = Replay(workload, policy, FleetSpec(), seed).run().rows
            before, calm_s = hits(rows, ends[0] + 20.0, ends[1])
            surge, surge_s = hits(rows, ends[1], ends[2])
            back = recovery_s(rows, before, ends[2], ends[3])
            sys.stdout.write(
                f"{policy:13} seed {seed}: before {before:.3f} ({calm_s:.2f} s), surge {surge:.3f} ({surge_s:.2f} s), "
                f"back after {'never' if back is None else f'{back:.0f} s'}\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
