"""A few big shared prefixes: the setting of llm-d's published benchmark.

150 groups, each with a system prompt of 6,000 tokens; 5 users a group, each with a question of 1,200;
answers of 1,000 tokens. The 750 prompts are shuffled once and then sent round and round, so all that can be
reused was sent before in full. In llm-d's runs rates rise in stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import seed_of, start
from stickyroute.benchmark.workloads.base import Request, stages


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """`warmup_s` at `warmup_rate`, then `seconds` at `rate`; or `stages`, (rate, seconds) pairs, instead.

    With `ids` a request carries its group's name, which is what a client of llm-d could send; without,
    nothing does. `question_spread` is the standard deviation of the question's length.
    """

    name: ClassVar[str] = "shared_prefixes"
    about: ClassVar[str] = "150 groups x 5 users: 6,000-token system prompts, 1,200-token questions (llm-d)"

    rate: float = 20.0
    seconds: float = 120.0
    warmup_rate: float = 15.0
    warmup_s: float = 50.0
    stages: tuple[tuple[float, float], ...] = ()
    groups: int = 150
    users: int = 5
    system_tokens: int = 6000
    question_tokens: int = 1200
    question_spread: float = 0.0
    answer_tokens: int = 1000
    ids: bool = False

    def requests(self, rand: Random) -> Iterator[Request]:
        corpus = []
        for group in range(self.groups):
            system = start("system", seed_of("group", group), self.system_tokens)
            for user in range(self.users):
                question = max(10, round(rand.gauss(self.question_tokens, self.question_spread)))
                prompt = system.then("user", seed_of("group question", group, user), question)
                reply = prompt.then("assistant", seed_of("group answer", group, user), self.answer_tokens)
                corpus.append((reply, f"group-{group}" if self.ids else ""))
        rand.shuffle(corpus)
        steps = list(self.stages) or [(self.warmup_rate, self.warmup_s), (self.rate, self.seconds)]
        for number, at_s in enumerate(
            stages(rand, [(rate, seconds) for rate, seconds in steps if seconds > 0])
        ):
            reply, name = corpus[number % len(corpus)]
            yield Request(at_s, reply, name)
