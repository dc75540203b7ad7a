"""The fake fleet: engines that answer at once, or one token at a time, and cost as little as Python allows.

Owns the wire of the fake engines: HTTP/1.1 on a raw protocol, every path the routers probe, 404 for the
rest. It routes nothing, caches nothing and simulates no engine. A request says what it wants inside its
prompt, where every router leaves it alone: `[tokens=64 every_ms=0]` streams 64 events in one write,
`[tokens=64 every_ms=20]` writes one event every 20 ms; without it the reply is streamed or not as the
body's `stream` says, at once.

`python -m bench.dataplane.fleet --engines 4` prints one line of JSON, {"ports": [...]}, and runs until its
standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

import uvloop

DIRECTIVE = re.compile(rb"\[tokens=(\d+) every_ms=(\d+)\]")
USAGE_ASKED = re.compile(rb'"include_usage"\s*:\s*true')
STREAM = re.compile(rb'"stream"\s*:\s*true')
ASKED_WITHIN = (
    256  # bytes from the end: options stand last in what the rig sends, and where a router adds one
)
DEFAULT_TOKENS = 16
GOLDEN = 0.6180339887  # successive multiples, modulo 1, fill an interval evenly: the phases of paced streams

MODEL = {"id": "sim", "object": "model", "owned_by": "vllm", "root": "sim", "max_model_len": 262144}
RENDERED: dict[str, object] = {
    "request_id": "render-1",
    "token_ids": list(range(256)),
    "features": None,
    "sampling_params": {},
    "model": "sim",
    "stream": False,
    "stream_options": None,
    "cache_salt": None,
    "priority": 0,
    "kv_transfer_params": None,
}
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="sim",engine="0"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="sim",engine="0"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="sim",engine="0"} 0.1
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="sim",engine="0"} 0.1
"""
USAGE = {"prompt_tokens": 256, "completion_tokens": 16, "total_tokens": 272}
LOAD = {
    "dp_rank": 0,
    "num_running_reqs": 1,
    "num_waiting_reqs": 0,
    "num_used_tokens": 256,
    "token_usage": 0.1,
}


