"""An engine's two sockets for KV events, which lose, repeat, restart and lie when told to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import zmq
import zmq.asyncio

from stickyroute.watch.kv_events import KvSource
from tests.watch.kv_logs import batch, stored

PATIENCE_S = 30.0
END = b"\xff" * 8


class Publisher:
    """An engine's two sockets, made to misbehave. `kept` is what it replays; with `topic_frame` off as vLLM
    up to 0.24 does it."""

    def __init__(self, folder: str, *, topic_frame: bool = True, replays: bool = True) -> None:
        self.source = KvSource(0, "gpu-0", f"ipc://{folder}/kv", f"ipc://{folder}/replay", "kv")
        if not replays:
            self.source = replace(self.source, replay=None)
        self.kept: list[tuple[int, bytes]] = []
        self.next = 0
        self.asked: list[int] = []
        self._context = zmq.asyncio.Context()
        self._topic_frame = topic_frame
        self._replays = replays
        self._task: asyncio.Task[None] | None = None
        self.up()

    def up(self) -> None:
        self._events = self._context.socket(zmq.XPUB)  # hears of subscribers, so that a test need not guess
        self._events.bind(self.source.endpoint)
        if self._replays:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.bind(self.source.replay)
            self._task = asyncio.create_task(self._serve(self._router))

    async def down(self) -> None:
        self._events.close(linger=0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._router.close(linger=0)

    async def restart(self) -> None:
        """A new process: it begins at number 0 and keeps nothing of the old one."""
        await self.down()
        self.kept = []
        self.next = 0
        self.up()

    async def subscribed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await self._events.recv() == b"\x01kv"

    def store(self, *tokens: int, lost: bool = False) -> None:
        """A one-block prompt of four tokens for each number; the hash is the number."""
        self.send(batch(*(stored([token], [token] * 4) for token in tokens)), lost=lost)

    def send(self, payload: bytes, *, lost: bool = False, number: int | None = None) -> None:
        """Publish a batch, or only keep it, as if it had been lost on the way."""
        if number is None:
            number = self.next
            self.next += 1
            self.kept.append((number, payload))
        if not lost:
            self._events.send_multipart([b"kv", number.to_bytes(8, "big"), payload])

    async def _serve(self, router: Any) -> None:
        while True:
            client, _, start = await router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            topic = [b"kv"] if self._topic_frame else []
            for number, payload in self.kept:
                if number >= self.asked[-1]:
                    await router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            await router.send_multipart([client, b"", *([b""] if self._topic_frame else []), END, b""])

    async def close(self) -> None:
        await self.down()
        self._context.destroy(linger=0)
