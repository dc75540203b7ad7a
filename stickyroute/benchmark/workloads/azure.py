"""Azure's LLM inference trace, read by path: CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

The files are public (github.com/Azure/AzurePublicDataset, data/, CC-BY); none of them is part of this
project. They say when requests came and how long they were, not what they had in common: nothing is shared
here. The code trace is a test of bursts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import ClassVar

from stickyroute.benchmark.prompts import start
from stickyroute.benchmark.workloads.base import Request


@dataclass(frozen=True, slots=True)
class Azure:
    """The trace at `path`, `speed` times as fast, its first `seconds` after that."""

    name: ClassVar[str] = "azure"
    about: ClassVar[str] = (
        "Azure 2023 arrivals and lengths (code or conversation), read by path; nothing shared"
    )

    path: str = ""
    speed: float = 1.0
    seconds: float = 3600.0

    @property
    def rate(self) -> float:
        """Requests a second in the mean."""
        rows = self._rows()
        return self.speed * len(rows) / max(1e-3, rows[-1][0]) if rows else 0.0

    def requests(self, rand: Random) -> Iterator[Request]:
        for at_s, prompt_tokens, output_tokens in self._rows():
            if at_s / self.speed >= self.seconds:
                return
            prompt = start("user", rand.getrandbits(56), max(1, prompt_tokens))
            reply = prompt.then("assistant", rand.getrandbits(56), max(1, output_tokens))
            yield Request(at_s / self.speed, reply)

    def _rows(self) -> list[tuple[float, int, int]]:
        """Seconds since the first, prompt and answer tokens; in order of arrival."""
        with Path(self.path).open(newline="", encoding="utf-8") as lines:
            rows = [
                (_seconds(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                for row in csv.DictReader(lines)
            ]
        rows.sort()
        return [(at_s - rows[0][0], prompt, output) for at_s, prompt, output in rows]


def _seconds(stamp: str) -> float:
    """Of "2023-11-16 18:17:03.9799600"; the seventh digit is beyond what datetime reads."""
    return datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp()
