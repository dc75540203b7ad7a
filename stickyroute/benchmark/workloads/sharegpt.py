"""ShareGPT conversations as token counts, read by path: JSON lines of {id, turns: [[user, assistant],
...]}, gzip.

Only lengths are needed, so any ShareGPT file can be reduced to this; none is part of this project.
Conversations run to a population of named users as in `chat`, with real lengths.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import Prompt
from stickyroute.benchmark.workloads.base import Request, population


@dataclass(frozen=True, slots=True)
class ShareGpt:
    """Conversations of at least `turns` turns, cut at `context_tokens`. With `ids` requests carry their
    user."""

    name: ClassVar[str] = "sharegpt"
    about: ClassVar[str] = (
        "ShareGPT conversations by their lengths, read by path; requests carry the user's id"
    )

    path: str = ""
    rate: float = 24.0
    seconds: float = 300.0
    think_s: float = 30.0
    turns: int = 1
    context_tokens: int = 12_000
    ids: bool = True

    def requests(self, rand: Random) -> Iterator[Request]:
        with gzip.open(self.path, "rt", encoding="utf-8") as lines:
            talks = [json.loads(line)["turns"] for line in lines]
        talks = [talk for talk in talks if len(talk) >= self.turns]
        if not talks:
            raise ValueError(f"{self.path}: no conversation has {self.turns} turns")

        def turns(_number: int, first: bool) -> Iterator[tuple[float, Prompt]]:
            talk = talks[int(rand.random() * len(talks))]
            skip = int(rand.random() * len(talk)) if first else 0
            chain: Prompt | None = None
            for turn, (asked, said) in enumerate(talk):
                chain = Prompt(chain, "user", rand.getrandbits(56), max(1, asked))
                if turn and chain.total > self.context_tokens:
                    return
                chain = chain.then("assistant", rand.getrandbits(56), max(1, said))
                if turn >= skip:
                    yield rand.expovariate(1 / self.think_s), chain

        users = max(1, round(self.rate * self.think_s))
        return population(rand, users, self.seconds, self.think_s, turns, self.ids)
