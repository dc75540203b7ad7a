"""The models watch over real sockets: what each answer makes of a backend, and that none disturbs another."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from stickyroute.errors import ConfigError
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.watch import models as watch_models
from stickyroute.watch.models import ModelsWatch
from tests.watch.engines import engine, fixed, models, raw_engine

NEVER_S = 3600.0
DATA = Path(__file__).parent / "data"


def spec(name: str, port: int, **more: Any) -> BackendSpec:
    values: dict[str, Any] = {
        "scheme": "http",
        "host": "127.0.0.1",
        "base_path": "",
        "weight": 1,
        "api_key": None,
        "ca": None,
        "tls_verify": True,
        "models": None,
        "max_in_flight": None,
    }
    return BackendSpec(name=name, port=port, **(values | more))


def fleet_of(*specs: BackendSpec) -> Fleet:
    return Fleet(specs, vnodes=16)


@asynccontextmanager
async def watching(
    fleet: Fleet, interval_s: float = NEVER_S, timeout_s: float = 30.0
) -> AsyncIterator[ModelsWatch]:
    watch = ModelsWatch(fleet, interval_s=interval_s, timeout_s=timeout_s)
    watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


async def ask_once(*specs: BackendSpec) -> Fleet:
    """The fleet after each backend was asked once."""
    fleet = fleet_of(*specs)
    async with watching(fleet) as watch:
        assert await watch.first_round(30.0)
    return fleet


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it holds; the test's own limit is the deadline."""
    while not condition():
        await asyncio.sleep(0.005)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pools(fleet: Fleet, *names: str) -> list[bool]:
    """Whether somebody serves each of the models."""
    return [fleet.pool(name) is not None for name in names]


def row_ids(fleet: Fleet) -> list[list[str]]:
    return [[row["id"] for row in rows] for rows in fleet.models()]


# What an answer means.


async def test_a_list_of_models_makes_them_known_with_every_field() -> None:
    async with engine(models("llama", "lora")) as running:
        fleet = await ask_once(spec("a", running.port))
    assert pools(fleet, "llama", "lora", "gpt") == [True, True, False]
    assert fleet.models() == [
        [
            {"id": "llama", "object": "model", "max_model_len": 4096},
            {"id": "lora", "object": "model", "max_model_len": 4096},
        ]
    ]
    assert running.asked[0].method == "GET"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{", 200),
        (b"\xff\xfe", 200),
        (b"[]", 200),
        (b"null", 200),
        (b'{"data": null}', 200),
        (b'{"data": {}}', 200),
        (b'{"data": ["llama"]}', 200),
        (b'{"data": [{"name": "llama"}]}', 200),
        (b'{"data": [{"id": 7}]}', 200),
        (b'{"data": [{"id": ""}]}', 200),
        (b'{"data": [{"id": "llama"}, null]}', 200),
        (b'{"data": [{"id": "llama"}]}', 201),
        (b'{"error": "who are you"}', 401),
        (b"nothing here", 404),
        (b"", 204),
        (b'{"data": ' + b"[" * 100_000, 200),
    ],
)
async def test_any_other_answer_leaves_the_models_unknown_and_the_backend_reachable(
    body: bytes, status: int
) -> None:
    async with engine(fixed(body, status)) as running:
        fleet = await ask_once(spec("a", running.port))
    assert pools(fleet, "llama", "gpt") == [True, True], "a backend with unknown models serves any"
    assert fleet.available[0]


async def test_a_reply_beyond_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = orjson.dumps({"data": [{"id": "llama"}], "padding": "x" * 10_000})
    monkeypatch.setattr(watch_models, "REPLY_BYTES", len(body))
    async with engine(fixed(body)) as running:
        fits = await ask_once(spec("a", running.port))
    monkeypatch.setattr(watch_models, "REPLY_BYTES", len(body) - 1)
    async with engine(fixed(body)) as running:
        too_long = await ask_once(spec("a", running.port))
    assert pools(fits, "gpt") == [False]
    assert pools(too_long, "gpt") == [True]


async def test_a_redirect_is_not_followed() -> None:
    async with engine(models("llama"), path="/elsewhere") as canary:
        target = f"http://127.0.0.1:{canary.port}/elsewhere"
        async with engine(fixed(b"", 307, {"Location": target})) as running:
            fleet = await ask_once(spec("a", running.port))
    assert not canary.asked
    assert fleet.available[0]
    assert pools(fleet, "gpt") == [True]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\x00\x01\x02",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
    ],
)
async def test_an_answer_that_is_not_http_changes_nothing(reply: bytes) -> None:
    async with raw_engine(reply) as running:
        fleet = await ask_once(spec("a", running.port))
    assert fleet.available[0]
    assert pools(fleet, "llama") == [True]


