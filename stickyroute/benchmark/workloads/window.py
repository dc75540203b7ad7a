"""A history cut to a window: once a conversation is longer than the window, its oldest turns are dropped
each time, so that everything after the system prompt has moved and is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import Prompt, seed_of, start
from stickyroute.benchmark.workloads.base import Request, lognormal, population


@dataclass(frozen=True, slots=True)
class Window:
    """Endless conversations of named users; each request holds the system prompt and the last `window`
    turns."""

    name: ClassVar[str] = "window"
    about: ClassVar[str] = "chat with the history cut to the last turns, requests carry the user's id"

    rate: float = 20.0
    seconds: float = 180.0
    think_s: float = 20.0
    window: int = 8
    system_tokens: int = 1000
    question_tokens: float = 80.0
    answer_tokens: float = 150.0

    def requests(self, rand: Random) -> Iterator[Request]:
        system = start("system", seed_of("window system"), self.system_tokens)

        def turns(_number: int, first: bool) -> Iterator[tuple[float, Prompt]]:
            past: list[tuple[int, int, int, int]] = []
            skip = int(rand.random() * 2 * self.window) if first else 0
            while True:
                question = lognormal(rand, self.question_tokens, 0.9, 4, 2000)
                answer = lognormal(rand, self.answer_tokens, 0.7, 8, 1500)
                past.append((rand.getrandbits(56), question, rand.getrandbits(56), answer))
                del past[: -self.window]
                if skip:
                    skip -= 1
                    continue
                chain = system
                for asked, asked_tokens, said, said_tokens in past:
                    chain = chain.then("user", asked, asked_tokens).then("assistant", said, said_tokens)
                yield rand.expovariate(1 / self.think_s), chain

        users = max(1, round(self.rate * self.think_s))
        return population(rand, users, self.seconds, self.think_s, turns)
