"""Replies against bytes captured from a real vLLM 0.32 and SGLang 0.5.23: same heads, same fields in the
same order, one event a chunk. What depends on the model (text, ids, times, token counts of the prompt) is
blanked on both sides."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stickyroute.simulator.profiles import DEMO
from tests.simulator.client import ask, parse

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there"}]}
SMALL = replace(DEMO, context_tokens=4096, block_size=32)
BLANK = {
    "id",
    "item_id",
    "created",
    "created_at",
    "content",
    "text",
    "root",
    "prompt_tokens",
    "input_tokens",
    "original_input_tokens",
    "total_tokens",
    "cached_tokens",
    "temperature",
    "tokens",
    "token_strs",
    "token_ids",
    "prompt_token_ids",
    "count",
    "prompt",
    "weight_versions",
}


def captured(name):
    data = (CAPTURES / name).read_bytes()
    return parse(data if b"\r\n" in data else data.replace(b"\n", b"\r\n"))  # some were saved as text


def blank(value, key=None):
    if isinstance(value, dict):
        return {name: blank(one, name) for name, one in value.items()}
    if isinstance(value, list) and key not in BLANK:
        return [blank(one) for one in value]
    if isinstance(value, list):
        return [blank(one) if isinstance(one, dict) else type(one).__name__ for one in value][:1]
    if key in BLANK or (key == "delta" and isinstance(value, str)):
        return type(value).__name__ if value is not None and value != "" else value
    return value


def shape(raw):
    """Everything a client can tell apart, the model's own words aside. The order of fields counts."""
    heads = [
        (name, "*" if name in ("date", "content-length", "x-request-id") else value)
        for name, value in raw.headers
    ]
    bodies = []
    for one in raw.chunks:
        lines = []
        for line in one.decode().split("\n"):
            if line.startswith("data: {"):
                lines.append(json.dumps(blank(json.loads(line[6:]))))
            elif line.startswith("{"):
                lines.append(json.dumps(blank(json.loads(line))))
            else:
                lines.append(line)
        bodies.append("\n".join(lines))
    return raw.status, heads, bodies, raw.complete


