"""Times what is pure of a request, for prompts of 1, 32 and 200 KB, in microseconds, on 16 backends or as many as told.

`parse` reads the body, `prompt` normalizes it, `chain` hashes its blocks; `keys` is all that the policy needs of
the request, those two and anchor and session memory included; `decide` is the choice with every prompt's head
known to the index; `whole` is a request from bytes to backend, `routing` is whole without parse. Each figure is
the median of the repeats, each repeat the mean processor time of a run of calls on different prompts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from itertools import cycle
from time import process_time
from timeit import repeat

import orjson

from stickyroute import defaults
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.openai.prompt import normalize
from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import RouteTable, Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.policies import POLICIES, make_policy
from stickyroute.routing.router import Router
from stickyroute.routing.sessions import Sessions

BACKENDS = (16,)
PROMPT_BYTES = (1024, 32 * 1024, 200 * 1024)
BODIES = 24  # different ones at least; few, because a body that was just parsed is in the processor's cache
BODIES_BYTES = 16 * 1024 * 1024  # at most, where there are two for each backend
SENTENCE = "The prefix cache of an engine keeps what it has seen of every prompt so far. "
HEADERS = {b"host": b"h", b"content-type": b"application/json", b"user-agent": b"bench"}


def chat_body(prompt_bytes: int, number: int, user: bool) -> bytes:
    """A chat request with `prompt_bytes` of text: half is a system prompt that all have, half its own."""
    text = (SENTENCE * (prompt_bytes // len(SENTENCE) + 1))[:prompt_bytes]
    half = prompt_bytes // 2
    own = f"{number} {text[half:]}"[: prompt_bytes - half]
    messages = [{"role": "system", "content": text[:half]}, {"role": "user", "content": own}]
    body = {"model": "llama", "stream": True, "messages": messages}
    return orjson.dumps({**body, "user": f"user-{number}"} if user else body)


def median_us(call: Callable[[], object], repeats: int) -> float:
    """The median over `repeats` runs of the mean processor time of one call."""
    once_s = min(repeat(call, timer=process_time, number=50, repeat=5)) / 50
    number = max(20, int(0.01 / once_s))
    runs = repeat(call, timer=process_time, number=number, repeat=repeats)
    return statistics.median(took / number * 1e6 for took in runs)


def busy_fleet(rand: random.Random, rule: AffinityRule, asked: list[Asked], backends: int) -> Fleet:
    """Every backend with a handful of requests in flight, of two conversations, as in the middle of a day."""
    specs = [BackendSpec(f"gpu-{i}", "http", "127.0.0.1", 8000 + i) for i in range(backends)]
    fleet = Fleet(specs, defaults.RING_VNODES)
    pool = fleet.pool(None)
    assert pool is not None
    for slot in range(backends):
        for number in range(rand.randrange(6, 10)):
            ours = asked[(2 * slot + number % 2) % len(asked)]
            keys = rule.keys(HEADERS, Shape.CHAT, ours, "", pool.view.slots)
            fleet.lease(slot, keys, 1.0, pool)
    return fleet


def row(policy: str, size: int, user: bool, repeats: int, backends: int) -> list[float]:
    """The columns of one line of the table."""
    rand = random.Random(1)
    router = Router(make_policy(policy), rand)
    # So few turns are remembered that none of these requests is one sent again.
    rule = AffinityRule(defaults.AFFINITY_SOURCES, needs=router.needs, sessions=Sessions(4))
    count = max(BODIES, min(2 * backends, BODIES_BYTES // size))
    bodies = [chat_body(size, number, user) for number in range(count)]
    asked = [parse(Shape.CHAT, body, True) for body in bodies]
    fleet = busy_fleet(rand, rule, asked, backends)
    pool = fleet.pool("llama")
    assert pool is not None
    view, slots, routes = pool.view, pool.view.slots, RouteTable()
    limit = rule.prefixes.limit_bytes
    made = [normalize(Shape.CHAT, one.body or {}, limit, one.body_bytes) for one in asked]
    keys = [rule.keys(HEADERS, Shape.CHAT, one, "", slots) for one in asked]

    def whole(body: bytes) -> object:
        route = routes.match(b"POST", b"/v1/chat/completions")
        assert route is not None
        one = parse(route.shape, body, True)
        pool = fleet.pool(one.model)
        assert pool is not None
        return router.route(rule.keys(HEADERS, route.shape, one, "", pool.view.slots), pool.view, ())

    next_body, next_asked = cycle(bodies).__next__, cycle(asked).__next__
    next_made, next_keys = cycle(made).__next__, cycle(keys).__next__

    def prompt() -> object:
        one = next_asked()
        return normalize(Shape.CHAT, one.body or {}, limit, one.body_bytes)

    columns = [
        median_us(lambda: parse(Shape.CHAT, next_body(), True), repeats),
        median_us(prompt, repeats),
        median_us(lambda: rule.prefixes.chain(next_made().text, 1), repeats),
        median_us(lambda: rule.keys(HEADERS, Shape.CHAT, next_asked(), "", slots), repeats),
        median_us(lambda: router.route(next_keys(), view, ()), repeats),
        median_us(lambda: whole(next_body()), repeats),
    ]
    return [*columns, columns[-1] - columns[0]]


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.decision", description=__doc__)
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument("--backends", type=int, nargs="+", default=BACKENDS, metavar="N")
    arguments.add_argument("--policies", nargs="+", choices=POLICIES, default=tuple(POLICIES), metavar="NAME")
    told = arguments.parse_args()
    out = sys.stdout.write
    out(f"microseconds, median of {told.repeats} repeats\n")
    names = ("parse", "prompt", "chain", "keys", "decide", "whole", "routing")
    for backends in told.backends:
        out(f"\n{backends} backends\n\n")
        out(f"{'policy':>15} {'prompt':>7} {'key from':>9} {' '.join(f'{name:>8}' for name in names)}\n")
        for policy in told.policies:
            sizes = PROMPT_BYTES if policy in ("sticky", defaults.POLICY) else PROMPT_BYTES[1:2]
            for size in sizes:
                for user in (True, False):
                    columns = row(policy, size, user, told.repeats, backends)
                    figures = " ".join(f"{column:8.2f}" for column in columns)
                    source = "user" if user else "prompt"
                    out(f"{policy:>15} {size // 1024:>4} KB {source:>9} {figures}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
