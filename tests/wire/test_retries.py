"""What the data plane owes to failed attempts: when a request is tried again, where, and when never."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_backend import (
    Call,
    FakeBackend,
    PeerGone,
    drop,
    echo,
    events,
    fakes,
    raw,
    reply,
    silent,
    stream,
)  # fmt: skip
from tests.support.raw_client import CHAT, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy


def seen(*backends: FakeBackend) -> int:
    """Requests that reached any of them."""
    return sum(len(backend.requests) for backend in backends)


async def home(
    proxy: RunningProxy, backends: list[FakeBackend], key: str
) -> tuple[FakeBackend, list[FakeBackend]]:
    """The backend that `key` lives on, by asking; and the others."""
    name = (await proxy.ask(headers={"x-session-id": key})).backend
    for backend in backends:
        backend.requests.clear()
    return next(b for b in backends if b.name == name), [b for b in backends if b.name != name]


async def test_a_refused_connection_goes_to_the_next_backend_and_is_skipped_afterwards() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], response_headers=True) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")
        await first.refuse()
        first.drop_idle()
        for _ in range(3):
            answer = await proxy.ask(headers={"x-session-id": "s"})
            assert (answer.status, answer.backend) == (200, second.name)
            assert answer.get("x-stickyroute-backend") == second.name
            assert answer.get("x-stickyroute-reason") == "failover"
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_backend_available", backend=first.name) == 0
        assert samples.sum("stickyroute_upstream_failures_total", backend=first.name) <= 1
        assert samples.sum("stickyroute_backend_in_flight") == 0


async def test_a_backend_that_listens_again_gets_its_users_back() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")
        await first.refuse()
        first.drop_idle()
        assert (await proxy.ask(headers={"x-session-id": "s"})).backend == second.name
        await first.listen()
        await proxy.until_metrics(lambda s: s.sum("stickyroute_backend_available") == 2)
        assert (await proxy.ask(headers={"x-session-id": "s"})).backend == first.name


async def test_when_everybody_refuses_the_answer_is_503_with_retry_after() -> None:
    async with fakes("a", "b", "c") as all_three, run_proxy(all_three) as proxy:
        for backend in all_three:
            await backend.refuse()
            backend.drop_idle()
        for _ in range(2):
            answer = await proxy.ask()
            assert answer.status == 503
            assert int(answer.get("retry-after") or 0) >= 1
            assert answer.json["error"]["type"]
        assert (await proxy.in_flight()) == 0


async def test_a_connection_dropped_before_any_byte_is_tried_on_backends_not_tried_before() -> None:
    async with fakes("a", "b", "c", "d", "e") as five, run_proxy(five) as proxy:
        for backend in five:
            backend.on(CHAT, drop())
        answer = await proxy.ask(headers={"x-session-id": "s"})
        assert answer.status == 502
        assert answer.json["error"]["code"] == "upstream_failed"
        assert sorted(len(backend.requests) for backend in five) == [0, 0, 1, 1, 1]  # the first and two more
        assert len({call.request_id for backend in five for call in backend.requests}) == 1
        await proxy.settled()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_dropped_before_any_byte_is_made_good_by_the_next_backend(how: str) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")
        first.on(CHAT, drop(how))
        first.drop_idle()
        await first.until(lambda: not first.open)
        body = chat("x" * 200_000)
        answer = await proxy.ask(body, headers={"x-session-id": "s"})
        assert (answer.status, answer.backend) == (200, second.name)
        assert first.requests[0].body == second.requests[0].body == body
        assert (await proxy.metrics()).sum("stickyroute_retries_total") == 1


async def test_a_stale_pooled_connection_is_replaced_by_a_fresh_one_to_the_same_backend_first() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], retries={"max": 0}) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")
        pooled = first.open[-1]
        first.on(CHAT, drop(), echo)  # the pooled connection dies under the request
        answer = await proxy.ask(headers={"x-session-id": "s"})
        assert (answer.status, answer.backend) == (200, first.name)
        assert [call.connection is pooled for call in first.requests] == [True, False]
        assert second.requests == []


async def test_a_stale_connection_whose_backend_is_gone_too_goes_to_the_next() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")

        async def die(call: Call) -> None:
            await first.refuse()
            call.reset()
            raise PeerGone

        first.on(CHAT, die)
        answer = await proxy.ask(headers={"x-session-id": "s"})
        assert (answer.status, answer.backend) == (200, second.name)
        assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_many_stale_connections_at_once_lose_nothing() -> None:
    gate = asyncio.Event()

    async def wait(call: Call) -> None:
        await gate.wait()
        await echo(call)

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, wait)
        clients = [await proxy.client() for _ in range(30)]
        for client in clients:
            client.send(request())
        await fake.arrived(30)
        gate.set()
        for client in clients:
            assert (await client.response()).status == 200
        for connection in fake.open:  # thirty pooled connections, closed as the next thirty requests leave
            connection.transport.close()
        for client in clients:
            client.send(request())
        assert [(await client.response()).status for client in clients] == [200] * 30
        assert len([call for call in fake.completed if call not in fake.probes]) == 60
        for client in clients:
            client.close()


@pytest.mark.parametrize("status", [503, 429])
async def test_a_busy_answer_is_made_good_by_another_backend(status: int) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")
        first.on(CHAT, reply(status, b'{"error":"busy"}'))
        answer = await proxy.ask(headers={"x-session-id": "s"})
        assert (answer.status, answer.backend) == (200, second.name)
        state = proxy.app.fleet.state(proxy.app.fleet.find(first.name).slot)
        assert (state.ejected, state.paused_s > 0) == (False, True), "busy is not ill"


async def test_when_everybody_is_busy_the_last_busy_answer_is_relayed() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], retries={"max": 1}) as proxy:
        for fake in (a, b):
            fake.on(CHAT, reply(503, b'{"error":"busy"}', fields=[("Retry-After", "7")]))
        answer = await proxy.ask()
        assert (answer.status, answer.body, answer.get("retry-after")) == (503, b'{"error":"busy"}', "7")
        assert (len(a.requests), len(b.requests)) == (1, 1)
        await proxy.settled()


async def test_a_busy_answer_of_the_only_backend_is_relayed_as_it_is() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, reply(503, b'{"error":"loading"}'))
        answer = await proxy.ask()
        assert (answer.status, answer.body) == (503, b'{"error":"loading"}')
        assert len(fake.requests) == 1
        await proxy.settled()


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 500, 501, 502, 504])
async def test_any_other_answer_is_relayed_and_never_tried_again(status: int) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, reply(status, b'{"error":{"message":"no"}}'))
        answer = await proxy.ask()
        assert (answer.status, answer.body) == (status, b'{"error":{"message":"no"}}')
        assert seen(a, b) == 1


async def test_a_length_of_any_number_of_digits_is_relayed() -> None:
    """An int() of more than 4300 digits raises, be they zeros."""
    head = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: " + b"0" * 5000 + b"5\r\n\r\n"
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, raw(head + b"abcde"))
        async with await proxy.client() as client:
            client.send(request())
            assert (await client.head()).status == 500
            assert await client.read(5) == b"abcde"
        await proxy.settled()


@pytest.mark.parametrize(
    "begun",
    [
        b"H",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 103 Early\r\n\r\n",
    ],
)
async def test_never_after_a_response_byte(begun: bytes) -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, raw(begun))
        async with await proxy.client() as client:
            client.send(request())
            try:
                assert (await client.response()).status == 502
            except Truncated as cut:
                assert b"Content-Length" in begun or cut.raw == b""
        assert seen(a, b) == 1
        await proxy.settled()


async def test_never_for_slowness_alone() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], timeouts={"response_header_s": 0.15}) as proxy:
        for fake in (a, b):
            fake.on(CHAT, silent())
        answer = await proxy.ask()
        assert answer.status == 504
        assert answer.json["error"]["code"] == "upstream_timeout"
        assert seen(a, b) == 1
        call = (a.requests + b.requests)[0]
        await call.gone.wait()  # and the engine is told to stop
        await proxy.settled()


async def test_no_more_attempts_than_allowed() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], retries={"max": 0}) as proxy:
        for fake in (a, b):
            fake.on(CHAT, drop())
        assert (await proxy.ask()).status == 502
        assert seen(a, b) == 1


async def test_the_budget_ends_retries_in_an_outage() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b], retries={"budget": 0.1, "burst": 5}) as proxy:
        for fake in (a, b):
            fake.on(CHAT, drop())
        for _ in range(50):
            assert (await proxy.ask()).status == 502
        retries = seen(a, b) - 50
        assert 5 <= retries <= 5 + 50 * 0.1
        assert (await proxy.metrics()).sum("stickyroute_retries_total") == retries


async def test_a_backend_that_left_its_ring_neighbour_takes_only_its_keys() -> None:
    async with fakes("a", "b", "c") as three, run_proxy(three) as proxy:
        keys = [f"user {i}" for i in range(40)]
        before = {key: (await proxy.ask(headers={"x-session-id": key})).backend for key in keys}
        gone = three[0]
        await gone.refuse()
        gone.drop_idle()
        after = {key: (await proxy.ask(headers={"x-session-id": key})).backend for key in keys}
        assert {key for key in keys if before[key] != after[key]} == {
            k for k in keys if before[k] == gone.name
        }
        assert len({after[key] for key in keys if before[key] == gone.name}) == 2  # spread over the others


async def test_a_stream_that_was_not_begun_fails_over_and_then_streams() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        first, (second,) = await home(proxy, [a, b], "s")
        first.on(CHAT, drop("reset"))
        second.on(CHAT, stream(events(4)))
        answer = await proxy.ask(chat(stream=True), headers={"x-session-id": "s"})
        assert answer.body == b"".join(events(4))
