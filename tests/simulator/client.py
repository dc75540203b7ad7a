"""A client that sees every byte: one request, one connection, the reply as it came."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field


@dataclass
class Raw:
    """A reply: the status line, the header lines in order, the chunks of its body (one when it isn't
    chunked)."""

    status: int
    headers: list[tuple[str, str]]
    chunks: list[bytes]
    complete: bool
    lines: list[str] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The JSON of every event of a stream; `[DONE]` as that string."""
        data = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [one if one == "[DONE]" else json.loads(one) for one in data]


def parse(data: bytes) -> Raw:
    """The bytes of one reply, as the captures hold them too."""
    head, _, rest = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    if dict(headers).get("transfer-encoding") != "chunked":
        length = int(dict(headers).get("content-length", len(rest)))
        return Raw(int(status.split()[1]), headers, [rest[:length]], len(rest) >= length)
    chunks = []
    while True:
        size, sep, rest = rest.partition(b"\r\n")
        if not sep:
            return Raw(int(status.split()[1]), headers, chunks, complete=False)
        if size == b"0":
            return Raw(int(status.split()[1]), headers, chunks, complete=True)
        count = int(size, 16)
        chunks.append(rest[:count])
        if len(rest) < count + 2:
            return Raw(int(status.split()[1]), headers, chunks, complete=False)
        rest = rest[count + 2 :]


def request_bytes(method, path, body=None, headers=()):
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers]
    if body is not None:
        if not any(line.lower().startswith("content-type") for line in headers):
            lines.append("content-type: application/json")
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


async def ask(engine, method, path, body=None, headers=()) -> Raw:
    """One request on a connection that closes after the reply."""
    reader, writer = await asyncio.open_connection(engine.host, engine.port)
    writer.write(request_bytes(method, path, body, ["connection: close", *headers]))
    try:
        data = await reader.read()
    finally:
        writer.close()
    raw = parse(data)
    raw.headers = [one for one in raw.headers if one != ("connection", "close")]
    return raw


async def chat(engine, text="Hello there", headers=(), **fields) -> Raw:
    body = {"model": engine.config.model, "messages": [{"role": "user", "content": text}], **fields}
    return await ask(engine, "POST", "/v1/chat/completions", body, headers)


async def metrics(engine) -> dict[str, float]:
    """Samples of /metrics summed over their labels."""
    values: dict[str, float] = {}
    for line in (await ask(engine, "GET", "/metrics")).body.decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            values[name] = values.get(name, 0.0) + float(value)
    return values
