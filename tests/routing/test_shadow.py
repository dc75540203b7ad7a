"""The shadow: it believes its own choices, changes nothing of the live ones, and its arithmetic is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from stickyroute.fleet import BackendSpec, Fleet, Lease, Tuning
from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape
from stickyroute.openai.usage import Usage
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.policies import make_policy
from stickyroute.routing.prefix import Prefixes
from stickyroute.routing.router import Router
from stickyroute.routing.shadow import Shadow

PREFIXES = Prefixes(256, 1 << 20)
USERS = 12
SMALL = Tuning(index_entries=1 << 14)  # the default takes longer to make than most tests


def fleet(count: int = 3) -> Fleet:
    return Fleet([BackendSpec(f"b{i}", "http", "127.0.0.1", 8000 + i) for i in range(count)], 64, SMALL)


def turns(rand: Random, count: int) -> Iterator[RequestKeys]:
    """Users in random order, each with a prompt that grows."""
    texts = {user: b"system " * 60 + b"%d " % user for user in range(USERS)}
    for _ in range(count):
        user = int(rand.random() * USERS)
        texts[user] += b"%d more " % user * 40
        chain = PREFIXES.chain(texts[user], 1)
        key = user * 0x9E3779B97F4A7C15 % (1 << 64)
        yield RequestKeys(key, "test", chain, PREFIXES.ends[: len(chain)], len(texts[user]))


class Play:
    """A live policy and its shadow over the same requests, each of which takes a second."""

    def __init__(self, live: str, shadow: str, seed: int = 1) -> None:
        self.fleet = fleet()
        pool = self.fleet.pool(None)
        assert pool is not None
        self.pool = pool
        self.router = Router(make_policy(live), Random(seed))
        self.shadow = Shadow(make_policy(shadow), Random(2), self.fleet.loads, 1 << 14)
        self.choices: list[int] = []

    def run(self, count: int = 300, watched: bool = True, believed: bool = True) -> Play:
        running = []
        for number, keys in enumerate(turns(Random(3), count)):
            now_s = number * 0.3
            self.fleet.settle(now_s)
            decision = self.router.route(keys, self.pool.view)
            assert decision is not None
            lease = self.fleet.lease(decision.slot, keys, now_s, self.pool)
            assert lease is not None
            self.choices.append(decision.slot)
            placed = None
            if watched:
                held = lease.held_tokens if believed else None
                placed = self.shadow.see(keys, self.pool.view, decision.slot, held, now_s)
            running.append((lease, placed))
            while len(running) > 3:
                lease, placed = running.pop(0)
                self.end(lease, now_s)
                if placed is not None:
                    self.shadow.end(placed, 20)
        for lease, placed in running:
            self.end(lease, 1e3)
            if placed is not None:
                self.shadow.end(placed, 20)
        return self

    def end(self, lease: Lease, now_s: float) -> None:
        lease.first_token(now_s)
        lease.usage(Usage(round(lease.tokens), None, 20), now_s)
        lease.release(now_s)


@cache  # the same whatever shadow does not watch
def unwatched(live: str) -> list[int]:
    return Play(live, "random").run(90, watched=False).choices


@pytest.mark.parametrize("live", ["sticky", "bounded_ring", "round_robin", "random", "least_tokens"])
@pytest.mark.parametrize("shadow", ["sticky", "round_robin", "power_of_two"])
def test_the_live_choices_are_the_same_with_and_without(live: str, shadow: str) -> None:
    assert Play(live, shadow).run(90).choices == unwatched(live)


def test_a_shadow_of_the_same_policy_agrees_and_expects_the_same() -> None:
    play = Play("ring", "ring").run()
    shadow = play.shadow
    assert shadow.decisions == shadow.agreed == 300
    assert shadow.held_tokens == pytest.approx(shadow.live_held_tokens, rel=0.02)
    assert shadow.imbalance([0, 1, 2])[0] == shadow.imbalance([0, 1, 2])[1]


def test_it_knows_what_a_pause_counts_and_how_much_is_unseen() -> None:
    play = Play("ring", "sticky")
    play.fleet.loads.unseen = 0.5
    loads = play.run(30).shadow.loads
    assert loads.unseen == 0.5
    assert loads.stall > 0.0


def test_what_a_policy_that_forgets_users_would_lose() -> None:
    shadow = Play("ring", "round_robin").run(60).shadow
    assert shadow.held_tokens < 0.8 * shadow.live_held_tokens
    even, live = shadow.imbalance([0, 1, 2])
    assert even < live
    assert even == pytest.approx(1.0, abs=0.15)
    other_way = Play("round_robin", "ring").run(60).shadow
    assert other_way.held_tokens > 1.2 * other_way.live_held_tokens


def test_for_a_live_policy_without_a_belief_the_shadow_keeps_one() -> None:
    play, twin = Play("ring", "ring"), Play("ring", "ring").run()
    play.run(believed=False)
    assert play.shadow.live_held_tokens == pytest.approx(play.shadow.held_tokens)
    assert play.shadow.live_held_tokens == pytest.approx(twin.shadow.live_held_tokens, rel=0.02)


def test_a_request_stands_for_those_that_are_not_seen() -> None:
    play = Play("ring", "ring")
    play.shadow = Shadow(make_policy("ring"), Random(2), play.fleet.loads, 1 << 14, scale=4)
    keys = next(turns(Random(3), 1))
    placed = play.shadow.see(keys, play.pool.view, 0, 0.0, 1.0)
    assert placed is not None
    assert play.shadow.loads.in_flight[placed.slot] == 4
    assert play.shadow.loads.backlog_tokens[placed.slot] == pytest.approx(4 * keys.prompt_bytes / 4.0)
    play.shadow.end(placed, 20)
    assert sum(play.shadow.loads.in_flight) == 0


def test_nothing_is_left_in_flight() -> None:
    shadow = Play("bounded_ring", "sticky").run().shadow
    assert list(shadow.loads.in_flight) == [0, 0, 0]
    assert list(shadow.loads.in_flight_tokens) == [0.0, 0.0, 0.0]
    assert sum(Play("bounded_ring", "sticky").fleet.in_flight) == 0


def test_a_backend_that_comes_later_is_met() -> None:
    play = Play("sticky", "round_robin").run(50)
    specs = [backend.spec for backend in play.fleet.backends]
    play.fleet.apply(play.fleet.plan([*specs, BackendSpec("b3", "http", "127.0.0.1", 8003)]), 50.0)
    pool = play.fleet.pool(None)
    assert pool is not None
    play.pool = pool
    play.run(200)
    assert sum(play.shadow.loads.in_flight) == 0
    assert play.shadow._sent[3] > 0


def test_who_is_new_in_a_slot_has_nothing_cached() -> None:
    play = Play("ring", "ring").run(60)
    keys = list(turns(Random(3), 60))[-1]
    chosen = play.shadow.see(keys, play.pool.view, 0, 0.0, 60.0)
    assert chosen is not None
    before = play.shadow.loads.index.held(keys.chain)[chosen.slot]
    play.shadow.forget(chosen.slot)
    assert before > 0
    assert play.shadow.loads.index.held(keys.chain)[chosen.slot] == 0


def test_a_chain_made_later_is_the_one_that_the_rule_would_have_made() -> None:
    body = json.dumps(
        {"model": "m", "user": "u", "messages": [{"role": "user", "content": "so it goes " * 99}]}
    )
    asked = parse(Shape.CHAT, body.encode(), strict=True)
    poor, rich = AffinityRule(("body:user",)), AffinityRule(("body:user",), needs=Needs.CHAIN)
    keys = poor.keys({}, Shape.CHAT, asked, "", (0, 1))
    assert not keys.chain
    assert poor.chained(keys, Shape.CHAT, asked) == rich.keys({}, Shape.CHAT, asked, "", (0, 1))