def reply(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    """One whole response."""
    head = f"HTTP/1.1 {status}\r\nserver: fake\r\ncontent-type: {content_type}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def as_json(value: object) -> bytes:
    return reply("200 OK", json.dumps(value).encode())


def event(payload: object) -> bytes:
    """One server-sent event, framed as one HTTP chunk as uvicorn frames each."""
    data = b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk_of(delta: dict[str, str], finish: str | None, kind: str) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    if kind == "text_completion":
        choice = {"index": 0, "text": delta.get("content", ""), "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-0123456789abcdef",
        "object": kind,
        "created": 1,
        "model": "sim",
        "choices": [choice],
    }


class Script:
    """The bytes of a completion of one shape, made once."""

    def __init__(self, kind: str, whole: dict[str, object]) -> None:
        self.unary = as_json(
            {"id": "chatcmpl-0123456789abcdef", "created": 1, "model": "sim", **whole, "usage": USAGE}
        )
        self.head = (
            b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.token = event(chunk_of({"content": " token"}, None, kind))
        self.end = event(b"[DONE]") + b"0\r\n\r\n"
        head = {"id": "chatcmpl-0123456789abcdef", "object": kind, "created": 1, "model": "sim"}
        self.end_with_usage = event({**head, "choices": [], "usage": USAGE}) + self.end


CHAT = Script(
    "chat.completion.chunk",
    {
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": " token" * 16}, "finish_reason": "stop"}
        ],
    },
)
TEXT = Script(
    "text_completion",
    {"object": "text_completion", "choices": [{"index": 0, "text": " token" * 16, "finish_reason": "stop"}]},
)
COMPLETIONS = {
    b"POST /v1/chat/completions": CHAT,
    b"POST /v1/completions": TEXT,
}
SERVER_INFO = as_json(
    {
        "model_path": "sim",
        "served_model_name": "sim",
        "tp_size": 1,
        "dp_size": 1,
        "max_total_num_tokens": 262144,
    }
)
MODEL_INFO = as_json({"model_path": "sim", "served_model_name": "sim", "is_generation": True})
ANSWERS = {
    b"GET /health": reply("200 OK", b""),
    b"GET /health_generate": reply("200 OK", b""),
    b"GET /ping": reply("200 OK", b""),
    b"GET /version": as_json({"version": "0.11.0"}),
    b"GET /v1/models": as_json({"object": "list", "data": [MODEL]}),
    b"GET /v1/models/sim": as_json(MODEL),
    b"GET /metrics": reply("200 OK", METRICS.encode(), "text/plain; version=0.0.4; charset=utf-8"),
    b"GET /server_info": SERVER_INFO,
    b"GET /get_server_info": SERVER_INFO,
    b"GET /model_info": MODEL_INFO,
    b"GET /get_model_info": MODEL_INFO,
    b"GET /get_load": as_json([{"dp_rank": 0, "num_reqs": 1, "num_waiting_reqs": 0, "num_tokens": 256}]),
    b"GET /loads": as_json({"loads": [LOAD]}),
    b"GET /v1/loads": as_json({"timestamp": "2026-01-01T00:00:00", "dp_rank_count": 1, "loads": [LOAD]}),
    b"POST /v1/chat/completions/render": as_json(RENDERED),
    b"POST /v1/completions/render": as_json([RENDERED]),
}
NOT_FOUND = reply("404 Not Found", b'{"detail":"Not Found"}')
NOT_HTTP_1 = reply("505 HTTP Version Not Supported", b"").replace(
    b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"
)


class EngineConnection(asyncio.Protocol):
    """One connection from a router. Requests are answered in order, one at a time."""

    __slots__ = ("_buffer", "_continued", "_head", "_loop", "_needed", "_timer", "_transport", "first_tick")

    def __init__(self, first_tick: Callable[[float], float]) -> None:
        self.first_tick = first_tick
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._head = -1  # length of the head once it is whole
        self._needed = 0  # length of head and body; -1 while the body is chunked
        self._continued = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop does not derive its own from it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def _advance(self) -> None:
        """Answer every request that is whole, unless a paced reply is still going out."""
        while self._timer is None and self._buffer and self._read_head():
            body = self._body()
            if body is None:
                return
            line = bytes(self._buffer[: self._buffer.find(b"\r\n")])
            self._buffer = self._buffer[self._needed :] if len(self._buffer) > self._needed else bytearray()
            self._head, self._continued = -1, False
            self._answer(line, body)

    def _read_head(self) -> bool:
        """Find the head's end and how the body is framed; False until the head is whole."""
        if self._head >= 0:
            return True
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower() + b"\r\n"
        self._head = end + 4
        if b"transfer-encoding: chunked\r\n" in head:
            self._needed = -1
        else:
            _, found, rest = head.partition(b"\r\ncontent-length:")
            self._needed = self._head + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
        if b"\r\nexpect: 100-continue" in head and not self._continued:
            self._continued = True
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _body(self) -> bytes | None:
        """The request's body, None while it is still arriving; a chunked one is read afresh each time."""
        if self._needed >= 0:
            whole = len(self._buffer) >= self._needed
            return bytes(self._buffer[self._head : self._needed]) if whole else None
        body, at = bytearray(), self._head
        while (line_end := self._buffer.find(b"\r\n", at)) >= 0:
            size = int(self._buffer[at:line_end].split(b";")[0], 16)
            at = line_end + 2 + size + 2
            if len(self._buffer) < at:
                return None
            if size == 0:
                self._needed = at
                return bytes(body)
            body += self._buffer[line_end + 2 : at - 2]
        return None

    def _answer(self, line: bytes, body: bytes) -> None:
        if line.startswith(b"PRI "):  # an HTTP/2 preface, from a router that looks for gRPC
            self._transport.write(NOT_HTTP_1)
            self._transport.close()
            return
        method, _, target = line.partition(b" ")
        route = method + b" " + target.partition(b" ")[0].partition(b"?")[0]
        script = COMPLETIONS.get(route)
        if script is None:
            self._transport.write(ANSWERS.get(route, NOT_FOUND))
            return
        asked = DIRECTIVE.search(body)
        if asked is None and not STREAM.search(body):
            self._transport.write(script.unary)
            return
        tokens, every_ms = (int(asked[1]), int(asked[2])) if asked else (DEFAULT_TOKENS, 0)
        end = script.end_with_usage if USAGE_ASKED.search(body, len(body) - ASKED_WITHIN) else script.end
        if tokens == 0:
            self._transport.write(script.unary)
        elif every_ms == 0:
            self._transport.write(script.head + script.token * tokens + end)
        else:
            self._transport.write(script.head)
            first = self.first_tick(every_ms / 1000)
            self._timer = self._loop.call_at(first, self._tick, script, tokens, first, every_ms / 1000, end)

    def _tick(self, script: Script, left: int, due: float, every_s: float, end: bytes) -> None:
        """Write one token and come back for the next; the schedule does not drift."""
        self._transport.write(script.token)
        due += every_s
        if left > 1:
            self._timer = self._loop.call_at(due, self._tick, script, left - 1, due, every_s, end)
            return
        self._timer = None
        self._transport.write(end)
        self._advance()


class Steps:
    """When the paced streams of one engine tick, in the loop's time."""

    def __init__(self, share: float, spread: bool) -> None:
        self._share = share  # of an interval by which this engine's steps follow the first engine's
        self._spread = spread

    def first_tick(self, every_s: float) -> float:
        """The engine's next step; or, spread, a moment of the stream's own."""
        now = asyncio.get_running_loop().time()
        if self._spread:
            self._share = (self._share + GOLDEN) % 1
            return now + self._share * every_s
        late_s = self._share * every_s
        return (math.floor((now - late_s) / every_s) + 1) * every_s + late_s


async def serve(engines: int, spread: bool) -> tuple[list[asyncio.Server], list[int]]:
    """Listen on `engines` free ports of the loopback.

    The paced streams of an engine tick together, as those of a real one at each of its steps; with `spread`,
    each by itself.
    """
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(
            partial(EngineConnection, Steps(engine / engines, spread).first_tick),
            "127.0.0.1",
            0,
            backlog=4096,
        )
        for engine in range(engines)
    ]
    return servers, [server.sockets[0].getsockname()[1] for server in servers]


async def run(engines: int, spread: bool) -> None:
    _, ports = await serve(engines, spread)
    print(json.dumps({"ports": ports}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dataplane.fleet", description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--spread", action="store_true", help="every paced stream ticks by itself")
    args = parser.parse_args()
    uvloop.run(run(args.engines, args.spread))


if __name__ == "__main__":
    main()
