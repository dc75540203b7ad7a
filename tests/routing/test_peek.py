"""Keys that are only looked at: as a request would get them, and without a trace."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.anchor import Anchors
from stickyroute.routing.keys import Needs
from stickyroute.routing.prefix import Prefixes
from stickyroute.routing.sessions import _SLOTS, Sessions

POOLS = ((0, 1), (0, 1, 2, 3), (4,))
HEAD = "You are a helpful assistant. " * 12
PREFIXES = Prefixes(64, 4096)

# Turns of four conversations, some of them under one system prompt, some with a clock, some with a user.
REQUESTS = st.tuples(
    st.integers(0, 3), st.integers(1, 4), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(POOLS)
)


def rule(needs: Needs = Needs.CHAIN) -> AffinityRule:
    anchors = Anchors(PREFIXES, 256, 512, half_life=1)
    anchors._weight = 2.0**650  # so that it also makes its numbers small again
    return AffinityRule(
        ("body:user", "prefix"), needs=needs, prefixes=PREFIXES, anchors=anchors, sessions=Sessions(4)
    )


def request(talk: int, turns: int, head: bool, clock: bool, user: bool) -> Asked:
    messages: list[dict[str, Any]] = [{"role": "system", "content": HEAD}] if head else []
    if clock:
        messages.insert(0, {"role": "system", "content": f"It is {talk}:{turns}0."})
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{talk} asks {turn} " * 9})
        messages.append({"role": "assistant", "content": f"answer {talk} {turn} " * 9})
    body = {"model": "m", "messages": messages, **({"user": f"u{talk}"} if user else {})}
    return parse(Shape.CHAT, orjson.dumps(body), True)


@given(st.lists(REQUESTS, min_size=1, max_size=60))
def test_what_is_peeked_at_is_what_comes_and_changes_nothing(requests: list[Any]) -> None:
    looked, plain = rule(), rule()
    for *made, pool in requests:
        asked = request(*made)
        for _ in range(2):
            peeked = looked.peek({}, Shape.CHAT, asked, "t", pool)
        keys = looked.keys({}, Shape.CHAT, asked, "t", pool)
        assert peeked == keys
        assert keys == plain.keys({}, Shape.CHAT, asked, "t", pool), "as if nobody had looked"
    assert looked.anchors._counts == plain.anchors._counts
    assert looked.anchors._totals == plain.anchors._totals
    assert looked.anchors.common == plain.anchors.common
    for name in _SLOTS:
        assert getattr(looked.sessions, name) == getattr(plain.sessions, name)


def test_an_opening_of_many_is_peeked_at_as_such() -> None:
    """Where continuations are counted, looking does not use them up."""
    ours = rule()
    opening = request(0, 1, head=False, clock=False, user=False)
    ours.keys({}, Shape.CHAT, opening, "", POOLS[1])
    later = request(0, 2, head=False, clock=False, user=False)
    peeked = {ours.peek({}, Shape.CHAT, later, "", POOLS[1]).affinity for _ in range(20)}
    assert peeked == {ours.keys({}, Shape.CHAT, later, "", POOLS[1]).affinity}


def test_another_policys_needs() -> None:
    ours = rule(Needs.NOTHING)
    asked = request(1, 2, head=True, clock=False, user=False)
    assert ours.peek({}, Shape.CHAT, asked, "", POOLS[0]).affinity is None
    whole = ours.peek({}, Shape.CHAT, asked, "", POOLS[0], Needs.CHAIN)
    assert whole == rule().keys({}, Shape.CHAT, asked, "", POOLS[0])
    assert ours.needs == Needs.NOTHING
