"""Ways to answer: whole, in pieces, not at all, and wrongly."""

from __future__ import annotations

import asyncio
import gzip as gzip_module
import json
from collections.abc import Sequence

from tests.support.fake_backend.call import Call, Fields, PeerGone, Script

EVENT = b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def echo(call: Call) -> None:
    """A small JSON reply that tells who answered and what arrived."""
    told = {
        "object": "chat.completion",
        "backend": call.fake.name,
        "sha256": call.sha256,
        "target": call.target,
    }
    await reply(200, json.dumps(told).encode())(call)


def reply(
    status: int = 200,
    body: bytes = b'{"ok":true}',
    *,
    fields: Fields = (("Content-Type", "application/json"),),
    framing: str = "length",
    gzip: bool = False,
) -> Script:
    """One reply, whole, in the given framing."""
    if gzip:
        body = gzip_module.compress(body)
        fields = [*fields, ("Content-Encoding", "gzip")]

    async def script(call: Call) -> None:
        head = call.head_of(status, fields, framing, len(body))
        if framing == "length":
            await call.send(head if call.method == "HEAD" else head + body)
            return
        await call.send(head)
        if body and call.method != "HEAD":
            await call.piece(body)
        await call.end(framing)

    return script


def stream(
    events: Sequence[bytes],
    *,
    gap_s: float = 0,
    first_s: float = 0,
    then: str = "end",
    framing: str = "chunked",
    fields: Fields = (("Content-Type", "text/event-stream"),),
) -> Script:
    """Events one by one. `then`: end, reset, close or hang."""

    async def script(call: Call) -> None:
        await asyncio.sleep(first_s)
        await call.start(200, fields, framing=framing, length=sum(map(len, events)))
        for i, event in enumerate(events):
            if i:
                await asyncio.sleep(gap_s)
            await call.piece(event)
        await finish(call, then, framing)

    return script


async def finish(call: Call, then: str, framing: str = "chunked") -> None:
    """End an answer one way or another."""
    if then == "end":
        await call.end(framing)
    elif then == "reset":
        await asyncio.sleep(0.02)  # a reset throws away what the kernel has not sent yet
        call.reset()
        raise PeerGone
    elif then == "close":
        call.close()
        raise PeerGone
    else:
        await call.gone.wait()
        raise PeerGone


def events(count: int) -> list[bytes]:
    """SSE events like an engine's, and the final one."""
    return [EVENT % i for i in range(count)] + [DONE]


def silent() -> Script:
    """Take the request and say nothing until the peer leaves."""
    return lambda call: finish(call, "hang")


def drop(then: str = "close") -> Script:
    """Take the request and end the connection without a byte."""
    return lambda call: finish(call, then)


def raw(data: bytes, then: str = "close") -> Script:
    """These bytes, whatever they mean."""

    async def script(call: Call) -> None:
        await call.send(data)
        if then != "keep":
            await finish(call, then)

    return script


def held(gate: asyncio.Event, script: Script = echo) -> Script:
    """Answer once the test opens the gate, or give up when the peer leaves."""

    async def wait(call: Call) -> None:
        opened = asyncio.create_task(gate.wait())
        left = asyncio.create_task(call.gone.wait())
        await asyncio.wait({opened, left}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        left.cancel()
        if call.gone.is_set():
            raise PeerGone
        await script(call)

    return wait
