"""Multi-turn chat: people with a conversation that grows, a short system prompt they all share, and pauses
to read.

Lengths follow ShareGPT's statistics: short questions, answers of a few hundred tokens, most conversations
short and some long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import Prompt, seed_of, start
from stickyroute.benchmark.workloads.base import Request, lognormal, population


@dataclass(frozen=True, slots=True)
class Chat:
    """`rate` requests a second for `seconds`. With `ids` each request carries its user's name.

    `think_s` is the mean pause between two requests of a user, who number rate x think_s. A conversation ends
    after a geometric number of turns with mean `turns`, or past `context_tokens`. The run meets people in the
    middle of one, or, if `fresh`, at the start of their first. Question lengths are medians; `spread` is
    sigma.
    """

    name: ClassVar[str] = "chat"
    about: ClassVar[str] = "multi-turn chat, requests carry the user's id"

    rate: float = 24.0
    seconds: float = 180.0
    think_s: float = 30.0
    turns: float = 8.0
    system_tokens: int = 600
    opening_tokens: float = 120.0
    question_tokens: float = 60.0
    answer_tokens: float = 200.0
    context_tokens: int = 12_000
    spread: float = 1.0
    ids: bool = True
    fresh: bool = False

    def requests(self, rand: Random) -> Iterator[Request]:
        system = start("system", seed_of("chat system"), self.system_tokens)

        def turns(_number: int, first: bool) -> Iterator[tuple[float, Prompt]]:
            chain = system
            skip = int(rand.expovariate(1 / self.turns)) if first and not self.fresh else 0
            for turn in count():
                usual = self.question_tokens if turn else self.opening_tokens
                question = lognormal(rand, usual, self.spread, 4, 4000)
                answer = lognormal(rand, self.answer_tokens, 0.7, 8, 1500)
                chain = chain.then("user", rand.getrandbits(56), question)
                chain = chain.then("assistant", rand.getrandbits(56), answer)
                if turn and chain.total > self.context_tokens:
                    return
                if turn >= skip:
                    yield rand.expovariate(1 / self.think_s), chain
                    if rand.random() < 1 / self.turns:
                        return

        users = max(1, round(self.rate * self.think_s))
        return population(rand, users, self.seconds, self.think_s, turns, self.ids)


@dataclass(frozen=True, slots=True)
class ChatWithoutIds(Chat):
    """The same people, but their requests carry no id."""

    name: ClassVar[str] = "chat_without_ids"
    about: ClassVar[str] = "the same chat, without ids"

    ids: bool = False