async def test_known_models_stay_known_when_a_later_answer_is_odd() -> None:
    answers = [models("llama"), fixed(b"oops"), fixed(b"", 500), fixed(b"", 401)]

    async def next_answer(request: Any) -> Any:
        answer = answers[min(len(running.asked), len(answers)) - 1]
        return await answer(request)

    async with engine(next_answer) as running:
        fleet = fleet_of(spec("a", running.port))
        async with watching(fleet, interval_s=0.01):
            await until(lambda: len(running.asked) > len(answers))
    assert pools(fleet, "llama", "gpt") == [True, False]
    assert fleet.available[0]


# Reachability.


async def test_a_refused_connection_makes_a_backend_unavailable_and_its_return_is_noticed() -> None:
    port = unused_port()
    fleet = fleet_of(spec("a", port))
    async with watching(fleet) as watch:
        assert await watch.first_round(30.0)
        assert not fleet.available[0]
        async with engine(models("llama"), port=port):
            await until(lambda: bool(fleet.available[0]))  # asked at the fleet's backoff, not each hour
            await until(lambda: pools(fleet, "gpt") == [False])


async def test_a_backend_that_the_proxy_saw_refusing_is_asked_at_once_and_comes_back() -> None:
    async with engine(models("llama")) as running:
        fleet = fleet_of(spec("a", running.port))
        async with watching(fleet) as watch:
            assert await watch.first_round(30.0)
            fleet.record_refused(0, watch_models.monotonic(), 0.5)
            assert not fleet.available[0]
            await until(lambda: bool(fleet.available[0]))
    assert len(running.asked) == 2


async def test_a_backend_that_still_loads_does_not_come_back_before_it_is_ready() -> None:
    ready = False

    async def loading(request: Any) -> Any:
        return await (models("llama") if ready else fixed(b'{"error": "loading model"}', 503))(request)

    port = unused_port()
    fleet = fleet_of(spec("a", port))
    async with watching(fleet) as watch:
        assert await watch.first_round(30.0)
        async with engine(loading, port=port) as running:
            await until(lambda: len(running.asked) >= 1)
            assert not fleet.available[0]
            ready = True
            await until(lambda: bool(fleet.available[0]))


async def test_a_backend_that_is_down_and_answers_nonsense_is_asked_at_the_backoff_only() -> None:
    """Each answer that is none counts as one more failure, so the pauses grow."""
    async with raw_engine(b"nonsense") as running:
        fleet = fleet_of(spec("a", running.port))
        fleet.record_refused(0, watch_models.monotonic(), 0.0)
        async with watching(fleet):
            await until(lambda: fleet.snapshot()["backends"][0]["failures"] == 3)
            assert not fleet.available[0]
            assert len(running.asked) <= 3  # at the start, then once after each pause


async def test_backends_may_have_any_name() -> None:
    async with engine(models("llama")) as running:
        fleet = await ask_once(*(spec(name, running.port) for name in ("retry", "clock", "a b", "models:a")))
    assert fleet.pool("gpt") is None


async def test_a_name_that_does_not_resolve_counts_as_unreachable() -> None:
    fleet = await ask_once(spec("a", 80, host="nowhere.invalid"))
    assert not fleet.available[0]


async def test_slowness_alone_changes_nothing() -> None:
    async with raw_engine(None) as running:
        fleet = fleet_of(spec("a", running.port))
        async with watching(fleet, timeout_s=0.05) as watch:
            assert await watch.first_round(30.0)
    assert fleet.available[0]
    assert pools(fleet, "llama") == [True]


async def test_a_hung_backend_delays_no_other() -> None:
    """The hung one holds its single question for the whole test; the other is asked again meanwhile."""
    async with raw_engine(None) as hung, engine(models("llama")) as well:
        fleet = fleet_of(spec("hung", hung.port), spec("well", well.port))
        async with watching(fleet, interval_s=0.01) as watch:
            await until(lambda: len(well.asked) >= 5)
            assert len(hung.asked) == 1
            assert not await watch.first_round(0.01)
            assert row_ids(fleet)[-1] == ["llama"]


