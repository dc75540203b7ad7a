"""Requests that say nothing of their user: a conversation keeps its key, strangers have one each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

from stickyroute import defaults
from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule, build_affinity
from stickyroute.routing.keys import Needs
from stickyroute.routing.sessions import Sessions
from stickyroute.settings import Settings
from tests.routing.asked import PROMPT, made

EIGHT = tuple(range(8))
SYSTEM = {"role": "system", "content": "You are a helpful assistant. " * 70}


def question(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"question {number} of a stranger"}


def test_b01_requests_without_a_key_are_spread() -> None:
    """Case B01: no user, an empty one or null; many strangers are many places."""
    rule = AffinityRule(defaults.AFFINITY_SOURCES)
    places = Counter[int | None]()
    for number in range(40):
        body = [{}, {"user": ""}, {"user": None}][number % 3]
        keys = made(Needs.KEY, rule, EIGHT, messages=[question(number)], **body)
        assert keys.source == "prefix"
        places[keys.affinity] += 1
    assert len(places) == 40


def test_b13_one_system_prompt_is_one_place_until_it_is_everybodys() -> None:
    """Case B13: hashing the whole text would part two who begin alike; hashing the head for ever would put the
    whole fleet's traffic on one backend. Who knows what is cached keeps them together beyond that."""
    rule = AffinityRule(["prefix"])
    places = [
        made(Needs.KEY, rule, EIGHT, messages=[SYSTEM, question(number)]).affinity for number in range(200)
    ]
    assert places[0] == places[1]
    assert len(set(places[2:])) == 198


def test_a_conversation_without_ids_keeps_its_key() -> None:
    """However short its turns are: the first is shorter than a block, so its anchor is a hash of the whole."""
    rule = AffinityRule(["prefix"])
    for number in range(60):  # the system prompt becomes everybody's meanwhile
        made(
            Needs.KEY, rule, EIGHT, messages=[SYSTEM, {"role": "user", "content": f"hi, I am also {number}"}]
        )
    talks = [[SYSTEM, {"role": "user", "content": f"hi, I am {number}"}] for number in range(30)]
    places = [made(Needs.KEY, rule, EIGHT, messages=talk).affinity for talk in talks]
    assert len(set(places)) == 30
    for turn in range(12):
        for talk in talks:
            talk += [{"role": "assistant", "content": f"well, {turn}"}, question(turn)]
        assert [made(Needs.KEY, rule, EIGHT, messages=talk).affinity for talk in talks] == places
        again = [made(Needs.KEY, rule, EIGHT, messages=talk).affinity for talk in talks]
        assert again == places, "a request sent once more goes where it went"


@pytest.mark.parametrize(
    ("shape", "grow"),
    [
        (Shape.COMPLETIONS, lambda text: {"prompt": text}),
        (Shape.COMPLETIONS, lambda text: {"prompt": list(text.encode())}),
        (Shape.RESPONSES, lambda text: {"input": text}),
        (Shape.EMBEDDINGS, lambda text: {"input": text}),
    ],
)
def test_a_bare_prompt_keeps_its_key_as_it_grows(shape: Shape, grow: Any) -> None:
    rule = AffinityRule(["prefix"])

    def place(text: str) -> int | None:
        asked = parse(shape, orjson.dumps({"model": "m", **grow(text)}), True)
        return rule.keys({}, shape, asked, "", EIGHT).affinity

    for number in range(60):
        place(f"{SYSTEM['content']} {number}")
    texts = [f"{SYSTEM['content']} {number} and much more that nobody else says " * 3 for number in range(20)]
    places = [place(text) for text in texts]
    assert len(set(places)) == 20
    for turn in range(6):
        texts = [f"{text} turn {turn} with some words" for text in texts]
        assert [place(text) for text in texts] == places


def test_the_same_first_words_do_not_tie_conversations_together() -> None:
    """A button that says "Summarize this" for everybody is no conversation."""
    rule = AffinityRule(["prefix"])
    for number in range(60):
        made(Needs.KEY, rule, EIGHT, messages=[SYSTEM, question(number)])
    opening = [SYSTEM, {"role": "user", "content": "Summarize this"}]
    places = set()
    for number in range(40):
        made(Needs.KEY, rule, EIGHT, messages=opening)
        talk = [*opening, {"role": "assistant", "content": f"{number} " * 300}, question(number)]
        places.add(made(Needs.KEY, rule, EIGHT, messages=talk).affinity)
    assert len(places) > 30


def test_a_session_that_cuts_its_history_keeps_its_key() -> None:
    """The window moves on, the prompt begins elsewhere; who named the session stays."""
    rule = AffinityRule(defaults.AFFINITY_SOURCES)
    turns = [{"role": "user", "content": f"{number} " * 400} for number in range(10)]
    places = {
        made(Needs.KEY, rule, EIGHT, messages=[SYSTEM, *turns[n : n + 3]], prompt_cache_key="s").affinity
        for n in range(8)
    }
    assert len(places) == 1


def test_b24_a_session_keeps_its_key_among_any_number_of_others() -> None:
    """Case B24: no table for named sessions at all, and one of fixed size for the others."""
    rule = AffinityRule(["header:x-session-id", "prefix"], sessions=Sessions(1024))
    asked = parse(Shape.CHAT, orjson.dumps({"model": "m", "messages": PROMPT}), True)
    live = rule.keys({b"x-session-id": b"live"}, Shape.CHAT, asked, "", EIGHT)
    for number in range(3000):
        rule.keys({b"x-session-id": b"%d" % number}, Shape.CHAT, asked, "", EIGHT)
    assert len(rule.sessions) == 0
    assert rule.keys({b"x-session-id": b"live"}, Shape.CHAT, asked, "", EIGHT) == live
    for number in range(3000):
        made(Needs.KEY, rule, EIGHT, messages=[question(number)])
    assert len(rule.sessions) <= 1024


def test_a_key_that_outgrows_a_backend_gets_more_candidates() -> None:
    rule = AffinityRule(["body:user"], needs=Needs.CHAIN)
    spreads = {}
    for number in range(4000):
        name = ("half", "quarter" if number % 4 == 1 else f"rare {number % 400}")[number % 2]
        spreads[name] = made(Needs.CHAIN, rule, EIGHT, messages=[], user=name).spread
    assert spreads.pop("half") == 8, "four backends' worth"
    assert spreads.pop("quarter") == 4, "two backends' worth"
    assert set(spreads.values()) == {2}
    alone = [made(Needs.CHAIN, rule, (0, 1), messages=[], user="only").spread for _ in range(3000)]
    assert max(alone) == 2, "never more than there are backends"


def test_a_rule_of_the_settings() -> None:
    settings = Settings.model_validate(
        {
            "backends": ["http://127.0.0.1:1"],
            "affinity": {"sources": ["prefix"], "tenant_header": "x-t"},
            "prefix": {"block_bytes": 64, "prompt_bytes": 1 << 16, "anchor_cells": 2000, "sessions": 3000},
        }
    )
    rule = build_affinity(settings, Needs.CHAIN)
    assert (rule.prefixes.block_bytes, rule.prefixes.limit_bytes) == (64, 1 << 16)
    assert (rule.anchors.cells, rule.sessions.capacity) == (2048, 4096)
    asked = parse(Shape.CHAT, orjson.dumps({"model": "m", "messages": [question(1)]}), True)
    assert rule.keys({b"x-t": b"1"}, Shape.CHAT, asked, "") != rule.keys({}, Shape.CHAT, asked, "")
    assert len(rule.keys({}, Shape.CHAT, Asked("m", False, {"messages": PROMPT}), "").chain) == 15
