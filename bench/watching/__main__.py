"""What looking at a large fleet costs: `python -m bench.watching --backends 500 --seconds 30`.

Processes: this one serves every backend, each on a port of its own, with a real engine's page of metrics;
`stickyroute serve` watches them and has nothing else to do. Prints the share of a core that takes, settled, and
what was asked how often. `--close` has the backends close each connection after its answer, which is the most that
watching can cost; engines close theirs after 5 s without a question.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import time

import uvloop

from bench.dataplane.cpu import cpu_s, rss_bytes
from bench.watching.backends import PAGE, ROOT, Backend, answers, many, stickyroute


async def measure(backends: int, seconds: float, settle_s: float, close: bool) -> dict[str, object]:
    asked: collections.Counter[bytes] = collections.Counter()
    said = answers()
    async with many(backends, lambda: Backend(said, asked, close)) as members, stickyroute(members) as served:
        await asyncio.sleep(settle_s)
        asked.clear()
        cpu, began = cpu_s([served.pid]), time.monotonic()
        await asyncio.sleep(seconds)
        wall = time.monotonic() - began
        used = cpu_s([served.pid]) - cpu
        rss = rss_bytes([served.pid])
    return {
        "backends": backends,
        "page_bytes": PAGE.stat().st_size,
        "wall_s": round(wall, 1),
        "core_share": round(used / wall, 4),
        "a_second": {name.decode(): round(count / wall, 1) for name, count in sorted(asked.items())},
        "rss_mib": round(rss / 2**20, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backends", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settle-s", type=float, default=30.0, help="before it is measured")
    parser.add_argument("--close", action="store_true", help="a connection for each question")
    options = parser.parse_args()
    os.chdir(ROOT)
    result = uvloop.run(measure(options.backends, options.seconds, options.settle_s, options.close))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
