"""What a workload is: a seeded stream of requests in order of arrival.

Owns the request, the arrival processes and the population of users that most workloads are made of. Times are
seconds since the start of the run. Arrivals never wait for answers: the loop is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from random import Random
from typing import ClassVar, Protocol

from stickyroute.benchmark.prompts import Prompt

__all__ = ["Request", "Workload", "lognormal", "poisson", "population", "stages"]


class Request:
    """One request. `reply` is the chain of the prompt and the answer it will get; `user` is what the client
    says it is, empty if it says nothing."""

    __slots__ = ("at_s", "reply", "user")

    def __init__(self, at_s: float, reply: Prompt, user: str = "") -> None:
        self.at_s = at_s
        self.reply = reply
        self.user = user

    @property
    def prompt(self) -> Prompt:
        parent = self.reply.parent
        assert parent is not None  # an answer follows a prompt
        return parent

    @property
    def prompt_tokens(self) -> int:
        return self.reply.total - self.reply.tokens

    @property
    def output_tokens(self) -> int:
        return self.reply.tokens


class Workload(Protocol):
    """A frozen dataclass of parameters, the rate in requests a second among them, and what they make."""

    name: ClassVar[str]
    about: ClassVar[str]

    @property
    def rate(self) -> float:
        """Requests a second in the mean; 0 if it is not known beforehand."""

    @property
    def seconds(self) -> float:
        """How long requests arrive."""

    def requests(self, rand: Random) -> Iterator[Request]:
        """The requests in order of arrival; the same for the same state of `rand`."""


def lognormal(rand: Random, median: float, sigma: float, low: int, high: int) -> int:
    """A length with the given median; `sigma` is the standard deviation of its logarithm."""
    return int(min(high, max(low, median * math.exp(rand.gauss(0.0, sigma)))))


def poisson(rand: Random, rate: float, seconds: float) -> Iterator[float]:
    """Arrival times at `rate` a second."""
    at_s = rand.expovariate(rate)
    while at_s < seconds:
        yield at_s
        at_s += rand.expovariate(rate)


def stages(rand: Random, steps: list[tuple[float, float]]) -> Iterator[float]:
    """Poisson arrivals at each (rate, seconds) in turn."""
    begin_s = 0.0
    for rate, seconds in steps:
        for at_s in poisson(rand, rate, seconds):
            yield begin_s + at_s
        begin_s += seconds


@dataclass(slots=True)
class _User:
    turns: Iterator[tuple[float, Prompt]]
    name: str


def population(
    rand: Random,
    users: int,
    seconds: float,
    think_s: float,
    turns: Callable[[int, bool], Iterator[tuple[float, Prompt]]],
    named: bool = True,
) -> Iterator[Request]:
    """`users` people at work from the first second to the last, so that the rate is steady throughout.

    `turns(number, first)` yields one conversation of user `number` as (pause before the turn in seconds,
    prompt with answer); a finished one is followed by the next. `first` ones are met in the middle: their
    history is there, but no cache has it. Each user's first request comes at a random point of a pause of
    `think_s`.
    """
    people: list[tuple[float, int]] = []
    running: list[_User] = []
    for number in range(users):
        running.append(_User(turns(number, True), f"user-{number}" if named else ""))
        people.append((rand.random() * think_s, number))
    heapify(people)

    def follow(number: int) -> tuple[float, Prompt]:
        """The user's next turn, of the next conversation if this one is over."""
        user = running[number]
        while (step := next(user.turns, None)) is None:
            user.turns = turns(number, False)
        return step

    upcoming = [follow(number)[1] for number in range(users)]
    while people:
        at_s, number = people[0]
        if at_s >= seconds:
            heappop(people)
            continue
        yield Request(at_s, upcoming[number], running[number].name)
        pause_s, upcoming[number] = follow(number)
        heapreplace(people, (at_s + pause_s, number))
