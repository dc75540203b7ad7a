"""A clock in the system prompt: near its beginning stands the time of day, to the minute. What follows is
computed again each minute, and a key made of the prompt's head moves every conversation each minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import Prompt, seed_of, start
from stickyroute.benchmark.workloads.base import Request, lognormal, population


@dataclass(frozen=True, slots=True)
class Clock:
    """Conversations without ids whose system prompt holds the time after `before_tokens`, renewed every
    `tick_s`. The whole prompt is rendered anew each turn, so only requests of the same tick share what
    follows the clock.
    """

    name: ClassVar[str] = "clock"
    about: ClassVar[str] = "multi-turn chat whose system prompt holds the time of day, no ids"

    rate: float = 20.0
    seconds: float = 180.0
    tick_s: float = 60.0
    think_s: float = 20.0
    turns: float = 8.0
    before_tokens: int = 24
    after_tokens: int = 1500
    question_tokens: float = 80.0
    answer_tokens: float = 150.0
    context_tokens: int = 8000

    def requests(self, rand: Random) -> Iterator[Request]:
        before = start("system", seed_of("clock, before"), self.before_tokens)
        users = max(1, round(self.rate * self.think_s))
        for request in population(
            rand, users, self.seconds, self.think_s, lambda _n, _f: self._turns(rand), named=False
        ):
            yield Request(request.at_s, self._at(before, request.at_s, request.reply))

    def _turns(self, rand: Random) -> Iterator[tuple[float, Prompt]]:
        chain: Prompt | None = None
        while chain is None or chain.total < self.context_tokens:
            question = lognormal(rand, self.question_tokens, 0.9, 4, 2000)
            seed = rand.getrandbits(56)
            chain = start("user", seed, question) if chain is None else chain.then("user", seed, question)
            answer = lognormal(rand, self.answer_tokens, 0.7, 8, 1500)
            chain = chain.then("assistant", rand.getrandbits(56), answer)
            yield rand.expovariate(1 / self.think_s), chain
            if rand.random() < 1 / self.turns:
                return

    def _at(self, before: Prompt, at_s: float, talk: Prompt) -> Prompt:
        """The conversation behind the system prompt of this moment."""
        tick = int(at_s // self.tick_s)
        chain = before.then("system", seed_of("time", tick), 8)
        chain = chain.then("system", seed_of("clock, after"), self.after_tokens)
        for part in talk.parts():
            chain = chain.then(part.role, part.seed, part.tokens)
        return chain
