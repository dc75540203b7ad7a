"""Steady traffic, and for a while much more of it: on the whole fleet, or by people whose home is one backend.

Owns how the two are put together. The people of the surge have names of their own, so that nothing of theirs is
cached before it, and none of them comes back after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import count
from random import Random
from typing import ClassVar

from stickyroute import defaults
from stickyroute.benchmark.workloads.base import Request
from stickyroute.benchmark.workloads.chat import Chat
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.ring import Ring


@dataclass(frozen=True, slots=True)
class Surge:
    """`rate` requests a second for `seconds`, and from `begin_s` on for `surge_s` another `extra` a second. With
    `engine` (a slot of `engines`) all of those are by people whose home on the ring it is."""

    name: ClassVar[str] = "surge"
    about: ClassVar[str] = "chat, and a surge of more"

    rate: float = 8.0
    seconds: float = 300.0
    extra: float = 16.0
    begin_s: float = 120.0
    surge_s: float = 60.0
    engines: int = 8
    engine: int | None = None

    def requests(self, rand: Random) -> Iterator[Request]:
        steady = Chat(rate=self.rate, seconds=self.seconds)
        more = Chat(rate=self.extra, seconds=self.surge_s)
        return merge(
            steady.requests(Random(rand.random())),
            self._later(more.requests(Random(rand.random()))),
            key=lambda request: request.at_s,
        )

    def _later(self, requests: Iterator[Request]) -> Iterator[Request]:
        names = self._names()
        known: dict[str, str] = {}
        for request in requests:
            if request.user not in known:
                known[request.user] = next(names)
            yield Request(request.at_s + self.begin_s, request.reply, known[request.user])

    def _names(self) -> Iterator[str]:
        ring = Ring.build([(f"gpu-{number}", 1) for number in range(self.engines)], defaults.RING_VNODES)
        rule = AffinityRule(defaults.AFFINITY_SOURCES)
        for number in count():
            name = f"surge-{number}"
            keys = rule.keys({}, Shape.CHAT, Asked("sim", True, {"model": "sim", "user": name}), "")
            assert keys.affinity is not None  # it names its user
            if self.engine is None or ring.home(keys.affinity) == self.engine:
                yield name
