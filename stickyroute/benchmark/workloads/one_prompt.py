"""One global system prompt on every request, and otherwise nothing in common: the case in which hashing the
head of the prompt sends the whole fleet's traffic to one engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import seed_of, start
from stickyroute.benchmark.workloads.base import Request, lognormal, poisson


@dataclass(frozen=True, slots=True)
class OnePrompt:
    """`rate` strangers a second, each with one question under the same system prompt."""

    name: ClassVar[str] = "one_prompt"
    about: ClassVar[str] = "one global system prompt, single questions by strangers"

    rate: float = 30.0
    seconds: float = 180.0
    system_tokens: int = 3000
    question_tokens: float = 300.0
    answer_tokens: float = 150.0

    def requests(self, rand: Random) -> Iterator[Request]:
        system = start("system", seed_of("the one prompt"), self.system_tokens)
        for at_s in poisson(rand, self.rate, self.seconds):
            question = lognormal(rand, self.question_tokens, 0.9, 8, 8000)
            answer = lognormal(rand, self.answer_tokens, 0.7, 8, 1500)
            chain = system.then("user", rand.getrandbits(56), question)
            yield Request(at_s, chain.then("assistant", rand.getrandbits(56), answer))
