"""Questions about documents: each prompt is the same instruction, one document of a set, and a question
nobody asked before. Which document is drawn from a Zipf distribution, so a few are asked about all the
time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import seed_of, start
from stickyroute.benchmark.workloads.base import Request, lognormal, poisson


@dataclass(frozen=True, slots=True)
class Rag:
    """`documents` of `document_tokens` (median), popularity 1 / rank ** `zipf`. No ids: users are
    strangers."""

    name: ClassVar[str] = "rag"
    about: ClassVar[str] = "questions about a set of documents, Zipf popularity, no ids"

    rate: float = 20.0
    seconds: float = 180.0
    documents: int = 500
    document_tokens: float = 4000.0
    zipf: float = 1.0
    instruction_tokens: int = 120
    question_tokens: float = 40.0
    answer_tokens: float = 150.0

    def requests(self, rand: Random) -> Iterator[Request]:
        instruction = start("system", seed_of("rag instruction"), self.instruction_tokens)
        shelf = [
            instruction.then(
                "user", seed_of("document", number), lognormal(rand, self.document_tokens, 0.7, 200, 24_000)
            )
            for number in range(self.documents)
        ]
        order = list(range(self.documents))
        rand.shuffle(order)  # popularity has nothing to do with length
        weights = list(accumulate((rank + 1) ** -self.zipf for rank in range(self.documents)))
        for at_s in poisson(rand, self.rate, self.seconds):
            rank = bisect_right(weights, rand.random() * weights[-1])
            chain = shelf[order[min(rank, self.documents - 1)]]
            chain = chain.then(
                "user", rand.getrandbits(56), lognormal(rand, self.question_tokens, 0.6, 4, 500)
            )
            answer = lognormal(rand, self.answer_tokens, 0.6, 8, 800)
            yield Request(at_s, chain.then("assistant", rand.getrandbits(56), answer))
