"""The end of an exchange, as its observers hear of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stickyroute.http.words import CLIENT_LEFT, COMPLETE
from stickyroute.openai.routes import Shape
from stickyroute.openai.usage import Usage
from stickyroute.proxy.ledger import Ledger, Observer

USAGE = Usage(100, 80, 20)


class Lease(SimpleNamespace):
    tokens = 100.0
    missing_tokens = 30.0
    told: Usage | None = None

    def usage(self, usage: Usage, now_s: float) -> None:
        self.told = usage


class Exchange(SimpleNamespace):
    """What a ledger reads of an exchange."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(
            request=SimpleNamespace(started_s=0.0, wire_bytes=10, request_id=b"r", method=b"POST"),
            route=SimpleNamespace(template="/v1/chat/completions", shape=Shape.CHAT),
            pool=SimpleNamespace(label="m"),
            keys=SimpleNamespace(affinity=1, source="header:x-user-id"),
            lease=Lease(keys=SimpleNamespace(chain=(1,))),
            slot=0,
            status=200,
            reason="home",
            streams=False,
            asks_stream=False,
            looking=False,
            learns=True,
            first_byte_s=0.0,
            first_token_s=0.0,
            bytes_out=5,
            attempts=1,
            **changes,
        )
        self.released = 0

    def usage(self) -> Usage | None:
        return USAGE

    def release(self, now_s: float | None = None) -> None:
        assert self.lease is not None
        self.lease = None
        self.released += 1


class Metrics:
    """Takes every count."""

    client_disconnects = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: None


def ledger(*observers: Observer) -> Ledger:
    backend = SimpleNamespace(name="a", slot=0)
    fleet: Any = SimpleNamespace(backends=(backend,), at=lambda slot: backend)
    metrics: Any = Metrics()
    return Ledger(fleet, metrics, None, observers)


def test_an_observer_hears_of_each_end_once_with_usage_and_lease() -> None:
    heard: list[Any] = []
    books = ledger(lambda exchange, end, now_s, usage: heard.append((exchange.lease.tokens, end, usage)))
    for end in (COMPLETE, CLIENT_LEFT):
        exchange: Any = Exchange()
        books.close(exchange, end)
        assert exchange.released == 1
    assert heard == [(100.0, COMPLETE, USAGE), (100.0, CLIENT_LEFT, None)]


def test_an_observer_that_raises_is_told_of_and_let_go_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []

    def broken(*_: Any) -> None:
        heard.append("broken")
        raise KeyError("a bug")

    books = ledger(broken, lambda exchange, end, now_s, usage: heard.append(end))
    for _ in range(3):
        exchange: Any = Exchange()
        books.close(exchange, COMPLETE)
    assert heard == ["broken", COMPLETE, COMPLETE, COMPLETE]
    assert len(caplog.records) == 1


def counted(*usages: Usage, **changes: Any) -> list[tuple[Any, ...]]:
    """What the metrics are told of exchanges that ended with these: everything from TTFT on."""
    rows: list[tuple[Any, ...]] = []
    metrics: Any = SimpleNamespace(record=lambda *values: rows.append(values[5:]), client_disconnects=0)
    books = ledger()
    books._metrics = metrics
    for usage in usages:
        exchange: Any = Exchange()
        exchange.__dict__.update(usage=lambda usage=usage: usage, **changes)
        books.close(exchange, COMPLETE)
    return rows


def test_silence_of_who_has_told_cached_tokens_before_means_none() -> None:
    """Old engines leave the field out where nothing was cached; who never told any may have been started so."""
    rows = counted(Usage(100, None, 1), Usage(100, 80, 1), Usage(100, None, 1), Usage(100, 0, 1))
    assert [row[-2].cached_tokens for row in rows] == [None, 80, 0, 0]
    assert [row[-1] for row in rows] == [70.0] * 4, "of the prompt, as much as was believed: 70 of 100"


def test_times_of_a_stream() -> None:
    """A first token at 2 s, the end now, five tokens: four pauses between them."""
    ((ttft_s, duration_s, _, _, inter_token_s, prompt_tokens, _, _),) = counted(
        Usage(3000, None, 5), streams=True, first_byte_s=1.0, first_token_s=2.0
    )
    assert ttft_s == 2.0
    assert inter_token_s == pytest.approx((duration_s - 2.0) / 4)
    assert prompt_tokens == 3000


def test_a_stream_that_nobody_looked_at_has_its_first_byte_for_a_token_and_one_without_any_has_none() -> None:
    ((blind, *_),) = counted(Usage(3000, None, 5), streams=True, first_byte_s=1.0)
    assert blind == 1.0
    ((none, *_),) = counted(Usage(3000, None, 5), streams=True, first_byte_s=1.0, looking=True)
    assert none is None
