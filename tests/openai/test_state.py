"""Ids of responses and sessions: found where a request names one and where a reply gives one out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.routes import Route, RouteTable
from stickyroute.openai.state import GivenId, gives_id, held_id, holds_id

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
TABLE = RouteTable([])


def route(method: str, path: str) -> Route:
    found = TABLE.match(method.encode(), path.encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("method", "path", "fields", "held"),
    [
        ("GET", "/v1/responses/resp_1", None, b"response resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", None, b"response resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", {}, b"response resp_1"),
        ("POST", "/v1/responses", {"previous_response_id": "resp_1"}, b"response resp_1"),
        ("POST", "/v1/responses", {"previous_response_id": None}, None),
        ("POST", "/v1/responses", {"previous_response_id": ""}, None),
        ("POST", "/v1/responses", {"previous_response_id": 7}, None),
        ("POST", "/v1/responses", {"previous_response_id": "x" * 257}, None),
        ("POST", "/v1/responses", {}, None),
        ("POST", "/v1/chat/completions", {"previous_response_id": "resp_1"}, None),
        ("POST", "/v1/chat/completions", {"session_params": {"id": "s"}}, b"session s"),
        ("POST", "/generate", {"session_params": {"id": "s", "rid": "r"}}, b"session s"),
        ("POST", "/generate", {"session_params": "s"}, None),
        ("POST", "/generate", {"session_params": {}}, None),
        ("POST", "/generate", None, None),
        ("POST", "/close_session", {"session_id": "s"}, b"session s"),
        ("POST", "/open_session", {"session_id": "s"}, None),  # it begins one, wherever that is
        ("POST", "/generate", {"session_id": "s"}, None),  # a label, and a source of affinity
    ],
)
def test_what_a_request_comes_back_to(
    method: str, path: str, fields: dict[str, Any] | None, held: bytes | None
) -> None:
    assert held_id(route(method, path), path.encode(), fields) == held


def test_bodies_that_hold_an_id_are_told_without_reading_them() -> None:
    generate, close = route("POST", "/generate"), route("POST", "/close_session")
    assert holds_id(generate, b'{"text": "x", "session_params": {"id": "s"}}')
    assert holds_id(close, b'{"session_id": "s"}')
    assert not holds_id(generate, b'{"text": "what are session_params?"}')


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("capture", "given_id"),
    [
        ("vllm-responses-nonstream.txt", b"response resp_bc1b9b16ee958c32"),
        ("vllm-responses-stream.txt", b"response resp_8de26949d29aed95"),
    ],
)
def test_what_a_reply_gives_out_is_found_wherever_it_is_cut(capture: str, given_id: bytes, step: int) -> None:
    body = (CAPTURES / capture).read_bytes().partition(b"\r\n\r\n")[2]
    look = GivenId(route("POST", "/v1/responses"))
    found = [look.feed(body[i : i + step]) for i in range(0, len(body), step)]
    assert [name for name in found if name is not None] == [given_id]
    assert look.over


def test_a_session_is_a_bare_string() -> None:
    look = GivenId(route("POST", "/open_session"))
    assert [look.feed(piece) for piece in (b'"5f', b"3a", b'"\n')] == [None, None, b"session 5f3a"]
    assert GivenId(route("POST", "/open_session")).feed(b'{"error": "no"}') is None


def test_words_of_the_model_and_ids_of_other_things_are_none() -> None:
    look = GivenId(route("POST", "/v1/responses"))
    assert (
        look.feed(b'{"previous_response_id":"resp_0","output":[{"id":"msg_1","text":"\\"id\\":\\"resp_2\\""}')
        is None
    )
    assert look.feed(b',"id": "resp_3"}') == b"response resp_3"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/close_session"])
def test_other_routes_give_out_nothing(path: str) -> None:
    assert not gives_id(route("POST", path))


def test_the_search_ends_after_the_first_bytes() -> None:
    look = GivenId(route("POST", "/v1/responses"))
    for _ in range(5):
        assert look.feed(b"x" * 1000) is None
    assert look.over
    assert look.feed(b'"id":"resp_1"') is None


@given(st.lists(st.binary(max_size=40), max_size=20), st.sampled_from(["/v1/responses", "/open_session"]))
def test_no_bytes_raise(pieces: list[bytes], path: str) -> None:
    look = GivenId(route("POST", path))
    for piece in pieces:
        look.feed(piece)
