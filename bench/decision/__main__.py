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
WORDS = [
    "the",
    "prefix",
    "cache",
    "of",
    "an",
    "engine",
    "keeps",
    "what",
    "it",
    "has",
    "seen",
    "of",
    "every",
    "prompt",
    "so",
    "far",
]


def chat_body(prompt_bytes: int, user: str | None) -> bytes:
    """A chat request whose messages hold `prompt_bytes` of text."""
    text = " ".join(WORDS * (prompt_bytes // 60 + 1))[:prompt_bytes]
    half = prompt_bytes // 2
    body = {
        "model": "llama",
        "stream": True,
        "messages": [
            {"role": "system", "content": text[:half]},
            {"role": "user", "content": text[half:]},
        ],
    }
    return orjson.dumps(body if user is None else {**body, "user": user})


def median_us(call: Callable[[], object], repeats: int) -> float:
    """The median over `repeats` runs of the mean time of one call."""
    once_s = min(repeat(call, number=20, repeat=3)) / 20
    number = max(20, int(0.02 / once_s))
    return statistics.median(took / number * 1e6 for took in repeat(call, number=number, repeat=repeats))


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.decision", description=__doc__)
    arguments.add_argument("--repeats", type=int, default=9)
    repeats = arguments.parse_args().repeats
    fleet = Fleet(
        [BackendSpec(f"gpu-{i}", "http", "h", 8000 + i) for i in range(BACKENDS)], defaults.RING_VNODES
    )
    random_source = random.Random(1)
    for slot in range(BACKENDS):
        for _ in range(random_source.randrange(6, 10)):
            fleet.lease(slot)
    rule = AffinityRule(defaults.AFFINITY_SOURCES, None, defaults.AFFINITY_PREFIX_BYTES)
    router = Router(make_policy(defaults.POLICY), random_source)
    routes = RouteTable()
    headers = {b"host": b"h", b"content-type": b"application/json", b"user-agent": b"bench"}

    def decide(body: bytes) -> Callable[[], object]:
        def whole() -> object:
            route = routes.match(b"POST", b"/v1/chat/completions")
            assert route is not None
            asked = parse(route.shape, body, True)
            pool = fleet.pool(asked.model)
            assert pool is not None
            return router.route(rule.keys(headers, route.shape, asked, ""), pool.view, ())

        return whole

    out = sys.stdout.write
    out(
        f"{'prompt':>10} {'key from':>9} {'parse':>8} {'key':>8} {'decide':>8} {'whole':>8}   us, median of {repeats}\n"
    )
    for size in PROMPT_BYTES:
        for source, user in (("user", "user-17"), ("prefix", None)):
            body = chat_body(size, user)
            asked = parse(Shape.CHAT, body, True)
            keys = rule.keys(headers, Shape.CHAT, asked, "")
            pool = fleet.pool(asked.model)
            assert pool is not None
            view = pool.view
            columns = (
                median_us(lambda body=body: parse(Shape.CHAT, body, True), repeats),
                median_us(lambda asked=asked: rule.keys(headers, Shape.CHAT, asked, ""), repeats),
                median_us(lambda keys=keys, view=view: router.route(keys, view, ()), repeats),
                median_us(decide(body), repeats),
            )
            figures = " ".join(f"{column:8.2f}" for column in columns)
            out(f"{size // 1024:>7} KB {source:>9} {figures}\n")
    out("\npolicies alone, with a key:\n")
    for name in POLICIES:
        policy_router = Router(make_policy(name), random_source)
        out(f"{name:>20} {median_us(lambda r=policy_router: r.route(keys, view, ()), repeats):8.2f}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
