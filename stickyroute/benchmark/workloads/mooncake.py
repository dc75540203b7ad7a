"""Mooncake's traces, read by path: JSON lines of {timestamp, input_length, output_length, hash_ids}.

The files are public (github.com/kvcache-ai/Mooncake, FAST25-release/traces); none of them is part of this
project. A hash id stands for 512 tokens and everything before them, so equal ids are equal prefixes. The
trace has no users and does not say which answer became whose history, so answers are never hits, as they
would be in life.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from stickyroute.benchmark.prompts import Prompt, seed_of
from stickyroute.benchmark.workloads.base import Request

BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Mooncake:
    """The trace at `path`, `speed` times as fast, its first `seconds` (of its own clock times `speed`).

    Timestamps are whole multiples of three seconds; `spread_s` scatters each arrival over that much.
    """

    name: ClassVar[str] = "mooncake"
    about: ClassVar[str] = "a Mooncake trace (conversation, tool and agent, synthetic), read by path"

    path: str = ""
    speed: float = 1.0
    seconds: float = 3600.0
    spread_s: float = 3.0

    @property
    def rate(self) -> float:
        """Requests a second in the mean."""
        rows = self._rows()
        return self.speed * len(rows) / max(1e-3, rows[-1]["timestamp"] / 1e3) if rows else 0.0

    def requests(self, rand: Random) -> Iterator[Request]:
        rows = self._rows()
        seen = Counter(block for row in rows for block in row["hash_ids"])
        arrivals = sorted(
            ((row["timestamp"] / 1e3 + rand.random() * self.spread_s) / self.speed, number)
            for number, row in enumerate(rows)
        )
        shared: dict[int, Prompt] = {}
        for at_s, number in arrivals:
            if at_s >= self.seconds:
                return
            row = rows[number]
            prompt = self._prompt(row, seen, shared)
            yield Request(
                at_s, prompt.then("assistant", seed_of("answer", number), max(1, row["output_length"]))
            )

    def _prompt(self, row: dict[str, Any], seen: Counter[int], shared: dict[int, Prompt]) -> Prompt:
        left = max(1, int(row["input_length"]))
        chain: Prompt | None = None
        for block in row["hash_ids"]:
            tokens = min(BLOCK, left)
            if tokens <= 0:
                break
            left -= tokens
            known = shared.get(block)
            if known is not None and tokens == BLOCK:
                chain = known
                continue
            chain = Prompt(chain, "user", seed_of("block", block), tokens)
            if tokens == BLOCK and seen[block] > 1:
                shared[block] = chain
        if chain is None or left > 0:  # a row whose ids do not cover its length
            chain = Prompt(
                chain, "user", seed_of("rest", row["timestamp"], row["input_length"]), max(1, left)
            )
        return chain

    def _rows(self) -> list[dict[str, Any]]:
        with Path(self.path).open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
