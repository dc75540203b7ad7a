"""What is computed of a request for which policy, and what its keys and chains are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest

from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import Shape
from stickyroute.routing import affinity
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.keys import Needs, candidate_keys
from stickyroute.routing.prefix import Prefixes
from tests.routing.asked import PROMPT, made


def test_the_chain_comes_with_its_sizes_whoever_asks() -> None:
    for user in ({"user": "ann"}, {}):
        keys = made(Needs.CHAIN, messages=PROMPT, **user)
        size = len("\x1euser\x1f") + 1000
        assert keys.prompt_bytes == size
        assert keys.ends == (256, 512, 768)
        assert len(keys.chain) == 3
        assert keys.second == candidate_keys(keys.affinity or 0, 2)[1]
        assert keys.spread == 2
        assert keys.prompt_tokens is None
    assert made(Needs.CHAIN, messages=PROMPT).chain == made(Needs.CHAIN, messages=PROMPT, user="ann").chain


def test_token_ids_are_counted() -> None:
    rule = AffinityRule(["body:user", "prefix"], needs=Needs.CHAIN)
    asked = parse(Shape.COMPLETIONS, orjson.dumps({"model": "m", "prompt": list(range(1000))}), True)
    keys = rule.keys({}, Shape.COMPLETIONS, asked, "")
    assert (keys.prompt_bytes, keys.prompt_tokens, len(keys.chain)) == (4000, 1000, 15)


@pytest.mark.interpreted  # counts calls by putting others in their place
@pytest.mark.parametrize("needs", [Needs.NOTHING, Needs.KEY, Needs.SIZE, Needs.KEY | Needs.SIZE, Needs.CHAIN])
@pytest.mark.parametrize("user", [{"user": "ann"}, {}])
def test_what_is_not_needed_is_not_computed(
    needs: Needs, user: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that ignores prompts must not pay for them."""
    calls = Counter[str]()
    real_chain, real_normalize, real_measure = Prefixes.chain, affinity.normalize, affinity.measure

    def chain(*arguments: Any) -> Any:
        calls["chain"] += 1
        return real_chain(*arguments)

    def normalize(*arguments: Any) -> Any:
        calls["prompt"] += 1
        return real_normalize(*arguments)

    def measure(*arguments: Any) -> Any:
        calls["size"] += 1
        return real_measure(*arguments)

    monkeypatch.setattr(affinity, "measure", measure)
    monkeypatch.setattr(affinity, "_GUESSED_BYTES", 0)
    monkeypatch.setattr(Prefixes, "chain", chain)
    monkeypatch.setattr(affinity, "normalize", normalize)
    keys = made(needs, messages=PROMPT, **user)
    keyless = not user and bool(needs & Needs.KEY)
    chained = keyless or needs == Needs.CHAIN
    assert calls["prompt"] == chained
    assert calls["size"] == (bool(needs & Needs.SIZE) and not chained)
    assert calls["chain"] == chained
    assert (keys.affinity is not None) == (bool(user) or keyless)
    assert bool(keys.prompt_bytes) == bool(needs & Needs.SIZE)
    assert needs != Needs.CHAIN or keys.chain


def test_a_short_body_is_as_long_as_its_prompt_where_only_the_size_counts() -> None:
    rule = AffinityRule(["body:user"], needs=Needs.KEY | Needs.SIZE)

    def size_bytes(text: str) -> tuple[int, int]:
        body = orjson.dumps({"model": "m", "user": "u", "messages": [{"role": "user", "content": text}]})
        keys = rule.keys({}, Shape.CHAT, parse(Shape.CHAT, body, True), "")
        return keys.prompt_bytes, len(body)

    short, whole = size_bytes("hello")
    assert short == whole
    long, whole = size_bytes("hello" * 10_000)
    assert 50_000 < long < whole


def test_a_body_that_was_not_read_has_no_chain() -> None:
    rule = AffinityRule(["body:user", "prefix"], needs=Needs.CHAIN)
    for shape in (Shape.OPAQUE, Shape.CHAT):
        keys = rule.keys({}, shape, Asked(None, False, None), "")
        assert (keys.affinity, tuple(keys.chain), keys.prompt_bytes) == (None, (), 0)


@pytest.mark.parametrize(
    "apart", [{"model": "m2"}, {"cache_salt": "s"}, {"extra_key": "e"}, {"lora_path": "l"}]
)
def test_chains_share_nothing_across_what_engines_keep_apart(apart: dict[str, str]) -> None:
    one, other = made(Needs.CHAIN, messages=PROMPT), made(Needs.CHAIN, messages=PROMPT, **apart)
    assert not set(one.chain) & set(other.chain)
    assert one.affinity != other.affinity


def test_tenants_have_keys_of_their_own_but_engines_do_not_know_them() -> None:
    rule = AffinityRule(["prefix"], "x-tenant", needs=Needs.CHAIN)
    asked = parse(Shape.CHAT, orjson.dumps({"model": "m", "messages": PROMPT}), True)
    keys = [
        rule.keys({b"x-tenant": name} if name else {}, Shape.CHAT, asked, owner)
        for owner in ("", "acme")
        for name in (b"", b"one", b"two")
    ]
    assert len({one.affinity for one in keys}) == 6
    assert len({tuple(one.chain) for one in keys}) == 1


def test_keys_and_chains_are_what_they_always_were() -> None:
    """They must not change between releases: replicas of two of them would disagree, and an update would move
    every user."""
    rule = AffinityRule(["header:x-user", "body:user", "prefix"], needs=Needs.CHAIN)
    body = {
        "tools": [{"b": 1, "a": 2}],
        "messages": [*PROMPT, {"role": "assistant", "content": "ok"}, *PROMPT],
    }
    by_header = rule.keys({b"x-user": b"ann"}, Shape.CHAT, Asked("m", False, body), "t")
    by_body = rule.keys({}, Shape.CHAT, Asked("m", False, {**body, "user": "ann"}), "")
    by_prompt = rule.keys({}, Shape.CHAT, Asked("m", False, body), "")
    assert by_header.affinity == 16372630988988188655
    assert by_body.affinity == 14765431072308769904
    assert by_prompt.affinity == by_prompt.chain[0]
    assert by_header.chain == by_body.chain == by_prompt.chain
    assert by_prompt.chain[-1] == 17773708078738087514
