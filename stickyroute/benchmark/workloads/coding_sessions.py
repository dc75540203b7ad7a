"""Recorded coding-agent sessions, read by path: WEKA's Claude Code traces with run-length encoded block ids.

The recordings are public (github.com/callanjfox/kv-cache-tester, traces/); none of them is part of this
project. Each line is a session: its requests with their time, lengths and the blocks of 64 tokens they
consist of, ids local to the session. There is no common clock, so sessions start at random and pauses are
cut to `idle_s`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, ClassVar

from stickyroute.benchmark.prompts import Prompt, seed_of
from stickyroute.benchmark.workloads.base import Request


@dataclass(frozen=True, slots=True)
class CodingSessions:
    """Sessions of the file at `path` in random order, `sessions_s` of them starting each second.

    `shared` is how much of tools and system prompt is the same for all sessions that have as much of both.
    Requests with more than `input_tokens` are left out.
    """

    name: ClassVar[str] = "coding_sessions"
    about: ClassVar[str] = "recorded Claude Code sessions (WEKA), read by path; requests carry their session"

    path: str = ""
    sessions_s: float = 0.05
    seconds: float = 1800.0
    idle_s: float = 60.0
    input_tokens: int = 100_000
    shared: float = 0.75

    @property
    def rate(self) -> float:
        """Not known beforehand: sessions differ too much."""
        return 0.0

    def requests(self, rand: Random) -> Iterator[Request]:
        with gzip.open(self.path, "rt", encoding="utf-8") as lines:
            sessions = [json.loads(line) for line in lines]
        rand.shuffle(sessions)
        upcoming: list[tuple[float, int, Iterator[tuple[float, Prompt]], Prompt]] = []
        begin_s = 0.0
        number = 0
        while True:
            while not upcoming or begin_s <= upcoming[0][0]:
                begin_s += rand.expovariate(self.sessions_s)
                if begin_s >= self.seconds:
                    break
                turns = self._turns(sessions[number % len(sessions)], number)
                first = next(turns, None)
                number += 1
                if first is not None:
                    heappush(upcoming, (begin_s, number, turns, first[1]))
            if not upcoming or upcoming[0][0] >= self.seconds:
                return
            at_s, session, turns, reply = heappop(upcoming)
            yield Request(at_s, reply, f"session-{session}")
            step = next(turns, None)
            if step is not None:
                heappush(upcoming, (at_s + step[0], session, turns, step[1]))

    def _turns(self, session: dict[str, Any], number: int) -> Iterator[tuple[float, Prompt]]:
        """(pause before it, prompt with answer) of each request, sub-agents' among the others."""
        size = session["block_size"]
        heads = (session.get("tool_tokens") or 0, session.get("system_tokens") or 0)
        common = int(sum(heads) * self.shared // size)
        last_s: float | None = None
        for turn, row in enumerate(_in_order(session["requests"])):
            if row["in"] > self.input_tokens:
                continue
            pause_s = 0.0 if last_s is None else min(self.idle_s, max(0.0, row["t"] - last_s))
            last_s = row["t"]
            prompt = _prompt(row, size, common, ("weka", number), heads)
            yield pause_s, prompt.then("assistant", seed_of("weka", number, turn), max(1, row["out"]))


def _in_order(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for request in requests:
        nested = request.get("requests", (request,))  # a sub-agent's, or itself
        rows += [{"t": row.get("t", request.get("t", 0.0)), **row} for row in nested]
    return sorted(rows, key=lambda row: row["t"])


def _prompt(row: dict[str, Any], size: int, common: int, owner: object, heads: object) -> Prompt:
    """A run of consecutive ids is one part: a longer run from the same id begins with the shorter one's
    tokens."""
    chain: Prompt | None = None
    left = max(1, int(row["in"]))
    at = 0
    for first, last in row.get("h") or ():
        blocks = last - first + 1
        if not at and first == 1 and common:
            shared = min(blocks, common, left // size)
            if shared:
                chain = Prompt(None, "user", seed_of("tools", heads), shared * size)
                left -= shared * size
            at += shared
            first, blocks = first + shared, blocks - shared
        tokens = min(blocks * size, left)
        if tokens > 0:
            chain = Prompt(chain, "user", seed_of(owner, first), tokens)
            left -= tokens
        at += blocks
    if chain is None or left > 0:
        chain = Prompt(chain, "user", seed_of(owner, "rest", row["t"]), max(1, left))
    return chain
