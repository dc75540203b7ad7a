"""KV events over ZMQ as vLLM 0.32 and SGLang 0.5.23 publish them, with replay. Needs the extra `kv-events`.

Owns the encoding, the sequence numbers and the two sockets: PUB, three frames (topic, number, msgpack), and
a ROUTER that replays the last 10,000 batches. Caches report into it; it changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from stickyroute.errors import ConfigError

_KEPT: Final = 10_000
_END: Final = (-1).to_bytes(8, "big", signed=True)
_HIGH_WATER: Final = 100_000  # batches queued for a slow subscriber before PUB drops, vLLM's default


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sequence's blocks come from: its tokens, prompt and answer, and what keeps its cache apart."""

    tokens: Sequence[int]
    adapter: str | None = None
    salt: str | None = None


class KvEvents:
    """Publishes one engine's events. `endpoint` is bound when it holds `*` or `::` or is ipc or inproc, else
    it is connected to, as vLLM does. With `signed`, hashes are signed and vLLM's own fields are left out
    (SGLang)."""

    def __init__(
        self, endpoint: str, replay_endpoint: str | None, topic: str, block_size: int, signed: bool
    ) -> None:
        try:
            zmq: Any = import_module("zmq")
            msgpack: Any = import_module("msgspec.msgpack")
        except ModuleNotFoundError:
            raise ConfigError(
                "KV events need the extra kv-events: pip install 'stickyroute[kv-events]'"
            ) from None
        self._zmq = zmq
        self._topic = topic.encode()
        self._block_size = block_size
        self._signed = signed
        self._events: list[dict[str, Any]] = []
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._sequence = 0
        self._encoder = msgpack.Encoder()
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.set_hwm(_HIGH_WATER)
        self._replay: Any = None
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        try:
            self._open(endpoint, replay_endpoint)
        except zmq.ZMQError as failure:
            self._context.destroy(linger=0)
            raise ConfigError(f"KV events on {endpoint}, replayed on {replay_endpoint}: {failure}") from None

    def _open(self, endpoint: str, replay_endpoint: str | None) -> None:
        zmq = self._zmq
        if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
            self._publisher.bind(endpoint)
            self.endpoint = self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        else:
            self._publisher.connect(endpoint)
        if replay_endpoint is not None:
            self._replay = self._context.socket(zmq.ROUTER)
            self._replay.bind(replay_endpoint)
            self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
            asyncio.get_running_loop().add_reader(self._replay.getsockopt(zmq.FD), self._serve_replay)

    def stored(self, held: Any, first: int, last: int) -> None:
        """Blocks `first` to `last` (exclusive) of a sequence became hits."""
        origin: Origin = held.source.origin
        size = self._block_size
        event = {
            "type": "BlockStored",
            "block_hashes": [self._hash(key) for key in held.keys[first:last]],
            "parent_block_hash": self._hash(held.keys[first - 1]) if first else None,
            "token_ids": list(origin.tokens[first * size : last * size]),
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
        }
        if not self._signed:
            extra: list[Any] = []
            for index in range(first, last):
                keys: list[tuple[str, ...]] = []
                if origin.adapter:
                    keys.append(("lora", origin.adapter, origin.adapter))
                if index == 0 and origin.salt:
                    keys.append(("cache_salt", origin.salt))
                extra.append(keys or None)
            event |= {
                "lora_name": origin.adapter,
                "extra_keys": extra,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        self._events.append(event)

    def removed(self, key: int) -> None:
        """One block was evicted. SGLang tells the pages of one step in one event."""
        events = self._events
        if self._signed and events and events[-1]["type"] == "BlockRemoved":
            events[-1]["block_hashes"].append(self._hash(key))
            return
        event: dict[str, Any] = {"type": "BlockRemoved", "block_hashes": [self._hash(key)], "medium": "GPU"}
        if not self._signed:
            event["group_idx"] = 0
        events.append(event)

    def cleared(self) -> None:
        """The whole cache was emptied."""
        self._events.append({"type": "AllBlocksCleared"})

    def flush(self) -> None:
        """Publish what has happened since the last call as one batch, if anything has."""
        if not self._events:
            return
        payload = self._encoder.encode([time.time(), self._events, 0])
        self._events = []
        frames = (self._topic, self._sequence.to_bytes(8, "big"), payload)
        self._kept.append((self._sequence, payload))
        self._sequence += 1
        self._publisher.send_multipart(frames, flags=self._zmq.NOBLOCK)

    def close(self) -> None:
        """Close both sockets; the next publisher on the endpoint starts at number 0."""
        if self._replay is not None:
            asyncio.get_running_loop().remove_reader(self._replay.getsockopt(self._zmq.FD))
            self._replay.close(linger=0)
        self._publisher.close(linger=0)
        self._context.term()

    def _hash(self, key: int) -> int:
        return key - (1 << 64) if self._signed and key >= 1 << 63 else key

    def _serve_replay(self) -> None:
        """Answer every request that is there: its descriptor only tells of the first one."""
        while self._replay.getsockopt(self._zmq.EVENTS) & self._zmq.POLLIN:
            frames = self._replay.recv_multipart(flags=self._zmq.NOBLOCK)
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in self._kept:
                if number >= start:
                    self._replay.send_multipart(
                        (client, b"", self._topic, number.to_bytes(8, "big"), payload)
                    )
            self._replay.send_multipart((client, b"", b"", _END, b""))
