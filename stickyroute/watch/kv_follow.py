"""Follows one source of KV events over ZMQ, and keeps its set in `routing.exact.Resident` true.

Owns the sockets and the sequence numbers of that source: a SUB socket for what happens, and now and then a
DEALER to the publisher's replay socket. Runs on the event loop in slices of a few messages. Knows neither text
nor the index: what became of a block is told by `Resident`.

How a source is followed:

- Subscribe first, then replay from the first batch, so that nothing falls in between.
- A number that is not the next means that batches were lost: replay them. What continues must be the batch we
  saw last, with the same bytes; else another process publishes now, whose cache was empty when it began.
- A number lower than expected is another process too.
- Silence is checked by a replay of the last batch: it proves that the publisher lives, is the same, and that
  nothing was lost behind it. No answer: the source is not fresh until it answers again.
- Without a replay socket a loss cannot be made good: the set is forgotten and fills anew, and after
  `silence_s` without events nobody knows whether it is true.
- Where batches get lost faster than they can be replayed, the source goes on without: memory and time stay
  bounded by the queue of the socket.

An engine publishes the last 10,000 batches only. Who comes later knows part of what it holds; blocks that
continue an unknown one stay unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_intdigest

from stickyroute.errors import ConfigError
from stickyroute.routing.exact import Resident
from stickyroute.watch.kv_decode import Decoder, Garbled

__all__ = ["Follower", "KvSource"]

log = logging.getLogger(__name__)

QUEUE_BATCHES = 2_000
"""Batches that may wait in the socket before ZMQ drops further ones."""
REPLAY_QUEUE_BATCHES = 20_000
"""More than a publisher keeps: one that overruns the replay's queue drops what it was asked for."""
MESSAGE_BYTES = 16 * 1024 * 1024
"""A longer message ends the connection, which ZMQ then makes anew."""
SLICE = 8
"""Batches taken up before the loop may do something else. One of 64 blocks takes 0.12 ms."""
ANSWER_S = 2.0
"""How long a replay socket may take for its next batch."""
REPLAYS = 3
"""Replays in a row that may leave a gap, before the source goes on without what it missed."""
_END = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class KvSource:
    """One publisher: a data-parallel rank of the backend in `slot`. An `endpoint` with `*` is bound, since
    the engine connects to it; others are connected to. `replay` is None where the engine has none."""

    slot: int
    name: str
    endpoint: str
    replay: str | None
    topic: str


