"""The end of an exchange, as its observers hear of it."""

from __future__ import annotations

from typing import Any

import pytest

from stickyroute.fleet import Fleet
from stickyroute.http.words import CLIENT_LEFT, COMPLETE
from stickyroute.metrics import Metrics
from stickyroute.openai.usage import Usage
from stickyroute.proxy.exchange import Exchange
from stickyroute.proxy.ledger import Ledger, Observer
from tests.fleet.leased import fleet, lease, prompt
from tests.support.exchanges import Core, Wire, client_of, exchange_of

USAGE = Usage(100, 80, 20)
TAIL = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d%b}}'


def told(usage: Usage) -> bytes:
    """The end of a reply that says so."""
    details = b""
    if usage.cached_tokens is not None:
        details = b',"prompt_tokens_details":{"cached_tokens":%d}' % usage.cached_tokens
    assert usage.completion_tokens is not None
    return TAIL % (usage.prompt_tokens, usage.completion_tokens, details)


def over(of: Fleet, usage: Usage, **changes: Any) -> Exchange:
    """An exchange whose reply is there: its prompt has 100 tokens, of which 30 are believed to be missing."""
    exchange = exchange_of(client_of(Wire()), Core(), prompt("a", 100), of)
    exchange.slot, exchange.status, exchange.learns = 0, 200, True
    held = exchange.lease = lease(of, 0, exchange.keys, 1.0)
    held.tokens, held.missing_tokens = 100.0, 30.0
    exchange.keep_tail()
    assert exchange.tail is not None
    exchange.tail.append(told(usage))
    for name, value in changes.items():
        setattr(exchange, name, value)
    return exchange


def ledger(*observers: Observer) -> tuple[Fleet, Metrics, Ledger]:
    of = fleet()
    metrics = Metrics(of, "1")
    return of, metrics, Ledger(of, metrics, None, observers)


def test_an_observer_hears_of_each_end_once_with_usage_and_lease() -> None:
    heard: list[Any] = []

    def observer(exchange: Exchange, end: str, now_s: float, usage: Usage | None) -> None:
        assert exchange.lease is not None
        heard.append((exchange.lease.tokens, end, usage))

    of, _, books = ledger(observer)
    for end in (COMPLETE, CLIENT_LEFT):
        books.close(over(of, USAGE), end)
        assert not any(of.in_flight)
    assert heard == [(100.0, COMPLETE, USAGE), (100.0, CLIENT_LEFT, None)]


def test_an_observer_that_raises_is_told_of_and_let_go_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []

    def broken(*_: Any) -> None:
        heard.append("broken")
        raise KeyError("a bug")

    of, _, books = ledger(broken, lambda exchange, end, now_s, usage: heard.append(end))
    for _ in range(3):
        books.close(over(of, USAGE), COMPLETE)
    assert heard == ["broken", COMPLETE, COMPLETE, COMPLETE]
    assert len(caplog.records) == 1


def test_silence_of_who_has_told_cached_tokens_before_means_none() -> None:
    """Old engines leave the field out where nothing was cached; who never told any may have been started so."""
    heard: list[int | None] = []

    def observer(exchange: Exchange, end: str, now_s: float, usage: Usage | None) -> None:
        assert usage is not None
        heard.append(usage.cached_tokens)

    of, metrics, books = ledger(observer)
    for cached in (None, 80, None, 0):
        books.close(over(of, Usage(100, cached, 1)), COMPLETE)
    assert heard == [None, 80, 0, 0]
    (traffic,) = metrics.traffic.values()
    assert (traffic.known_tokens, traffic.cached_tokens) == (300, 80)
    assert traffic.expected_tokens == pytest.approx(3 * 70.0), (
        "of a prompt, as much as was believed: 70 of 100"
    )


def counted(**changes: Any) -> Any:
    """What is counted of a stream with a prompt of 3000 tokens and an answer of five."""
    of, metrics, books = ledger()
    books.close(over(of, Usage(3000, None, 5), streams=True, first_byte_s=1.0, **changes), COMPLETE)
    (traffic,) = metrics.traffic.values()
    return traffic


def test_times_of_a_stream() -> None:
    """A first token at 2 s, the end now, five tokens: four pauses between them."""
    traffic = counted(first_token_s=2.0)
    assert traffic.ttft.sum == 2.0
    assert traffic.inter_token.sum == pytest.approx((traffic.duration.sum - 2.0) / 4)
    assert [sum(histogram.counts) for histogram in traffic.by_prompt] == [0, 1, 0, 0, 0, 0], (
        "up to 4096 tokens"
    )


def test_a_stream_that_nobody_looked_at_has_its_first_byte_for_a_token_and_one_without_any_has_none() -> None:
    assert counted().ttft.sum == 1.0
    assert sum(counted(looking=True).ttft.counts) == 0
