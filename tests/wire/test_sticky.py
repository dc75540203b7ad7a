"""Policy sticky over real sockets: who is kept where, and what the fleet learns of each reply's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.faults import parse
from stickyroute.simulator.server import RunningEngine, serve_engines
from tests.support.fake_backend import Call, fakes, finish, reply
from tests.support.raw_client import CHAT, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

LONG = "The quick brown fox jumps over the lazy dog. " * 200
PATIENCE_S = 10.0


@asynccontextmanager
async def simulated(count: int, **config: Any) -> AsyncIterator[list[RunningEngine]]:
    engines = await serve_engines([EngineConfig(**{"model": "m", "speedup": 50.0, **config})] * count)
    try:
        yield engines
    finally:
        for engine in engines:
            await engine.close()


@asynccontextmanager
async def sticky(backends: Sequence[Any], **settings: Any) -> AsyncIterator[RunningProxy]:
    """A proxy under policy sticky that tells its decisions."""
    entries = [
        {"name": f"b{slot}", "url": one.url} if isinstance(one, RunningEngine) else one
        for slot, one in enumerate(backends)
    ]
    async with run_proxy(entries, policy="sticky", response_headers=True, **settings) as proxy:
        yield proxy


def backlog(proxy: RunningProxy) -> float:
    return sum(proxy.app.fleet.loads.backlog_tokens)


def in_flight(proxy: RunningProxy) -> int:
    return sum(proxy.app.fleet.in_flight)


async def until(true: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.002)


class Conversation:
    """A client that sends its whole history each time, as chat clients do."""

    def __init__(self, number: int, headers: dict[str, str]) -> None:
        self.headers = headers
        self.messages = [{"role": "system", "content": f"You serve user {number}. " + LONG}]
        self.places: list[str | None] = []
        self.cached: list[int] = []

    async def turn(self, proxy: RunningProxy, question: str) -> None:
        self.messages.append({"role": "user", "content": question})
        body = json.dumps({"model": "m", "messages": self.messages, "max_tokens": 8}).encode()
        answer = await proxy.ask(body, headers=self.headers)
        assert answer.status == 200
        self.places.append(answer.get("x-stickyroute-backend"))
        self.cached.append(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.messages.append(answer.json["choices"][0]["message"])


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_a_conversation_stays_where_it_is_cached(keyed: bool, dialect: str) -> None:
    async with simulated(3, dialect=dialect) as engines, sticky(engines) as proxy:
        talks = [Conversation(n, {"x-session-id": f"s{n}"} if keyed else {}) for n in range(9)]
        for turn in range(4):
            for talk in talks:
                await talk.turn(proxy, f"Question {turn}?")
        assert [len(set(talk.places)) for talk in talks] == [1] * 9
        assert len({talk.places[0] for talk in talks}) > 1
        assert all(min(talk.cached[1:]) > 1000 for talk in talks)
        samples = await proxy.metrics()
        told = sum(sum(talk.cached) for talk in talks)
        assert samples.sum("stickyroute_cached_tokens_total") == told
        assert samples.sum("stickyroute_expected_cached_tokens_total") == pytest.approx(told, rel=0.2)
        assert samples.sum("stickyroute_prompt_tokens_total") > told
        assert samples.sum("stickyroute_decisions_total") == 36
        assert (backlog(proxy), in_flight(proxy)) == (0.0, 0)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "stream_options": {"include_usage": True}}),
        ("/v1/completions", {"prompt": LONG, "stream_options": {"include_usage": True}}),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses", {"input": LONG, "max_output_tokens": 800}),
    ],
)
async def test_a_stream_of_every_api_tells_its_first_token_and_its_usage(
    path: str, asked: dict[str, Any]
) -> None:
    """Slow decoding after a quick prefill: the backlog is gone long before the reply is.

    It would decode for seconds, so that a busy machine is no matter, until it is told to hurry.
    """
    async with simulated(1, speedup=2.0) as engines, sticky(engines) as proxy:
        body = json.dumps({"model": "m", "stream": True, "max_tokens": 800, **asked}).encode()
        for turn in range(2):
            async with await proxy.client() as client:
                client.send(request(body, path=path))
                await until(lambda: in_flight(proxy) == 1)
                await until(lambda: backlog(proxy) == 0.0)
                assert in_flight(proxy) == 1
                engines[0].inject(parse("slow:factor=0.001"))
                assert (await client.response()).status == 200
            engines[0].heal()
            await until(lambda: in_flight(proxy) == 0)
            samples = await proxy.metrics()
            prompts, cached = (
                samples.sum(f"stickyroute_{name}_tokens_total", backend="b0") for name in ("prompt", "cached")
            )
            assert prompts > 2000 * (turn + 1)
            assert cached > 1900 if turn else cached == 0


# A reply's way, step by step.


def event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


ROLE = event(
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
)
TOKEN = event({"choices": [{"index": 0, "delta": {"content": " fox"}, "finish_reason": None}]})
DONE = b"data: [DONE]\n\n"


def told(prompt: int, cached: int) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": 9, "prompt_tokens_details": details}}


class Steps:
    """A stream that goes on when the test says so."""

    def __init__(self, *pieces: bytes, then: str = "end") -> None:
        self.pieces = pieces
        self.then = then
        self.go: list[asyncio.Event] = [asyncio.Event() for _ in range(len(pieces) + 1)]

    async def __call__(self, call: Call) -> None:
        await call.start(200, [("Content-Type", "text/event-stream")])
        for piece, go in zip(self.pieces, self.go, strict=False):
            waiting = asyncio.create_task(go.wait())
            left = asyncio.create_task(call.gone.wait())
            await asyncio.wait({waiting, left}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            left.cancel()
            await call.piece(piece)
        await self.go[-1].wait()
        await finish(call, self.then)

    def take(self, count: int) -> None:
        for go in self.go[:count]:
            go.set()


def ask_for_a_stream(**more: Any) -> bytes:
    return request(chat(LONG, stream=True, **more))


@pytest.mark.parametrize(
    "pieces", [(ROLE, TOKEN), (ROLE + TOKEN[:40], TOKEN[40:]), (b": keep-alive\n\n", ROLE + TOKEN)]
)
async def test_the_first_token_of_a_stream_ends_its_backlog_and_nothing_before_does(
    pieces: tuple[bytes, bytes],
) -> None:
    steps = Steps(*pieces, TOKEN, DONE)
    async with fakes() as fake, sticky([fake]) as proxy:
        fake.on(CHAT, steps)
        async with await proxy.client() as client:
            client.send(ask_for_a_stream())
            await fake.arrived()
            assert backlog(proxy) == pytest.approx(len(LONG) / 4, rel=0.05)
            steps.take(1)
            answer = await client.head()
            await client.body(answer, stop_after=1)
            assert backlog(proxy) > len(LONG) / 50  # drained at most to a tenth while it waits
            steps.take(2)
            await client.body(answer, stop_after=2)
            assert backlog(proxy) == 0.0
            assert in_flight(proxy) == 1
            steps.take(5)
            await client.body(answer)
            assert b"".join(piece for _, piece in answer.pieces) == b"".join((*pieces, TOKEN, DONE))
        await until(lambda: in_flight(proxy) == 0)


@pytest.mark.parametrize("together", [False, True])
async def test_usage_is_read_from_a_stream_however_its_end_arrives(together: bool) -> None:
    usage = event({"choices": [], **told(2000, 500)})
    last = (usage + DONE,) if together else (usage, DONE)
    steps = Steps(ROLE, *[TOKEN] * 50, *last)
    async with fakes() as fake, sticky([fake]) as proxy:
        fake.on(CHAT, steps)
        async with await proxy.client() as client:
            client.send(ask_for_a_stream(stream_options={"include_usage": True}))
            steps.take(1)
            answer = await client.head()
            for count in range(1, len(steps.pieces) + 1):  # each piece is a read of its own
                steps.take(count)
                await client.body(answer, stop_after=count)
            steps.take(len(steps.go))
            await client.body(answer)
        samples = await proxy.until_metrics(lambda s: s.sum("stickyroute_prompt_tokens_total") > 0)
        assert samples.sum("stickyroute_prompt_tokens_total", pool="m") == 2000
        assert samples.sum("stickyroute_cached_tokens_total", pool="m") == 500


async def test_what_replies_tell_of_cached_tokens_becomes_trust() -> None:
    async with fakes() as fake, sticky([fake]) as proxy:
        loads = proxy.app.fleet.loads
        fake.on(CHAT, reply(body=json.dumps(told(2000, 0)).encode()))
        await proxy.ask(chat(LONG))
        assert loads.trust[0] == 1.0  # nothing was believed to be there
        for _ in range(3):
            await proxy.ask(chat(LONG))
        assert loads.trust[0] < 0.1
        fake.on(CHAT, reply(body=json.dumps(told(2000, 1990)).encode()))
        for _ in range(30):
            await proxy.ask(chat(LONG))
        assert loads.trust[0] > 0.8
        assert (await proxy.metrics()).sum("stickyroute_backend_trust", backend="a") == loads.trust[0]


async def test_an_engine_that_says_nothing_of_its_cache_changes_no_trust() -> None:
    async with fakes() as fake, sticky([fake]) as proxy:
        fake.on(CHAT, reply(body=b'{"usage":{"prompt_tokens":2000,"completion_tokens":9}}'))
        for _ in range(3):
            await proxy.ask(chat(LONG))
        assert proxy.app.fleet.loads.trust[0] == 1.0
        assert (await proxy.metrics()).sum("stickyroute_prompt_tokens_total") == 0


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_client_that_leaves_takes_its_backlog_with_it(after: int) -> None:
    steps = Steps(ROLE, TOKEN, TOKEN)
    async with fakes() as fake, sticky([fake]) as proxy:
        fake.on(CHAT, steps)
        client = await proxy.client()
        client.send(ask_for_a_stream())
        await fake.arrived()
        if after:
            steps.take(after)
            await client.body(await client.head(), stop_after=after)
        client.close()
        await until(lambda: (backlog(proxy), in_flight(proxy)) == (0.0, 0))


@pytest.mark.parametrize("after", [1, 2])
async def test_a_backend_that_dies_in_the_middle_leaves_no_backlog(after: int) -> None:
    steps = Steps(ROLE, TOKEN, TOKEN)
    async with fakes() as fake, sticky([fake]) as proxy:
        fake.on(CHAT, steps)
        async with await proxy.client() as client:
            client.send(ask_for_a_stream())
            await fake.arrived()
            steps.take(after)
            answer = await client.head()
            await client.body(answer, stop_after=after)
            await fake.die()
            with pytest.raises(Truncated):
                await client.body(answer)
        await until(lambda: (backlog(proxy), in_flight(proxy)) == (0.0, 0))


async def test_a_busy_backend_gives_its_backlog_back_before_the_next_one_takes_the_request() -> None:
    steps = Steps(ROLE, TOKEN)
    async with fakes("a", "b") as (a, b), sticky([a, b]) as proxy:
        for fake, script in ((a, reply(503, b"{}")), (b, reply(503, b"{}"))):
            fake.on(CHAT, script, steps)
        async with await proxy.client() as client:
            client.send(ask_for_a_stream())
            await until(lambda: len(a.requests) + len(b.requests) == 2)
            loads = proxy.app.fleet.loads
            assert sorted(proxy.app.fleet.in_flight) in ([0, 0], [0, 1])
            assert min(loads.backlog_tokens) == 0.0
            await client.response()
        await until(lambda: (backlog(proxy), in_flight(proxy)) == (0.0, 0))


async def test_a_reply_that_does_not_stream_ends_its_backlog_with_its_first_byte() -> None:
    async with fakes() as fake, sticky([fake]) as proxy:
        gate = asyncio.Event()

        async def slowly(call: Call) -> None:
            await call.start(200, [("Content-Type", "application/json")], framing="length", length=2)
            await call.send(b"{")
            await gate.wait()
            await call.send(b"}")

        fake.on(CHAT, slowly)
        async with await proxy.client() as client:
            client.send(request(chat(LONG)))
            await fake.arrived()
            await until(lambda: backlog(proxy) == 0.0)
            assert in_flight(proxy) == 1
            gate.set()
            assert (await client.response()).body == b"{}"


@pytest.mark.parametrize("policy", ["ring", "bounded_ring", "least_requests"])
async def test_no_reply_is_read_where_neither_policy_nor_operator_wants_to_know(policy: str) -> None:
    async with fakes() as fake, run_proxy([fake], policy=policy, usage={"read": False}) as proxy:
        fake.on(CHAT, reply(body=json.dumps(told(2000, 500)).encode()))
        assert (await proxy.ask(chat(LONG))).status == 200
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_prompt_tokens_total") == 0
        assert samples.sum("stickyroute_requests_total") == 1


async def test_the_engines_metrics_reach_the_fleet() -> None:
    async with simulated(1) as engines, sticky(engines) as proxy:
        cache = engines[0].engine.cache
        capacity = engines[0].config.profile.blocks * cache.block_size
        await until(lambda: proxy.app.fleet.loads.capacity_tokens[0] == capacity)
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_backend_kv_utilization", backend="b0") == 0.0
        assert 0.0 < samples.sum("stickyroute_backend_sample_age_seconds", backend="b0") < 60.0


async def test_a_restart_that_only_the_metrics_show_empties_what_was_believed() -> None:
    def page(started_s: int) -> str:
        return f'process_start_time_seconds {started_s}\nvllm:num_requests_running{{engine="0"}} 0\n'

    async def expected(proxy: RunningProxy) -> float:
        assert (await proxy.ask(chat(LONG))).status == 200
        return (await proxy.metrics()).sum("stickyroute_expected_cached_tokens_total")

    async with fakes() as fake:
        fake.metrics_text = page(1000)
        fake.on(CHAT, reply(body=json.dumps(told(2000, 1900)).encode()))
        async with sticky([fake], scrape={"interval_s": 0.02}) as proxy:
            await until(lambda: proxy.app.fleet.sample(0))
            assert await expected(proxy) == 0.0
            before = await expected(proxy)
            assert before > 1500
            fake.metrics_text = page(2000)
            await until(lambda: (known := proxy.app.fleet.sample(0)) and known[0].started_s == 2000)
            assert await expected(proxy) == before
            assert await expected(proxy) > before
