"""Agentic coding: a tool's long system prompt, contexts that grow by what each tool call returns, and
bursts of calls seconds apart with a person thinking in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import Prompt, seed_of, start
from stickyroute.benchmark.workloads.base import Request, lognormal, population


@dataclass(frozen=True, slots=True)
class Agentic:
    """`rate` requests a second in the mean, in bursts of about `burst` calls with `call_s` between them and
    `think_s` between bursts. A task starts with `files_tokens` (median) of files and ends past
    `context_tokens`.
    """

    name: ClassVar[str] = "agentic"
    about: ClassVar[str] = (
        "agentic coding: long growing contexts, bursts of tool calls, requests carry a session"
    )

    rate: float = 14.0
    seconds: float = 180.0
    burst: float = 8.0
    call_s: float = 3.0
    think_s: float = 45.0
    system_tokens: int = 4000
    files_tokens: float = 4000.0
    result_tokens: float = 500.0
    answer_tokens: float = 150.0
    context_tokens: int = 30_000

    def requests(self, rand: Random) -> Iterator[Request]:
        system = start("system", seed_of("agentic system"), self.system_tokens)
        pause_s = (self.call_s * (self.burst - 1) + self.think_s) / self.burst

        def turns(_number: int, first: bool) -> Iterator[tuple[float, Prompt]]:
            opening = lognormal(rand, self.files_tokens, 0.8, 200, self.context_tokens // 2)
            chain = system.then("user", rand.getrandbits(56), opening)
            if first:  # a task under way
                grown = int(rand.random() * (self.context_tokens - chain.total) * 0.8)
                chain = chain.then("user", rand.getrandbits(56), grown + 1)
            while chain.total < self.context_tokens:
                answer = lognormal(rand, self.answer_tokens, 0.9, 8, 2000)
                chain = chain.then("assistant", rand.getrandbits(56), answer)
                calls_again = rand.random() >= 1 / self.burst
                yield rand.expovariate(1 / (self.call_s if calls_again else self.think_s)), chain
                result = lognormal(rand, self.result_tokens, 1.2, 16, 6000)
                chain = chain.then("user", rand.getrandbits(56), result)

        users = max(1, round(self.rate * pause_s))
        return population(rand, users, self.seconds, pause_s, turns)
