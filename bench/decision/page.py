"""The table of docs/decision.md, from what was measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from stickyroute.routing import index

BEGIN = "<!-- written by `python -m bench.decision --markdown` from here -->"
END = "<!-- to here -->"
PROMISED_US = {1: 30, 32: 60, 200: 250}  # of sticky with FEW backends, by kilobytes
FEW = 16


class Row(NamedTuple):
    """What was measured of one policy, with one size of prompt, on one fleet. `columns` are microseconds, by name."""

    policy: str
    kilobytes: int
    key_from: str
    backends: int
    columns: dict[str, float]


def table(rows: Sequence[Row]) -> str:
    """One line for a policy and a prompt; what the choice takes on other fleets stands beside it."""
    sizes = sorted({row.backends for row in rows})
    few = FEW if FEW in sizes else sizes[0]
    others = [size for size in sizes if size != few]
    heads = [
        "", "key from", "keys", "where all is new", f"decide, {few} backends", "together", "in a row", "promised",
        "whole life", *[f"decide, {size} backends" for size in others],
    ]  # fmt: skip
    lines = [_line(heads), "|---|---|" + "---:|" * (len(heads) - 2)]
    found = {row[:4]: row.columns for row in rows}
    for policy, kilobytes, key_from, backends, columns in rows:
        if backends != few:
            continue
        promised = PROMISED_US.get(kilobytes) if policy == "sticky" and few == FEW else None
        lines.append(_line([
            f"`{policy}`, {kilobytes} KB", key_from, _us(columns["keys"]),
            _us(columns["keys"] + columns["anew"] - columns["chain"]), _us(columns["decide"]),
            _us(columns["keys"] + columns["decide"]), _us(columns["routing"]),
            "" if promised is None else str(promised), _us(columns["life"] - columns["parse"]),
            *[_us(found[policy, kilobytes, key_from, size]["decide"]) for size in others],
        ]))  # fmt: skip
    python = f"Python {platform.python_version()} ({platform.python_compiler()}), {how()}"
    machine = f"{os.cpu_count()} cores, of which other work kept {max(0.0, os.getloadavg()[0] - 1):.1f} busy"
    return "\n".join([f"{python}, {machine}, {datetime.now(UTC):%Y-%m-%d at %H:%M}:", "", *lines])


def how() -> str:
    """Whether it is the compiled build that is measured."""
    return "interpreted" if (index.__file__ or "").endswith(".py") else "compiled"


def write_between(path: Path, text: str) -> None:
    """Put `text` between the two marks of a page, in place of what is there. Raises ValueError for a page without."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the table")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _us(value: float) -> str:
    return f"{value:.0f}"
