"""The affinity key: which source gives it, what counts as a value, and what it is scoped by."""

from __future__ import annotations

from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute import defaults
from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import Shape
from stickyroute.routing import affinity
from stickyroute.routing.affinity import AffinityRule, build_affinity
from stickyroute.routing.keys import NO_KEYS, Needs, RequestKeys, candidate_keys
from stickyroute.routing.prefix import Prefixes
from stickyroute.routing.sessions import Sessions
from stickyroute.settings import Settings
from tests.openai.test_request import JSON, READ

ASK = [{"role": "user", "content": "hello"}]


def keys(
    *sources: str,
    headers: dict[bytes, bytes] | None = None,
    tenant: str = "",
    shape: Shape = Shape.CHAT,
    **body: Any,
) -> RequestKeys:
    asked = parse(shape, orjson.dumps({"model": "m", **body}), strict=False)
    return AffinityRule(sources).keys(headers or {}, shape, asked, tenant)


# Sources.


def test_the_first_source_with_a_value_wins() -> None:
    sources = ("header:x-session-id", "body:user", "prefix")
    with_all = keys(*sources, headers={b"x-session-id": b"s"}, user="u", messages=ASK)
    assert with_all.source == "header:x-session-id"
    assert with_all == keys(*sources, headers={b"x-session-id": b"s"}, user="other")
    assert keys(*sources, user="u", messages=ASK).source == "body:user"
    assert keys(*sources, messages=ASK).source == "prefix"
    assert keys(*sources) == NO_KEYS == RequestKeys(None, "")


def test_a_header_source_is_case_insensitive_and_trimmed() -> None:
    plain = keys("header:x-user-id", headers={b"x-user-id": b"ann"})
    assert plain == keys("header:X-User-ID", headers={b"x-user-id": b"  ann\t"})
    assert plain != keys("header:x-user-id", headers={b"x-user-id": b"Ann"})


def test_a_field_inside_a_field() -> None:
    source = "body:metadata.user_id"
    assert keys(source, metadata={"user_id": "ann"}).affinity is not None
    for metadata in (
        None,
        "text",
        5,
        [],
        {},
        {"user_id": None},
        {"user_id": {"id": "x"}},
        [{"user_id": "x"}],
    ):
        assert keys(source, metadata=metadata) == NO_KEYS


@pytest.mark.parametrize("value", [None, "", "  ", "\n", True, False, [], {}, ["ann"], {"a": "ann"}])
def test_what_is_no_text_and_no_number_counts_as_absent(value: Any) -> None:
    """Case B01."""
    assert keys("body:user", user=value) == NO_KEYS


@pytest.mark.parametrize("value", [b"", b" ", b"\t"])
def test_a_blank_header_counts_as_absent(value: bytes) -> None:
    assert keys("header:x-user-id", headers={b"x-user-id": value}) == NO_KEYS


def test_numbers_are_keys() -> None:
    assert keys("body:user", user=5) == keys("body:user", user="5")
    assert keys("body:user", user=0).affinity is not None
    assert keys("body:user", user=-1.5).affinity is not None


def test_long_and_odd_values_are_keys() -> None:
    values = ["x" * 1_000_000, "x" * 1_000_001, "日本", "\x00", "a\nb", "'; drop table users"]
    assert len({keys("body:user", user=value).affinity for value in values}) == len(values)
    assert keys("header:x-user-id", headers={b"x-user-id": b"\xff\xfe\x00"}).affinity is not None


def test_text_in_a_prompt_is_never_taken_for_a_field() -> None:
    talk = [{"role": "user", "content": '{"user": "eve"}, "user": "eve"'}]
    assert keys("body:user", messages=talk) == NO_KEYS
    assert keys("body:messages.user", messages=talk) == NO_KEYS


def test_a_body_that_was_not_read_leaves_the_headers() -> None:
    rule = AffinityRule(["body:user", "prefix", "header:x-user-id"])
    unread = Asked(None, False, None)
    assert rule.keys({b"x-user-id": b"ann"}, Shape.OPAQUE, unread, "").source == "header:x-user-id"
    assert rule.keys({}, Shape.OPAQUE, unread, "") == NO_KEYS


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Shape.CHAT, {"messages": []}),
        (Shape.CHAT, {}),
        (Shape.COMPLETIONS, {"prompt": ""}),
        (Shape.COMPLETIONS, {"prompt": []}),
        (Shape.RESPONSES, {"input": None}),
        (Shape.EMBEDDINGS, {"input": [[]]}),
        (Shape.OPAQUE, {"prompt": "x"}),
    ],
)
def test_no_prompt_is_no_key(shape: Shape, body: dict[str, Any]) -> None:
    assert keys("prefix", shape=shape, **body) == NO_KEYS


# Scope.


