"""Usage over real sockets: asked for on a client's behalf and taken out again, and read where it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.openai.test_ask_usage import without_usage
from tests.openai.test_usage import body_of, events_of
from tests.support.fake_backend import Call, Script, fakes, reply
from tests.support.raw_client import CHAT, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
BODY = body_of("vllm-chat-stream-raw.txt")
WANTED = without_usage(BODY)
ASK = chat(stream=True)
ASKING = {"usage": {"ask": True}}


def wire_of(name: str) -> bytes:
    """A captured reply as the engine wrote it, in its own chunks."""
    head, _, rest = (CAPTURES / name).read_bytes().partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + rest[: rest.rindex(b"0\r\n\r\n") + 5]


def pieces(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def streams(parts: list[bytes], framing: str = "chunked", end: bool = True, coding: str = "") -> Script:
    """A stream in these pieces, each in a write of its own, and in a chunk of its own where there are chunks."""

    async def script(call: Call) -> None:
        fields = [("Content-Type", "text/event-stream"), *([("Content-Encoding", coding)] if coding else [])]
        await call.start(200, fields, framing=framing, length=sum(map(len, parts)))
        for part in parts:
            await call.piece(part)
        if end:
            await call.end(framing)
        else:
            call.reset()

    return script


async def prompt_tokens(proxy: RunningProxy) -> float:
    return (await proxy.metrics()).sum("stickyroute_prompt_tokens_total")


async def test_a_real_stream_s_usage_is_counted_and_its_client_sees_nothing_of_it() -> None:
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        fake.on(CHAT, raw_reply(wire_of("vllm-chat-stream-raw.txt")))
        answer = await proxy.ask(ASK, headers={"Accept-Encoding": "gzip", "X-Other": "1"})
        assert answer.body == WANTED
        sent = fake.requests[0]
        assert sent.json == {**json.loads(ASK), "stream_options": {"include_usage": True}}
        assert sent.get("accept-encoding") is None  # what is coded could not be taken apart
        assert sent.get("x-other") == "1"
        assert int(sent.get("content-length") or 0) == len(sent.body)
        assert await prompt_tokens(proxy) == 12


def raw_reply(data: bytes) -> Script:
    """Whole and at once, on a connection that stays."""

    async def script(call: Call) -> None:
        await call.send(data)

    return script


async def test_it_is_taken_out_wherever_the_wire_is_cut_in_two() -> None:
    """Every position around the end of the stream, where the extra event and its framing are."""
    wire = wire_of("vllm-chat-stream-raw.txt")
    first = wire.rindex(b"\r\n", 0, wire.index(b'"choices":[]') - 200)
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy, await proxy.client() as client:
        cuts = range(first, len(wire), 3)
        for cut in cuts:

            async def script(call: Call, cut: int = cut) -> None:
                await call.send(wire[:cut])
                await call.send(wire[cut:])

            fake.on(CHAT, script)
            assert (await client.ask(request(ASK))).body == WANTED
        assert await prompt_tokens(proxy) == 12 * len(cuts)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("size", [7, 150, 10_000])
@pytest.mark.parametrize("minor", [0, 1])
async def test_it_is_taken_out_of_every_framing(framing: str, size: int, minor: int) -> None:
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        fake.on(CHAT, streams(pieces(BODY, size), framing))
        answer = await proxy.ask(ASK, minor=minor)
        assert answer.body == WANTED
        assert answer.framing == ("chunked" if minor else "close")
        assert await prompt_tokens(proxy) == 12


async def test_whole_events_one_a_chunk_go_the_fast_way() -> None:
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        first, *rest = events_of(BODY)
        fake.on(CHAT, streams([*[first] * 40, *rest]))
        answer = await proxy.ask(ASK)
        assert answer.body == first * 39 + WANTED


async def test_a_client_that_asks_itself_gets_its_usage() -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        fake.on(CHAT, streams(events_of(BODY)))
        assert (await proxy.ask(body)).body == BODY
        assert fake.requests[0].body == body
        assert await prompt_tokens(proxy) == 12


async def test_an_engine_that_tells_usage_always_is_left_alone() -> None:
    body = body_of("vllm-chat-continuous-usage.txt")
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        fake.on(CHAT, streams(events_of(body)))
        assert (await proxy.ask(ASK)).body == body
        assert await prompt_tokens(proxy) == 9


async def test_a_stream_that_breaks_off_is_a_broken_transfer_with_all_that_came() -> None:
    parts = [BODY[:300], BODY[300:420]]
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        fake.on(CHAT, streams(parts, end=False))
        with pytest.raises(Truncated) as cut:
            await proxy.ask(ASK)
        assert cut.value.response is not None
        assert BODY.startswith(cut.value.response.body)
        await proxy.settled()


async def test_a_coded_stream_and_a_whole_reply_go_on_as_they_are() -> None:
    whole = b'{"choices":[],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}'
    async with fakes() as fake, run_proxy([fake], **ASKING) as proxy:
        fake.on(CHAT, streams(events_of(BODY), coding="x-odd"))
        assert (await proxy.ask(ASK)).body == BODY
        before = await prompt_tokens(proxy)
        fake.on(CHAT, reply(200, whole))
        answer = await proxy.ask(ASK)
        assert (answer.body, answer.framing) == (whole, "length")
        assert await prompt_tokens(proxy) == before + 5


async def test_off_the_request_and_the_reply_are_untouched() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, streams(pieces(BODY, 100)))
        assert (await proxy.ask(ASK)).body == BODY
        assert fake.requests[0].body == ASK


@pytest.mark.parametrize(("read", "tokens"), [(True, 12), (False, 0)])
async def test_usage_is_read_under_every_policy_unless_it_is_not_to_be(read: bool, tokens: int) -> None:
    settings: dict[str, Any] = {"policy": "round_robin", "usage": {"read": read}}
    async with fakes() as fake, run_proxy([fake], **settings) as proxy:
        fake.on(CHAT, streams(events_of(BODY)))
        await proxy.ask(chat(stream=True, stream_options={"include_usage": True}))
        assert await prompt_tokens(proxy) == tokens


async def test_asking_and_prices_take_effect_while_the_process_runs() -> None:
    async with fakes() as fake, run_proxy([fake], policy="ring") as proxy:
        fake.on(CHAT, streams(events_of(BODY)))
        assert (await proxy.ask(ASK)).body == BODY
        named = {"name": fake.name, "url": fake.url}
        new = {
            "listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "policy": "ring",
            "backends": [named],
            "usage": {"ask": True},
            "prices": {"input_per_million": {"*": 2.0}, "cache_write": 0},
        }
        assert (await proxy.put_config(json.dumps(new))).status == 200
        assert (await proxy.ask(ASK)).body == WANTED
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_config_generation") == 2
        assert samples.sum("stickyroute_config_reloads_total", result="applied") == 1
        text = (await proxy.admin("/metrics")).body
        assert b"stickyroute_cost_saved_total{" in text
        assert (await proxy.put_config("backends: 5")).status == 400
        assert (await proxy.metrics()).sum("stickyroute_config_last_reload_failed") == 1