class Follower:
    """One source and how far it was followed."""

    def __init__(
        self,
        number: int,
        source: KvSource,
        resident: Resident,
        zmq: Any,
        context: Any,
        check_s: float,
        replay_pause_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.source = source
        self._number = number
        self._resident = resident
        self._zmq = zmq
        self._context = context
        self._check_s = check_s
        self._replay_pause_s = replay_pause_s
        self._clock = clock
        self._decoder = Decoder()
        self._last: int | None = None  # number of the last batch taken up
        self._digests: dict[int, int] = {}  # of the last batches, by number
        self._caught_up_s: float | None = None
        self._in_doubt = False
        self._said = ""
        self._counts = dict.fromkeys(("batches", "gaps", "replays", "restarts", "losses", "garbled"), 0)

    def state(self) -> dict[str, Any]:
        return {
            "source": self.source.name,
            **self._counts,
            "passed_over": self._decoder.passed_over,
            "complete": self._resident.complete(self._number),
            "usable": self._resident.usable(self._number),
        }

    async def run(self) -> None:
        """Follow the source for ever."""
        zmq = self._zmq
        self._reset()
        self._resident.forget(self._number)
        self._resident.doubt(self._number)
        with self._socket(zmq.SUB, self.source.endpoint, QUEUE_BATCHES) as events:
            events.setsockopt(zmq.SUBSCRIBE, self.source.topic.encode())
            await self._catch_up()
            while True:
                if not await events.poll(round(self._check_s * 1000)):
                    if self.source.replay is not None:
                        await self._catch_up()
                    continue
                for _ in range(SLICE):
                    try:
                        frames = await events.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    await self._live(frames)
                await asyncio.sleep(0)

    async def _live(self, frames: Sequence[bytes]) -> None:
        """A message of the SUB socket: topic, number, batch."""
        if len(frames) < 2 or len(frames[-2]) != 8:
            self._counts["garbled"] += 1
            return
        number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        if self._in_doubt and self._clock() - (self._caught_up_s or 0.0) >= self._check_s:
            await self._catch_up()  # it was away: another process may have come to the same number
        if not self._is_next(number):
            if self._digests.get(number) == xxh3_64_intdigest(payload):
                return  # a replay has brought it already
            if self._last is not None:
                if number > self._last:
                    self._counts["gaps"] += 1
                else:
                    self._restarted()
            await self._catch_up()
            if self._digests.get(number) == xxh3_64_intdigest(payload):
                return
            if not self._is_next(number):
                self._lost()
        self._take(number, payload)
        self._confirm("following")

    def _is_next(self, number: int) -> bool:
        return number == (0 if self._last is None else self._last + 1)

    async def _catch_up(self) -> None:
        """Replay what was missed; afterwards the source is confirmed, or in doubt if nobody answers."""
        now_s = self._clock()
        if self.source.replay is None:
            return
        if self._caught_up_s is not None and now_s - self._caught_up_s < self._replay_pause_s:
            return
        self._counts["replays"] += 1
        for _ in range(REPLAYS):
            before = self._last
            answered, whole = await self._replay(self.source.replay, before or 0)
            self._caught_up_s = self._clock()
            self._in_doubt = not answered
            if not answered:
                self._resident.doubt(self._number)
                self._say("the replay socket does not answer")
                return
            if whole:
                self._confirm("following")
                return
        self._lost()

    async def _replay(self, endpoint: str, start: int) -> tuple[bool, bool]:
        """Ask for every batch from number `start` on. Returns whether the publisher answered, and whether
        all it has is taken up now; if not, ask again."""
        zmq = self._zmq
        expects = self._last is not None  # the first must be the batch we saw last
        with self._socket(zmq.DEALER, endpoint, REPLAY_QUEUE_BATCHES) as dealer:
            # A fresh socket each time, so that no answer to an earlier question comes late. Where nobody
            # listens, sending must not wait: the message goes when the connection is made.
            await dealer.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
            taken = 0
            while await dealer.poll(round(ANSWER_S * 1000)):
                for _ in range(SLICE):
                    try:
                        frames = await dealer.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        break
                    # vLLM up to 0.24 sends no topic: frames count from the end.
                    if len(frames) < 2 or len(frames[-2]) != 8:
                        self._counts["garbled"] += 1
                        return True, False
                    if frames[-2] == _END:
                        if expects:
                            self._restarted()  # it does not have what it sent us: another process
                            return True, False
                        if self._last is None and not self._resident.complete(self._number):
                            self._resident.restart(self._number)  # nothing published yet, nothing held
                        return True, True
                    number, payload = int.from_bytes(frames[-2], "big"), frames[-1]
                    if expects:
                        expects = False
                        if self._digests.get(number) == xxh3_64_intdigest(payload):
                            continue
                        if number <= start:
                            self._restarted()
                            return True, False
                        self._lost()  # we were away for longer than it keeps batches
                    elif self._last is None and number:
                        self._lost()
                    if self._last is not None and not self._is_next(number):
                        return True, False  # ZMQ dropped a part of the replay
                    self._take(number, payload)
                    taken += 1
                    if taken > REPLAY_QUEUE_BATCHES:
                        return True, False
                await asyncio.sleep(0)
            return False, False

    def _take(self, number: int, payload: bytes) -> None:
        """Take up one batch; the first one ever, number 0, begins with an empty cache."""
        resident = self._resident
        if self._last is None and not number:
            resident.restart(self._number)
        self._last = number
        digests = self._digests
        digests[number] = xxh3_64_intdigest(payload)
        if len(digests) > 2 * QUEUE_BATCHES:
            del digests[next(iter(digests))]
        self._counts["batches"] += 1
        try:
            events = self._decoder.batch(payload)
        except Garbled as failure:
            self._counts["garbled"] += 1
            resident.forget(self._number)
            self._say(f"a batch cannot be read ({failure})")
            return
        for event in events:
            resident.apply(self._number, event)

    def _restarted(self) -> None:
        """Another process publishes: what the last one held is gone."""
        self._counts["restarts"] += 1
        self._reset()
        self._resident.restart(self._number)

    def _lost(self) -> None:
        """Batches are gone for good: what was believed is void."""
        self._counts["losses"] += 1
        self._reset()
        self._resident.forget(self._number)
        self._say("events were lost; what the engine held before is not known")

    def _reset(self) -> None:
        self._last = None
        self._digests.clear()

    def _confirm(self, state: str) -> None:
        self._resident.confirm(self._number, self._clock())
        if self._resident.complete(self._number):
            self._say(state)

    def _say(self, state: str) -> None:
        """Log what changed, once."""
        if state != self._said:
            self._said = state
            level = logging.INFO if state == "following" else logging.WARNING
            log.log(level, "kv events of %s: %s", self.source.name, state)

    @contextmanager
    def _socket(self, kind: int, endpoint: str, queue: int) -> Iterator[Any]:
        """An open socket of `kind`. Raises ConfigError for an endpoint ZMQ does not understand."""
        zmq = self._zmq
        socket = self._context.socket(kind)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, queue)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
            socket.setsockopt(zmq.IPV6, "[" in endpoint)
            try:
                if "*" in endpoint:
                    socket.bind(endpoint)
                else:
                    socket.connect(endpoint)
            except zmq.ZMQError as failure:
                raise ConfigError(f"kv events of {self.source.name}: {endpoint}: {failure}") from None
            yield socket
        finally:
            socket.close(linger=0)
