"""`python -m bench.drivers NAME --backend URL ...`: start one router, say where it is, stop it when asked.

Prints one line of JSON when the router answers, {"name", "label", "url", "port", "pids"}, then runs until its
standard input closes or it gets SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from bench.drivers import DRIVERS, DriverError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.drivers", description=__doc__)
    parser.add_argument("name", choices=sorted(DRIVERS))
    parser.add_argument("--backend", action="append", required=True, metavar="URL")
    parser.add_argument(
        "--policy", default="", help="the router's own name of a policy; its usual one if absent"
    )
    parser.add_argument("--peers-venv", action="append", default=[], metavar="DIR")
    args = parser.parse_args(argv)
    driver = DRIVERS[args.name].find(args.peers_venv)
    if driver is None:
        print(f"{args.name} is not installed here", file=sys.stderr)
        return 2
    driver.policy = args.policy
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix=f"stickyroute-{args.name}-") as folder:
        try:
            running = driver.start(args.backend, Path(folder))
        except DriverError as error:
            print(f"{args.name}: {error}", file=sys.stderr)
            return 1
        try:
            ready = {"name": driver.name, "label": driver.label, "url": running.url, "port": running.port}
            print(json.dumps({**ready, "pids": running.pids()}), flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            pass
        finally:
            running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