STREAMS = [
    (
        "vllm-chat-stream-raw.txt",
        "/v1/chat/completions",
        {**CHAT, "stream_options": {"include_usage": True}},
        6,
    ),
    ("vllm-chat-stream-nousage-raw.txt", "/v1/chat/completions", CHAT, 3),
    (
        "vllm-chat-continuous-usage.txt",
        "/v1/chat/completions",
        {**CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        2,
    ),
    ("vllm-completions-stream-raw.txt", "/v1/completions", {"model": "tiny", "prompt": "Hello"}, 3),
    ("vllm-messages-stream.txt", "/v1/messages", CHAT, 3),
]
WHOLE = [
    ("vllm-chat-nonstream.txt", "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 12}),
    (
        "vllm-chat-tokenids.txt",
        "POST",
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 2, "return_token_ids": True},
    ),
    ("vllm-messages-nonstream.txt", "POST", "/v1/messages", {**CHAT, "max_tokens": 6}),
    ("vllm-messages-count.txt", "POST", "/v1/messages/count_tokens", CHAT),
    ("vllm-messages-err-unknown.txt", "POST", "/v1/messages", {**CHAT, "model": "nope", "max_tokens": 6}),
    (
        "vllm-responses-nonstream.txt",
        "POST",
        "/v1/responses",
        {"model": "tiny", "input": "Hello there", "max_output_tokens": 6},
    ),
    ("vllm-tokenize-chat.txt", "POST", "/tokenize", {**CHAT, "return_token_strs": True}),
    ("vllm-tokenize-prompt.txt", "POST", "/tokenize", {"model": "tiny", "prompt": "Hello there"}),
    ("vllm-detokenize.txt", "POST", "/detokenize", {"model": "tiny", "tokens": [1819043144, 111]}),
    ("vllm-health.txt", "GET", "/health", None),
    ("vllm-version.txt", "GET", "/version", None),
    ("vllm-load.txt", "GET", "/load", None),
    ("vllm-models.txt", "GET", "/v1/models", None),
    ("vllm-err-notfound.txt", "GET", "/nope", None),
    ("vllm-err-method.txt", "GET", "/v1/chat/completions", None),
    ("vllm-err-unknown-model.txt", "POST", "/v1/chat/completions", {**CHAT, "model": "nope"}),
    (
        "vllm-err-stream-unknown-model.txt",
        "POST",
        "/v1/chat/completions",
        {**CHAT, "model": "nope", "stream": True},
    ),
    ("vllm-err-malformed.txt", "POST", "/v1/chat/completions", b'{"model":"tiny","messages":[{"role":'),
    ("vllm-err-missing-messages.txt", "POST", "/v1/chat/completions", {"model": "tiny"}),
    ("vllm-err-bad-temperature.txt", "POST", "/v1/chat/completions", {**CHAT, "temperature": -1}),
    ("vllm-err-too-long-maxtok.txt", "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5000}),
    (
        "vllm-err-too-long.txt",
        "POST",
        "/v1/chat/completions",
        {"model": "tiny", "messages": [{"role": "user", "content": "word " * 5000}]},
    ),
]


@pytest.mark.parametrize(("name", "path", "body", "tokens"), STREAMS, ids=[one[0] for one in STREAMS])
async def test_streams(start, name, path, body, tokens):
    engine = await start(profile=SMALL)
    reply = await ask(engine, "POST", path, {**body, "stream": True, "max_tokens": tokens})
    assert shape(reply) == shape(captured(name))


@pytest.mark.parametrize(("name", "method", "path", "body"), WHOLE, ids=[one[0] for one in WHOLE])
async def test_whole_replies(start, name, method, path, body):
    engine = await start(profile=SMALL)
    reply = await ask(engine, method, path, body)
    assert shape(reply) == shape(captured(name))


async def test_two_choices_each_have_their_opening_and_their_end(start):
    engine = await start(profile=SMALL)
    reply = await ask(
        engine, "POST", "/v1/chat/completions", {**CHAT, "n": 2, "max_tokens": 2, "stream": True}
    )
    # The real engine wrote choice 0 first; ours go step by step. The events are the same.
    assert sorted(shape(reply)[2]) == sorted(shape(captured("vllm-chat-n2-stream.txt"))[2])
    assert shape(reply)[1] == shape(captured("vllm-chat-n2-stream.txt"))[1]


async def test_a_response_streams_the_same_events(start):
    engine = await start(profile=SMALL)
    body = {"model": "tiny", "input": "Hello there", "max_output_tokens": 2, "stream": True}
    ours, real = (
        shape(await ask(engine, "POST", "/v1/responses", body)),
        shape(captured("vllm-responses-stream.txt")),
    )
    # vLLM put two of its three tokens into one delta, so it has as many events as we have for two tokens.
    counts = (
        ('"max_output_tokens": 3', '"max_output_tokens": 2'),
        ('"output_tokens": 3', '"output_tokens": 2'),
    )
    expected = []
    for text in real[2]:
        for old, new in counts:
            text = text.replace(old, new)
        expected.append(text)
    assert ours == (real[0], real[1], expected, real[3])


async def test_a_wrong_content_type_is_refused(start):
    engine = await start(profile=SMALL)
    reply = await ask(engine, "POST", "/v1/chat/completions", CHAT, ["content-type: text/plain"])
    assert shape(reply) == shape(captured("vllm-err-wrong-ctype.txt"))


async def test_a_missing_key_is_refused_under_v1_only(start):
    engine = await start(api_key="secret", request_id_headers=True)
    reply = await ask(engine, "POST", "/v1/chat/completions", CHAT)
    assert shape(reply) == shape(captured("vllm-err-no-api-key.txt"))
    assert (await ask(engine, "GET", "/health")).status == 200
    assert (await ask(engine, "POST", "/tokenize", CHAT)).status == 200
    reply = await ask(engine, "POST", "/v1/chat/completions", CHAT, ["authorization: Bearer secret"])
    assert reply.status == 200


async def test_sglang_streams_its_own_way(start):
    engine = await start(dialect="sglang")
    body = {**CHAT, "stream": True, "max_tokens": 4, "stream_options": {"include_usage": True}}
    ours, real = (
        shape(await ask(engine, "POST", "/v1/chat/completions", body)),
        shape(captured("sglang-chat-stream-raw.txt")),
    )
    assert ours[:2] == real[:2]
    # The real one put two of its four tokens into one event.
    assert ours[2][:3] == real[2][:3]
    assert ours[2][-4:] == real[2][-4:]
    assert len(ours[2]) == len(real[2]) + 1


SGLANG = [
    ("sglang-chat-nonstream.txt", {**CHAT, "max_tokens": 12}),
    (
        "sglang-err-too-long.txt",
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 4 * 26996}]}],
        },
    ),
]


@pytest.mark.parametrize(("name", "body"), SGLANG, ids=[one[0] for one in SGLANG])
async def test_sglang_whole_replies(start, name, body):
    engine = await start(dialect="sglang", profile=replace(DEMO, context_tokens=8192))
    reply = await ask(engine, "POST", "/v1/chat/completions", body)
    assert shape(reply)[:2] == shape(captured(name))[:2]
    ours, real = json.loads(reply.body), json.loads(captured(name).body)
    assert json.dumps(blank(ours)).replace("27002", "27007") == json.dumps(blank(real))


async def test_sglang_names_where_json_ends(start):
    engine = await start(dialect="sglang")
    reply = await ask(engine, "POST", "/v1/chat/completions", b'{"model":"tiny","messages":[{"role":')
    real = captured("sglang-err-malformed.txt").json()
    ours = reply.json()
    assert list(ours) == list(real)
    assert ours["message"].split("\n")[:1] == real["message"].split("\n")[:1]
    assert "'loc': ('body', 36)" in ours["message"]
    assert (ours["type"], ours["code"], reply.status) == (real["type"], real["code"], 400)
