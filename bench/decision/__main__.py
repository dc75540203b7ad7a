"""Times parse + key + decision for prompts of 1, 32 and 200 KB on 16 backends, in microseconds.

Each figure is the median of the repeats, each repeat the mean of a run of calls.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from timeit import repeat

import orjson

from stickyroute import defaults
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.openai.request import parse
from stickyroute.openai.routes import RouteTable, Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.policies import POLICIES, make_policy
from stickyroute.routing.router import Router

BACKENDS = 16
PROMPT_BYTES = (1024, 32 * 1024, 200 * 1024)
SENTENCE = "The prefix cache of an engine keeps what it has seen of every prompt so far. "


def chat_body(prompt_bytes: int, user: str | None) -> bytes:
    """A chat request whose messages hold `prompt_bytes` of text."""
    text = (SENTENCE * (prompt_bytes // len(SENTENCE) + 1))[:prompt_bytes]
    half = prompt_bytes // 2
    messages = [{"role": "system", "content": text[:half]}, {"role": "user", "content": text[half:]}]
    body = {"model": "llama", "stream": True, "messages": messages}
    return orjson.dumps(body if user is None else {**body, "user": user})


def median_us(call: Callable[[], object], repeats: int) -> float:
    """The median over `repeats` runs of the mean time of one call."""
    once_s = min(repeat(call, number=20, repeat=3)) / 20
    number = max(20, int(0.02 / once_s))
    return statistics.median(took / number * 1e6 for took in repeat(call, number=number, repeat=repeats))


def busy_fleet(rand: random.Random) -> Fleet:
    """Every backend with a handful of requests in flight, as in the middle of a day."""
    specs = [BackendSpec(f"gpu-{i}", "http", "127.0.0.1", 8000 + i) for i in range(BACKENDS)]
    fleet = Fleet(specs, defaults.RING_VNODES)
    for slot in range(BACKENDS):
        for _ in range(rand.randrange(6, 10)):
            fleet.lease(slot)
    return fleet


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.decision", description=__doc__)
    arguments.add_argument("--repeats", type=int, default=9)
    repeats = arguments.parse_args().repeats
    rand = random.Random(1)
    fleet = busy_fleet(rand)
    rule = AffinityRule(defaults.AFFINITY_SOURCES)
    router = Router(make_policy(defaults.POLICY), rand)
    routes = RouteTable()
    headers = {b"host": b"h", b"content-type": b"application/json", b"user-agent": b"bench"}
    out = sys.stdout.write
    out(f"microseconds, median of {repeats} repeats\n")
    out(f"{'prompt':>10} {'key from':>9} {'parse':>8} {'key':>8} {'decide':>8} {'whole':>8}\n")

    def whole(body: bytes) -> object:
        route = routes.match(b"POST", b"/v1/chat/completions")
        assert route is not None
        asked = parse(route.shape, body, True)
        pool = fleet.pool(asked.model)
        assert pool is not None
        return router.route(rule.keys(headers, route.shape, asked, ""), pool.view, ())

    view = fleet.pool(None).view
    for size in PROMPT_BYTES:
        for source, user in (("user", "user-17"), ("prefix", None)):
            body = chat_body(size, user)
            asked = parse(Shape.CHAT, body, True)
            keys = rule.keys(headers, Shape.CHAT, asked, "")
            columns = (
                median_us(lambda body=body: parse(Shape.CHAT, body, True), repeats),
                median_us(lambda asked=asked: rule.keys(headers, Shape.CHAT, asked, ""), repeats),
                median_us(lambda keys=keys: router.route(keys, view, ()), repeats),
                median_us(lambda body=body: whole(body), repeats),
            )
            figures = " ".join(f"{column:8.2f}" for column in columns)
            out(f"{size // 1024:>7} KB {source:>9} {figures}\n")
    out("\neach policy's decision, with a key\n")
    for name in POLICIES:
        other = Router(make_policy(name), rand)
        out(f"{name:>20} {median_us(lambda other=other: other.route(keys, view, ()), repeats):8.2f}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
