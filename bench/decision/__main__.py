"""Times what is pure of a request, for prompts of 1, 32 and 200 KB, in microseconds, on 16 backends or as many as told.

`parse` reads the body, `prompt` normalizes it, `chain` hashes its blocks, `anew` does so where no beginning of it was
seen before; `keys` is all that the policy needs of the request, prompt and chain, anchor and session memory included;
`decide` is the choice with every prompt's head known to the index; `whole` is a request from bytes to backend and
`routing` is whole without parse; `life` is a request from bytes to its end: backlogs are brought up to date, and it has
its lease, first token, usage and release. Each figure is the median of the repeats, each repeat the mean processor time
of a run of calls on different prompts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path
from time import process_time
from timeit import repeat

import orjson

from bench.decision.page import Row, how, table, write_between
from stickyroute import defaults
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.fleet.lease import Lease
from stickyroute.openai.prompt import normalize
from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import RouteTable, Shape
from stickyroute.openai.usage import Usage
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.policies import POLICIES, make_policy
from stickyroute.routing.router import Router
from stickyroute.routing.sessions import Sessions

BACKENDS = (16,)
PROMPT_BYTES = (1024, 32 * 1024, 200 * 1024)
BODIES = 24  # different ones at least; few, because a body that was just parsed is in the processor's cache
BODIES_BYTES = 16 * 1024 * 1024  # at most, where there are two for each backend
EVERY_S = 0.002  # between two requests
SENTENCE = "The prefix cache of an engine keeps what it has seen of every prompt so far. "
HEADERS = {b"host": b"h", b"content-type": b"application/json", b"user-agent": b"bench"}
NAMES = ("parse", "prompt", "chain", "anew", "keys", "decide", "whole", "routing", "life")


def chat_body(prompt_bytes: int, number: int, user: bool) -> bytes:
    """A chat request with `prompt_bytes` of text: half is a system prompt that all have, half its own."""
    text = (SENTENCE * (prompt_bytes // len(SENTENCE) + 2))[: prompt_bytes + len(SENTENCE)]
    half = prompt_bytes // 2
    own = f"{number} {text[number % len(SENTENCE) :]}"[: prompt_bytes - half]
    messages = [{"role": "system", "content": text[:half]}, {"role": "user", "content": own}]
    body = {"model": "llama", "stream": True, "messages": messages}
    return orjson.dumps({**body, "user": f"user-{number}"} if user else body)


def median_us(call: Callable[[], object], repeats: int) -> float:
    """The median over `repeats` runs of the mean processor time of one call."""
    once_s = min(repeat(call, timer=process_time, number=50, repeat=5)) / 50
    number = max(20, int(0.01 / once_s))
    runs = repeat(call, timer=process_time, number=number, repeat=repeats)
    return statistics.median(took / number * 1e6 for took in runs)


def busy_fleet(
    rand: random.Random, rule: AffinityRule, asked: list[Asked], backends: int
) -> tuple[Fleet, list[Lease]]:
    """Every backend with a handful of requests in flight, of two conversations, as in the middle of a day."""
    specs = [BackendSpec(f"gpu-{i}", "http", "127.0.0.1", 8000 + i) for i in range(backends)]
    fleet = Fleet(specs, defaults.RING_VNODES)
    pool = fleet.pool(None)
    assert pool is not None
    leases = []
    for slot in range(backends):
        for number in range(rand.randrange(6, 10)):
            ours = asked[(2 * slot + number % 2) % len(asked)]
            keys = rule.keys(HEADERS, Shape.CHAT, ours, "", pool.view.slots)
            lease = fleet.lease(slot, keys, 1.0, pool)
            assert lease is not None
            leases.append(lease)
    return fleet, leases


def measure(policy: str, size: int, user: bool, repeats: int, backends: int) -> dict[str, float]:
    """The columns of one line of the table, by name."""
    rand = random.Random(1)
    router = Router(make_policy(policy), rand)
    # So few turns are remembered that none of these requests is one sent again.
    rule = AffinityRule(defaults.AFFINITY_SOURCES, needs=router.needs, sessions=Sessions(4))
    number = max(BODIES, min(2 * backends, BODIES_BYTES // size))
    bodies = [chat_body(size, one, user) for one in range(number)]
    asked = [parse(Shape.CHAT, body, True) for body in bodies]
    fleet, leases = busy_fleet(rand, rule, asked, backends)
    pool = fleet.pool("llama")
    assert pool is not None
    view, slots, routes = pool.view, pool.view.slots, RouteTable()
    limit = rule.prefixes.limit_bytes
    made = [normalize(Shape.CHAT, one.body or {}, limit, one.body_bytes) for one in asked]
    keys = [rule.keys(HEADERS, Shape.CHAT, one, "", slots) for one in asked]
    turn = count(1)

    def whole(body: bytes, now_s: float | None = None) -> object:
        route = routes.match(b"POST", b"/v1/chat/completions")
        assert route is not None
        one = parse(route.shape, body, True)
        pool = fleet.pool(one.model)
        assert pool is not None
        found = rule.keys(HEADERS, route.shape, one, "", pool.view.slots)
        if now_s is None:
            return router.route(found, pool.view, ())
        fleet.settle(now_s)
        decision = router.route(found, pool.view, ())
        assert decision is not None
        return fleet.lease(decision.slot, found, now_s, pool)

    def life(body: bytes) -> None:
        """One request comes, and the one that came first of all ends."""
        now_s = 1.0 + next(turn) * EVERY_S
        lease = whole(body, now_s)
        assert isinstance(lease, Lease)
        leases.append(lease)
        over = leases.pop(0)
        over.first_token(now_s)
        over.usage(Usage(size // 4, size // 4, 16), now_s)
        over.release(now_s)

    next_body, next_asked = cycle(bodies).__next__, cycle(asked).__next__
    next_made, next_keys = cycle(made).__next__, cycle(keys).__next__

    def prompt() -> object:
        one = next_asked()
        return normalize(Shape.CHAT, one.body or {}, limit, one.body_bytes)

    columns = {
        "parse": median_us(lambda: parse(Shape.CHAT, next_body(), True), repeats),
        "prompt": median_us(prompt, repeats),
        "chain": median_us(lambda: rule.prefixes.chain(next_made().text, 1), repeats),
        "anew": median_us(lambda: rule.prefixes.chain(next_made().text, next(turn)), repeats),
        "keys": median_us(lambda: rule.keys(HEADERS, Shape.CHAT, next_asked(), "", slots), repeats),
        "decide": median_us(lambda: router.route(next_keys(), view, ()), repeats),
        "whole": median_us(lambda: whole(next_body()), repeats),
    }
    columns["routing"] = columns["whole"] - columns["parse"]
    columns["life"] = median_us(lambda: life(next_body()), repeats)
    return columns


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m bench.decision", description=__doc__)
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument("--backends", type=int, nargs="+", default=BACKENDS, metavar="N")
    arguments.add_argument("--policies", nargs="+", choices=POLICIES, default=tuple(POLICIES), metavar="NAME")
    arguments.add_argument("--markdown", type=Path, metavar="FILE", help="write the table into that page too")
    told = arguments.parse_args()
    out = sys.stdout.write
    out(f"microseconds, {how()}, median of {told.repeats} repeats\n")
    rows = []
    for backends in told.backends:
        out(f"\n{backends} backends\n\n")
        out(f"{'policy':>15} {'prompt':>7} {'key from':>9} {' '.join(f'{name:>8}' for name in NAMES)}\n")
        for policy in told.policies:
            sizes = PROMPT_BYTES if policy in ("sticky", defaults.POLICY) else PROMPT_BYTES[1:2]
            for size in sizes:
                for user in (True, False):
                    columns = measure(policy, size, user, told.repeats, backends)
                    row = Row(policy, size // 1024, "user" if user else "prompt", backends, columns)
                    rows.append(row)
                    figures = " ".join(f"{columns[name]:8.2f}" for name in NAMES)
                    out(f"{policy:>15} {row.kilobytes:>4} KB {row.key_from:>9} {figures}\n")
                    sys.stdout.flush()
    if told.markdown is not None:
        write_between(told.markdown, table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
