import asyncio
import base64
import json
import re
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.faults import Fault
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.server import serve_engines
from tests.simulator.client import ask, chat, metrics, parse, request_bytes

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


def cached(reply):
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def until(condition):
    """Let the loop run until something became true; the test's own timeout ends a wait for nothing."""
    while not condition():
        await asyncio.sleep(0.001)


async def opened(engine, data):
    """A connection with a request on it, and its reader."""
    reader, writer = await asyncio.open_connection(engine.host, engine.port)
    writer.write(data)
    return reader, writer


def stream_request(text="Hello there", tokens=4000, path="/v1/chat/completions"):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": True,
    }
    return request_bytes("POST", path, body)


async def test_the_next_turn_finds_prompt_and_answer_in_the_cache(start):
    engine = await start()
    messages = [{"role": "user", "content": "word " * 200}]
    first = await ask(
        engine, "POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 64}
    )
    assert cached(first) == 0
    answer = first.json()["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
    second = await ask(
        engine, "POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 4}
    )
    # The first prompt and 63 of its 64 answer tokens were computed; full blocks of 16 are found again.
    total = first.json()["usage"]["prompt_tokens"] + 63
    assert cached(second) == total // 16 * 16
    values = await metrics(engine)
    assert values["vllm:prefix_cache_hits_total"] == cached(second)
    assert (
        values["vllm:prefix_cache_queries_total"]
        == first.json()["usage"]["prompt_tokens"] + second.json()["usage"]["prompt_tokens"]
    )


async def test_engines_share_nothing_and_answer_alike():
    engines = await serve_engines([EngineConfig(model="tiny", speedup=50.0)] * 3)
    assert len({engine.port for engine in engines}) == 3
    replies = [await chat(engine, "word " * 100, max_tokens=8) for engine in engines]
    assert [cached(reply) for reply in replies] == [0, 0, 0]
    assert len({reply.json()["choices"][0]["message"]["content"] for reply in replies}) == 1
    for engine in engines:
        await engine.close()
        assert not engine.alive


async def test_salt_and_adapter_have_caches_of_their_own(start):
    engine = await start(adapters=("law",))
    text = "word " * 100
    assert cached(await chat(engine, text, max_tokens=1)) == 0
    assert cached(await chat(engine, text, max_tokens=1, cache_salt="a")) == 0
    assert cached(await chat(engine, text, max_tokens=1, model="law")) == 0
    assert cached(await chat(engine, text, max_tokens=1)) > 0
    assert cached(await chat(engine, text, max_tokens=1, cache_salt="a")) > 0
    rows = (await ask(engine, "GET", "/v1/models")).json()["data"]
    assert [(row["id"], row["parent"]) for row in rows] == [("tiny", None), ("law", "tiny")]


async def test_without_the_flag_cached_tokens_are_not_reported(start):
    engine = await start(report_cached=False)
    reply = await chat(engine, max_tokens=1)
    assert reply.json()["usage"]["prompt_tokens_details"] is None
    reply = await chat(engine, max_tokens=1, stream=True, stream_options={"include_usage": True})
    assert "prompt_tokens_details" not in reply.events()[-2]["usage"]


async def test_without_a_limit_an_answer_stops_by_itself(start):
    engine = await start(answer_tokens=5)
    reply = (await chat(engine)).json()
    assert (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == ("stop", 5)


async def test_token_ids_and_lists_are_prompts_too(start):
    engine = await start()

    async def complete(prompt):
        return (
            await ask(engine, "POST", "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 2})
        ).json()

    assert (await complete(list(range(40))))["usage"]["prompt_tokens"] == 40
    assert cached_of(await complete([*range(40), 7])) == 32
    two = await complete([[1, 2, 3], [4, 5]])
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == 5
    assert len((await complete(["a", "b", "c"]))["choices"]) == 3


async def test_token_ids_when_asked_for_are_those_of_tokenize(start):
    engine = await start()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there"}]}
    reply = (
        await ask(engine, "POST", "/v1/chat/completions", {**body, "max_tokens": 3, "return_token_ids": True})
    ).json()
    assert reply["prompt_token_ids"] == (await ask(engine, "POST", "/tokenize", body)).json()["tokens"]
    (choice,) = reply["choices"]
    back = await ask(engine, "POST", "/detokenize", {"model": "tiny", "tokens": choice["token_ids"]})
    assert back.json()["prompt"] == choice["message"]["content"]


def cached_of(value):
    return value["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_embeddings_are_the_same_for_the_same_text(start):
    engine = await start()
    body = {"model": "tiny", "input": ["a", "b", "a"]}
    vectors = [row["embedding"] for row in (await ask(engine, "POST", "/v1/embeddings", body)).json()["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    coded = await ask(engine, "POST", "/v1/embeddings", {**body, "encoding_format": "base64"})
    assert struct.unpack("16f", base64.b64decode(coded.json()["data"][0]["embedding"])) == pytest.approx(
        vectors[0]
    )


async def test_a_client_that_leaves_frees_its_request(start):
    engine = await start(speedup=1.0)
    for data in (stream_request(), stream_request().replace(b'"stream": true', b'"stream":false')):
        reader, writer = await opened(engine, data)
        await until(lambda: engine.engine.running == 1)
        writer.close()
        await until(lambda: engine.engine.running == 0)
        await reader.read()
    assert engine.engine.cache.usage == 0.0
    assert (await metrics(engine))["vllm:num_requests_running"] == 0


async def test_sglang_notices_late_that_a_client_left(start):
    engine = await start(dialect="sglang", speedup=20.0)
    reader, writer = await opened(engine, stream_request(tokens=15000))
    await reader.readuntil(b"data: ")
    left_s = engine.pace.now_s()
    writer.close()
    await until(lambda: engine.observed.aborted == 1)
    assert engine.engine.running == 1
    await until(lambda: engine.engine.running == 0)
    assert engine.pace.now_s() >= left_s + 1.9  # seconds of the engine: two, less the resolution of timers


async def test_the_head_of_a_stream_comes_before_anything_is_computed(start):
    engine = await start()
    engine.inject(Fault("dead"))
    reader, writer = await opened(engine, stream_request())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert engine.engine.counters.generated == 0
    writer.close()


async def test_vllm_turns_requests_away_with_503(start):
    engine = await start(speedup=1.0, max_queued=1)
    _, writer = await opened(engine, stream_request())
    await until(lambda: engine.engine.running == 1)
    for stream in (False, True):
        reply = await chat(engine, stream=stream)
        assert reply.status == 503
        assert reply.json() == {
            "error": {
                "message": "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                "type": "Service Unavailable",
                "param": None,
                "code": 503,
            }
        }
        assert "retry-after" not in dict(reply.headers)
    assert (await metrics(engine))["vllm:admission_rejections_total"] == 2
    assert (await ask(engine, "GET", "/load")).json() == {"server_load": 1}
    writer.close()


async def test_sglang_turns_a_stream_away_inside_a_200(start):
    engine = await start(dialect="sglang", speedup=1.0, max_queued=0)
    whole = await chat(engine)
    assert (whole.status, whole.json()["message"]) == (503, "The request queue is full.")
    stream = await chat(engine, stream=True)
    assert (stream.status, stream.complete) == (200, True)
    first, done = stream.events()
    assert first["error"]["code"] == 503
    assert first["error"]["type"] == "SERVICE_UNAVAILABLE"
    assert done == "[DONE]"


@pytest.mark.parametrize("kind", ["TEXT", "JSON"])
async def test_orca_load_headers_on_whole_replies_when_asked(start, kind):
    engine = await start()
    reply = await chat(engine, max_tokens=1, headers=[f"endpoint-load-metrics-format: {kind}"])
    report = dict(reply.headers)["endpoint-load-metrics"]
    if kind == "TEXT":
        assert report == "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0"
    else:
        assert json.loads(report.removeprefix("JSON ")) == {
            "named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0.0}
        }
    assert "endpoint-load-metrics" not in dict((await chat(engine, max_tokens=1)).headers)


async def test_sglang_reports_its_load(start):
    engine = await start(dialect="sglang", speedup=1.0)
    _, writer = await opened(engine, stream_request())
    await until(lambda: engine.engine.running == 1)
    (load,) = (await ask(engine, "GET", "/v1/loads?include=core")).json()["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 0)
    assert load["max_total_num_tokens"] == engine.engine.cache.capacity_tokens
    assert load["num_used_tokens"] > 0
    values = await metrics(engine)
    assert values["sglang:num_running_reqs"] == 1
    assert values["sglang:token_usage"] > 0
    assert (await ask(engine, "GET", "/model_info")).json()["served_model_name"] == "tiny"
    assert (await ask(engine, "GET", "/server_info")).json()["version"] == "0.5.23"
    assert (await ask(engine, "GET", "/version")).status == 404
    writer.close()


async def test_sglang_answers_for_any_model(start):
    engine = await start(dialect="sglang")
    reply = await chat(engine, model="nope", max_tokens=2)
    assert (reply.status, reply.json()["model"]) == (200, "nope")


async def test_requests_on_one_connection_are_answered_in_order(start):
    engine = await start()
    asks = [request_bytes("GET", "/version"), stream_request(tokens=3), request_bytes("GET", "/health")]
    last = request_bytes("GET", "/nope", headers=["connection: close"])
    reader, writer = await opened(engine, b"".join([*asks, last]))
    data = await reader.read()
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"200", b"200", b"404"]
    assert data.index(b"0.32.0") < data.index(b"[DONE]") < data.index(b"Not Found")
    assert data.count(b"data: ") == 5
    writer.close()


async def test_what_is_not_http_gets_400(start):
    engine = await start()
    reader, writer = await opened(engine, b"\x00\x01\x02 nonsense\r\n\r\n")
    assert parse(await reader.read()).status == 400
    writer.close()


async def test_a_chunked_body_with_expect_is_read(start):
    engine = await start()
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 1}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"expect: 100-continue\r\n"
        b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    reader, writer = await opened(engine, head)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert parse(await reader.read()).json()["usage"]["completion_tokens"] == 1
    writer.close()


async def test_request_ids_become_ids_of_replies(start):
    engine = await start(request_id_headers=True)
    reply = await chat(engine, max_tokens=1, headers=["x-request-id: mine"])
    assert reply.json()["id"] == "chatcmpl-mine"
    assert dict(reply.headers)["x-request-id"] == "mine"


async def test_what_never_fits_the_cache_is_refused(start):
    engine = await start(profile=replace(DEMO, blocks=10))
    reply = await chat(engine, "word " * 400, max_tokens=1)
    assert reply.status == 400
    assert (await chat(engine, max_tokens=1)).status == 200


async def test_closing_ends_streams_with_abort(start):
    engine = await start(speedup=1.0)
    reader, writer = await opened(engine, stream_request())
    await until(lambda: engine.engine.counters.generated > 2)
    await engine.close()
    reply = parse(await reader.read())
    assert reply.complete
    assert reply.events()[-2]["choices"][0]["finish_reason"] == "abort"
    assert reply.events()[-1] == "[DONE]"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(engine.host, engine.port)
    writer.close()


async def test_histograms_are_in_the_engines_own_seconds(start):
    engine = await start(profile=replace(DEMO, time=replace(DEMO.time, base_s=0.5)), speedup=100.0)
    await chat(engine, max_tokens=3)
    values = await metrics(engine)
    assert values["vllm:time_to_first_token_seconds_count"] == 1
    assert 0.5 <= values["vllm:time_to_first_token_seconds_sum"] < 0.7
    assert values["vllm:inter_token_latency_seconds_count"] == 2
    assert 1.0 <= values["vllm:inter_token_latency_seconds_sum"] < 1.2
    assert values["vllm:generation_tokens_total"] == 3
    assert values["vllm:request_success_total"] == 1


async def test_metrics_have_the_names_of_the_real_engine(start):
    """Every vLLM series we export exists in the real one with the same labels, and the ones routers read
    are there."""
    engine = await start(adapters=())
    await chat(engine, max_tokens=2)
    ours = (await ask(engine, "GET", "/metrics")).body.decode()
    names = {line.split("{")[0] for line in ours.splitlines() if line.startswith("vllm:")}
    for needed in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:cache_config_info",
        "vllm:num_preemptions_total",
    ):
        assert needed in names
    assert 'num_gpu_blocks="2048"' in ours


async def test_sglang_metrics_have_the_names_of_the_real_engine(start):
    engine = await start(dialect="sglang")
    await chat(engine, max_tokens=2)
    ours = (await ask(engine, "GET", "/metrics")).body.decode()
    assert series(ours) - series((CAPTURES / "sglang-metrics-series.txt").read_text()) == set()


def series(text):
    """(name, label names and bucket bounds) of every series of an exposition."""
    found = set()
    for line in text.splitlines():
        if line.startswith(("vllm:", "sglang:")):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            keys = re.findall(r'(\w+)="([^"]*)"', labels)
            if name == "vllm:cache_config_info":
                keys = []  # a label for every field of the configuration: readers look them up by name
            found.add((name, tuple(key if key != "le" else f"le={value}" for key, value in keys)))
    return found


async def test_a_connection_idle_for_five_seconds_is_closed(start):
    engine = await start()
    reader, writer = await opened(engine, request_bytes("GET", "/health"))
    await reader.readuntil(b"\r\n\r\n")
    busy_reader, busy_writer = await opened(engine, stream_request(tokens=4000))
    await busy_reader.readuntil(b"\r\n\r\n")
    for connection in engine.connections:
        connection.idle_since_s -= 5.0
    engine.close_idle()
    assert await reader.read() == b""
    assert not busy_reader.at_eof()
    writer.close()
    busy_writer.close()


async def test_when_one_port_is_taken_none_stays_open(start):
    taken = await start()
    while not free(taken.port - 1):
        taken = await start()
    with pytest.raises(OSError, match="in use"):
        await serve_engines([EngineConfig()] * 2, port=taken.port - 1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(taken.host, taken.port - 1)


def free(port):
    """Whether nobody listens on it now."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0