async def test_stop_ends_every_task_and_question() -> None:
    async with raw_engine(None) as hung:
        fleet = fleet_of(spec("hung", hung.port), spec("gone", unused_port()))
        watch = ModelsWatch(fleet, interval_s=NEVER_S)
        watch.start()
        await until(lambda: len(hung.asked) == 1)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert {"models:hung", "models:gone"} <= names
        await watch.stop()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("models:")]
        await watch.stop()


# How it asks.


@pytest.mark.parametrize("base_path", ["/base", "/base/"])
async def test_the_base_path_is_joined_properly(base_path: str) -> None:
    async with engine(models("llama"), path="/base/v1/models") as running:
        await ask_once(spec("a", running.port, base_path=base_path))
    assert [request.path for request in running.asked] == ["/base/v1/models"]


async def test_an_ipv6_address_is_asked() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "::1", 0)
    async with server:
        fleet = await ask_once(spec("a", server.sockets[0].getsockname()[1], host="::1"))
    assert fleet.available[0]


async def test_the_backends_own_key_is_sent_to_it_alone() -> None:
    async with engine(models("llama")) as with_key, engine(models("llama")) as without:
        await ask_once(spec("a", with_key.port, api_key="engine-key-a"), spec("b", without.port))
    assert [request.headers.get("Authorization") for request in with_key.asked] == ["Bearer engine-key-a"]
    assert [request.headers.get("Authorization") for request in without.asked] == [None]


async def test_cookies_are_not_kept() -> None:
    async with (
        engine(fixed(b'{"data": []}', headers={"Set-Cookie": "a=b"})) as running,
        watching(fleet_of(spec("a", running.port)), interval_s=0.01),
    ):
        await until(lambda: len(running.asked) >= 2)
    assert "Cookie" not in running.asked[1].headers


async def test_tls_trusts_the_configured_authority_only() -> None:
    certificate = DATA / "localhost.pem"  # signed by itself, for localhost, until 2126
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, DATA / "localhost.key")
    async with engine(models("llama"), tls=server) as running:
        secure = {"scheme": "https", "host": "localhost"}
        fleet = await ask_once(
            spec("trusted", running.port, ca=certificate, **secure),
            spec("unchecked", running.port, tls_verify=False, **secure),
            spec("system", running.port, **secure),
        )
    assert list(fleet.available) == [1, 1, 0]


def test_a_ca_file_that_cannot_be_used_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(ConfigError, match="backend a: its CA file"):
            ModelsWatch(fleet_of(spec("a", 1, scheme="https", ca=tmp_path / name)), interval_s=NEVER_S)


# What it logs.

UNLISTED = "its models stay as they were (any, if it never listed them)"


async def test_a_state_is_logged_once_however_often_it_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stickyroute")
    bad = True

    async def answer(request: Any) -> Any:
        return await (fixed(b"", 401) if bad else models("llama"))(request)

    async with (
        engine(answer) as running,
        watching(fleet_of(spec("a", running.port, api_key="secret-key")), interval_s=0.005),
    ):
        await until(lambda: len(running.asked) >= 5)
        bad = False
        await until(lambda: len(running.asked) >= 10)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", f"backend a: reachable, but answers 401 to /v1/models: {UNLISTED}"),
        ("INFO", "backend a: reachable"),
    ]
    assert "secret-key" not in caplog.text


@pytest.mark.parametrize(
    ("configured", "status", "told"),
    [
        (("m",), 404, "answers 404 to /v1/models: its models are those of the configuration"),
        (None, 200, f"its /v1/models is no list of models: {UNLISTED}"),
    ],
)
async def test_an_answer_without_a_list_says_what_that_means(
    configured: tuple[str, ...] | None, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine(fixed(b'{"error": "no"}', status)) as running:
        await ask_once(spec("a", running.port, models=configured))
    assert [record.message for record in caplog.records] == [f"backend a: reachable, but {told}"]


async def test_a_backend_that_stays_down_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stickyroute")
    fleet = fleet_of(spec("a", unused_port()))
    async with watching(fleet, interval_s=0.005) as watch:
        assert await watch.first_round(30.0)
        seen: set[int] = set()

        def asked_again() -> bool:
            seen.add(fleet.snapshot()["backends"][0]["failures"])
            return len(seen) >= 3

        await until(asked_again)
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith("backend a: cannot be reached: ")
