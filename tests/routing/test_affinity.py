"""The affinity key: which source gives it, what counts as a value, and what it is scoped by."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute import defaults
from stickyroute.openai.request import Asked, parse
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.keys import NO_KEYS, Needs, RequestKeys
from tests.openai.test_request import JSON, READ
from tests.routing.asked import ASK, keys

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
