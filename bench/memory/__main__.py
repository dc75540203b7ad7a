"""Distinct prompts through the product's own path, from body to released lease, and the process's memory meanwhile.

Every prompt is new: an eighth is a system prompt that all share, the rest its own. Half of them name a session that
nobody named before, so that neither named sessions nor conversations known by their prompt can be remembered for
ever. Each request is parsed, keyed, routed, leased, answered with usage and released, on one event in time after the
other; `settle` runs as in the proxy. Printed for each part of the run: the resident memory, the number of blocks that
Python has allocated, and what of the tables is taken.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson

from stickyroute import defaults
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape
from stickyroute.openai.usage import Usage
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.policies import POLICIES, make_policy
from stickyroute.routing.router import Router

PROMPTS = 1_000_000
PROMPT_BYTES = 4096
PARTS = 10
RATE_S = 200.0  # requests a second: so fast does the clock go


def bodies(count: int, prompt_bytes: int) -> Iterator[tuple[dict[bytes, bytes], bytes]]:
    """(headers, body) of `count` chats, no two alike."""
    text = random.Random("memory").randbytes(1 << 20).hex()
    system = {"role": "system", "content": text[: prompt_bytes // 8]}
    own = prompt_bytes - prompt_bytes // 8
    for number in range(count):
        begin = number * 37 % (len(text) - own)
        content = f"{number} {text[begin : begin + own]}"[:own]
        messages = [system, {"role": "user", "content": content}]
        headers = {b"x-session-id": b"session-%d" % number} if number % 2 else {}
        yield headers, orjson.dumps({"model": "llama", "stream": True, "messages": messages})


def resident_bytes() -> int:
    """What the process has of the machine's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    arguments.add_argument("--prompts", type=int, default=PROMPTS)
    arguments.add_argument("--prompt-bytes", type=int, default=PROMPT_BYTES)
    arguments.add_argument("--backends", type=int, default=16)
    arguments.add_argument("--policy", choices=POLICIES, default="sticky")
    told = arguments.parse_args()
    specs = [BackendSpec(f"gpu-{i}", "http", "127.0.0.1", 8000 + i) for i in range(told.backends)]
    fleet = Fleet(specs, defaults.RING_VNODES)
    router = Router(make_policy(told.policy), random.Random(1))
    rule = AffinityRule(defaults.AFFINITY_SOURCES, needs=router.needs)
    index = fleet.loads.index
    out = sys.stdout.write
    out(f"{told.policy}, {told.backends} backends, prompts of {told.prompt_bytes} bytes\n\n")
    out(
        f"{'prompts':>9} {'resident':>9} {'blocks':>9} {'index':>9} {'rows used':>9} {'turns':>9} {'anchors':>9}\n"
    )

    def line(done: int) -> None:
        gc.collect()
        out(
            f"{done:>9,} {resident_bytes() / 1e6:>6.1f} MB {sys.getallocatedblocks():>9,} "
            f"{index.memory_bytes / 1e6:>6.1f} MB {index.rows_used:>9,} {len(rule.sessions):>9,} "
            f"{len(rule.anchors.common):>9,}\n"
        )
        sys.stdout.flush()

    line(0)
    step = max(1, told.prompts // PARTS)
    for number, (headers, body) in enumerate(bodies(told.prompts, told.prompt_bytes), 1):
        now_s = number / RATE_S
        asked = parse(Shape.CHAT, body, True)
        pool = fleet.pool(asked.model)
        assert pool is not None  # models are unknown, so everybody serves any
        keys = rule.keys(headers, Shape.CHAT, asked, "", pool.view.slots)
        fleet.settle(now_s)
        decision = router.route(keys, pool.view)
        assert decision is not None  # nobody is down
        lease = fleet.lease(decision.slot, keys, now_s, pool)
        assert lease is not None  # there is no limit
        lease.first_token(now_s + 0.05)
        lease.usage(Usage(told.prompt_bytes // 4, int(lease.held_tokens), 50), now_s + 0.5)
        lease.release(now_s + 0.5)
        if not number % step:
            line(number)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
