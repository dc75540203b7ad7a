"""No two requests have anything in common. There is nothing to stick to: a sticky policy must not lose to a
balancing one here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import start
from stickyroute.benchmark.workloads.base import Request, lognormal, poisson


@dataclass(frozen=True, slots=True)
class NoOverlap:
    """`rate` prompts a second of `prompt_tokens` (median), lengths spread widely."""

    name: ClassVar[str] = "no_overlap"
    about: ClassVar[str] = "no two prompts share anything"

    rate: float = 24.0
    seconds: float = 180.0
    prompt_tokens: float = 1500.0
    answer_tokens: float = 150.0

    def requests(self, rand: Random) -> Iterator[Request]:
        for at_s in poisson(rand, self.rate, self.seconds):
            prompt = start("user", rand.getrandbits(56), lognormal(rand, self.prompt_tokens, 1.0, 16, 24_000))
            answer = lognormal(rand, self.answer_tokens, 0.7, 8, 1500)
            yield Request(at_s, prompt.then("assistant", rand.getrandbits(56), answer))