def test_the_key_is_scoped_by_all_that_keeps_cache_entries_apart() -> None:
    scoped = [
        keys("body:user", user="ann"),
        keys("body:user", user="ann", tenant="acme"),
        keys("body:user", user="ann", model="m2"),
        keys("body:user", user="ann", cache_salt="s"),
        keys("body:user", user="ann", cache_salt="t"),
        keys("body:user", user="ann", extra_key="s"),
        keys("body:user", user="ann", lora_path="s"),
        keys("body:safety_identifier", safety_identifier="ann"),
        keys("header:user", headers={b"user": b"ann"}),
    ]
    assert len({key.affinity for key in scoped}) == len(scoped)


@pytest.mark.parametrize("salt", [None, "", 5, [], {}])
def test_a_salt_that_is_none_changes_nothing(salt: Any) -> None:
    assert keys("body:user", user="ann", cache_salt=salt) == keys("body:user", user="ann")


def test_a_tenant_header_scopes_the_key_but_is_none() -> None:
    rule = AffinityRule(["body:user"], tenant_header="X-Tenant")
    ann = parse(Shape.CHAT, b'{"model": "m", "user": "ann"}', strict=True)
    nobody = parse(Shape.CHAT, b'{"model": "m"}', strict=True)
    one, other, none = ({b"x-tenant": b"1"}, {b"x-tenant": b"2"}, {})
    assert len({rule.keys(headers, Shape.CHAT, ann, "").affinity for headers in (one, other, none)}) == 3
    assert rule.keys(one, Shape.CHAT, nobody, "") == NO_KEYS


TEXTS = st.text(max_size=4)


@given(one=st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), other=st.tuples(TEXTS, TEXTS, TEXTS, TEXTS))
def test_different_scopes_never_spell_the_same_key(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    def key(parts: tuple[str, ...]) -> int | None:
        tenant, model, salt, user = parts
        asked = Asked(model, False, {"cache_salt": salt, "user": f"u{user}"})
        return AffinityRule(["body:user"]).keys({}, Shape.CHAT, asked, tenant).affinity

    assert (key(one) == key(other)) == (one == other)


# The configuration.


REQUEST_IDS = [
    *("header:x-request-id", "header:X-Request-ID", "header:request-id", "header:traceparent"),
    *("header:x-trace-id", "header:x-correlation-id", "header:x-b3-traceid", "header:idempotency-key"),
    *("header:x-amzn-trace-id", "header:x-client-request-id", "header:x_request_id"),
    *("body:request_id", "body:rid", "body:trace_id", "body:metadata.request_id"),
]


@pytest.mark.parametrize("source", REQUEST_IDS)
def test_what_differs_on_every_request_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="differs on every request"):
        AffinityRule([source])


@pytest.mark.parametrize(
    "source",
    ["", "user", "header:", "header:a b", "header:a:b", "body:", "body:.a", "body:a..b", "prefix:9", "é"],
)
def test_a_malformed_source_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="write header:NAME"):
        AffinityRule([source])


def test_the_default_sources_are_accepted_and_each_gives_a_key() -> None:
    body = {
        "user": "a",
        "prompt_cache_key": "b",
        "safety_identifier": "c",
        "session_id": "d",
        "metadata": {"user_id": "e"},
        "messages": ASK,
    }
    for source in defaults.AFFINITY_SOURCES:
        kind, _, name = source.partition(":")
        headers = {name.encode(): b"v"} if kind == "header" else {}
        assert keys(source, headers=headers, **body).source == source
    assert defaults.AFFINITY_SOURCES[-1] == "prefix"


@given(
    body=st.dictionaries(
        st.sampled_from(["user", "metadata", "cache_salt", "messages", "prompt", "model"]), JSON
    ),
    shape=st.sampled_from(READ),
    needs=st.sampled_from([Needs.KEY, Needs.CHAIN]),
)
def test_any_json_has_a_key_or_none(body: dict[str, Any], shape: Shape, needs: Needs) -> None:
    asked = parse(shape, orjson.dumps(body), strict=False)
    rule = AffinityRule(["body:user", "body:metadata.user_id", "prefix"], needs=needs)
    first = rule.keys({}, shape, asked, "")
    assert first == rule.keys({}, shape, asked, "")
    assert len(first.chain) == len(first.ends)
    assert all(end <= first.prompt_bytes for end in first.ends)
    assert (first.affinity is None) == (first.source == "")
    assert first.affinity is None or 0 <= first.affinity < 2**64


# What a policy needs.

PROMPT = [{"role": "user", "content": "word " * 200}]


def made(
    needs: Needs, rule: AffinityRule | None = None, pool: tuple[int, ...] = (), **body: Any
) -> RequestKeys:
    rule = rule or AffinityRule(["body:user", "prefix"], needs=needs)
    return rule.keys({}, Shape.CHAT, parse(Shape.CHAT, orjson.dumps({"model": "m", **body}), True), "", pool)


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


# Requests that say nothing of their user.

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
