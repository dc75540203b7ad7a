"""Follows the KV events of every backend that publishes them: one supervised task a source.

Owns the tasks, and which sources a backend has: one for each of its data-parallel ranks. How a source is
followed is `watch.kv_follow`. Beside the data plane and never in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from stickyroute.clock import monotonic
from stickyroute.routing.exact import Resident
from stickyroute.watch.kv_decode import missing_extra
from stickyroute.watch.kv_follow import Follower, KvSource
from stickyroute.watch.supervisor import Supervisor

__all__ = ["KvEventsWatch", "KvSource", "kv_sources"]

REPLAY_PAUSE_S = 1.0
"""What gets lost so soon after a replay gets lost faster than it can be replayed."""


def kv_sources(
    slot: int, name: str, endpoint: str, replay: str | None, topic: str, ranks: int
) -> list[KvSource]:
    """The sources of one backend: rank r publishes on the port plus r, as vLLM and SGLang have it."""
    return [
        KvSource(
            slot,
            name if ranks == 1 else f"{name} rank {rank}",
            _for_rank(endpoint, rank),
            None if replay is None else _for_rank(replay, rank),
            topic,
        )
        for rank in range(ranks)
    ]


def _for_rank(endpoint: str, rank: int) -> str:
    """TCP ports count up; the name of a local socket gets `_dp` and the rank, from rank 1 on."""
    if not rank:
        return endpoint
    host, colon, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and colon and port.isdecimal():
        return f"{host}:{int(port) + rank}"
    return f"{endpoint}_dp{rank}"


class KvEventsWatch:
    """Follows `sources`; source i is number i of `resident`. Raises ConfigError without pyzmq and msgspec,
    or for an endpoint that is none.

    A source is looked after each `check_s` seconds of silence; after a replay the next one waits for
    `replay_pause_s` at least.
    """

    def __init__(
        self,
        sources: Sequence[KvSource],
        resident: Resident,
        *,
        check_s: float,
        replay_pause_s: float = REPLAY_PAUSE_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        try:
            zmq: Any = import_module("zmq")
            zmq_asyncio: Any = import_module("zmq.asyncio")
        except ModuleNotFoundError:
            raise missing_extra() from None
        self._zmq = zmq
        self._context = zmq_asyncio.Context()
        self._supervisor = Supervisor()
        self._followers = [
            Follower(number, source, resident, zmq, self._context, check_s, replay_pause_s, clock)
            for number, source in enumerate(sources)
        ]

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        for follower in self._followers:
            self._supervisor.start(f"kv events: {follower.source.name}", follower.run)

    async def stop(self) -> None:
        """End every task and close every socket."""
        await self._supervisor.stop()
        self._context.destroy(linger=0)

    def state(self) -> list[dict[str, Any]]:
        """What is known of each source, as JSON values."""
        return [follower.state() for follower in self._followers]
