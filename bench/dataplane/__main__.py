"""`python -m bench.dataplane`: what each router costs, in one command.

Starts a fake fleet, then every router found here (stickyroute, nginx, haproxy; smg, vllm-router,
sglang-router in the virtual environments given), drives each in turn, and prints medians and ratios. See
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from bench.dataplane import report, rig
from bench.drivers import DRIVERS, find_drivers
from bench.drivers.stickyroute import ASKING, OFF, ON, Stickyroute

QUICK_SCALE = 0.3


def machine() -> str:
    """One line on where this ran."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(": ")[2]
            break
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, Linux {platform.release()}, Python {platform.python_version()}"


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.dataplane",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peers-venv", action="append", default=[], metavar="DIR", help="where to look for LLM routers"
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds, interleaved (default 3)")
    parser.add_argument("--quick", action="store_true", help=f"one round, {QUICK_SCALE} of the requests")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the requests of every phase (default 1)"
    )
    parser.add_argument(
        "--only", action="append", choices=list(DRIVERS), help="only this router; may be repeated"
    )
    parser.add_argument(
        "--also", action="append", default=[], metavar="POLICY", help="stickyroute with this policy too"
    )
    parser.add_argument(
        "--checkout",
        type=Path,
        metavar="DIR",
        help="stickyroute of another checkout too, such as the compiled one (`make compiled`)",
    )
    parser.add_argument(
        "--watching",
        action="store_true",
        help="stickyroute with all that watches requests on, with streams asked for their usage too, and with all off",
    )
    parser.add_argument(
        "--phase",
        action="append",
        default=[],
        choices=[phase.key for phase in rig.phases(1)],
        help="only this phase; may be repeated",
    )
    parser.add_argument("--pin", action="store_true", help="router on one core, fleet and load on another")
    parser.add_argument(
        "--spread", action="store_true", help="each stream ticks by itself, not at its engine's steps"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every sample")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parsed(argv)
    drivers = [
        driver for driver in find_drivers(args.peers_venv) if not args.only or driver.name in args.only
    ]
    ours = next((driver for driver in drivers if driver.name == report.OURS), None)
    if ours is not None:
        also = [replace(ours, policy=policy) for policy in args.also]
        watched = [
            replace(cast("Stickyroute", one), watching=watching)
            for one in ([ours, *also] if args.watching else [])
            for watching in (OFF, ON, ASKING)
        ]
        drivers += [*also, *watched]
        if args.checkout is not None:
            there = args.checkout.resolve()
            drivers += [replace(cast("Stickyroute", one), checkout=there) for one in [ours, *also, *watched]]
    if not drivers:
        print("no router found", file=sys.stderr)
        return 2
    repeats, scale = (1, QUICK_SCALE * args.scale) if args.quick else (args.repeats, args.scale)
    began = time.monotonic()
    samples = rig.run(
        drivers,
        repeats=repeats,
        scale=scale,
        pin=args.pin,
        spread=args.spread,
        only=args.phase,
        say=lambda line: print(line, file=sys.stderr),
    )
    print(f"{machine()}; {repeats} round(s), {time.monotonic() - began:.0f} s\n")
    print(report.text(samples))
    if args.json is not None:
        everything = {"machine": machine(), "samples": {name: asdict(one) for name, one in samples.items()}}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(everything, indent=1))
    return 1 if any(one.failures for one in samples.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
