"""Families of samples as Prometheus text or OpenMetrics, written directly.

Owns the two formats: escaping, names, the order of lines. A scrape of 64 backends is about 10,000 lines, so what of
a line never changes (name and labels) is written once and kept. Must not know what is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from stickyroute.metrics.histogram import Histogram

__all__ = ["OPENMETRICS_TYPE", "TEXT_TYPE", "Family", "counter", "gauge", "histogram", "render"]

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_END = b"# EOF\n"
_PART_LINES = 600  # written at a time: about a millisecond
_KEPT = 1 << 15  # beginnings of lines that are kept: more than a large fleet has
_SPECIAL = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}

Labels = tuple[str, ...]


class Family:
    """One metric. `rows` are label values and what they have: a number, or a Histogram. Made anew for each scrape."""

    __slots__ = ("help", "kind", "labels", "name", "rows")

    def __init__(
        self,
        name: str,
        kind: str,
        help_text: str,
        labels: Labels,
        rows: Iterable[tuple[Labels, float | Histogram]],
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help_text
        self.labels = labels
        self.rows = rows


def counter(name: str, help_text: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> Family:
    """A counter; `name` is without `_total`."""
    return Family(name, "counter", help_text, labels, rows)


def gauge(name: str, help_text: str, labels: Labels, rows: Iterable[tuple[Labels, float]]) -> Family:
    """A gauge."""
    return Family(name, "gauge", help_text, labels, rows)


def histogram(name: str, help_text: str, labels: Labels, rows: Iterable[tuple[Labels, Histogram]]) -> Family:
    """A histogram."""
    return Family(name, "histogram", help_text, labels, rows)


def render(families: Iterable[Family], openmetrics: bool = False) -> Iterator[bytes]:
    """The text in parts, between which a loop may do other things; each takes about a millisecond at most."""
    lines: list[str] = []
    for family in families:
        name, kind = family.name, family.kind
        shown = name if openmetrics or kind != "counter" else f"{name}_total"
        lines.append(f"# HELP {shown} {_help(family.help, openmetrics)}\n# TYPE {shown} {kind}\n")
        for values, value in family.rows:
            if isinstance(value, Histogram):
                lines += _histogram_lines(name, family.labels, values, value)
            else:
                sample = f"{name}_total" if kind == "counter" else name
                lines.append(f"{_begin(sample, family.labels, values)} {_number(value)}\n")
            if len(lines) >= _PART_LINES:
                yield "".join(lines).encode("utf-8", "replace")
                lines.clear()
    yield "".join(lines).encode("utf-8", "replace")
    if openmetrics:
        yield _END


def _histogram_lines(name: str, labels: Labels, values: Labels, what: Histogram) -> Sequence[str]:
    begins, total, total_sum = _histogram_begins(name, labels, values, what.bounds)
    counts = list(accumulate(what.counts))
    lines = [f"{begin}{count}\n" for begin, count in zip(begins, counts, strict=True)]
    lines.append(f"{total}{counts[-1]}\n{total_sum}{_number(what.sum)}\n")
    return lines


@lru_cache(maxsize=_KEPT)
def _histogram_begins(
    name: str, labels: Labels, values: Labels, bounds: tuple[float, ...]
) -> tuple[tuple[str, ...], str, str]:
    ends = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return (
        tuple(f"{_begin(f'{name}_bucket', (*labels, 'le'), (*values, end))} " for end in ends),
        f"{_begin(f'{name}_count', labels, values)} ",
        f"{_begin(f'{name}_sum', labels, values)} ",
    )


@lru_cache(maxsize=_KEPT)
def _begin(name: str, labels: Labels, values: Labels) -> str:
    """A line up to its value."""
    if not labels:
        return name
    pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)]
    return f"{name}{{{','.join(pairs)}}}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _help(text: str, openmetrics: bool) -> str:
    return _escaped(text) if openmetrics else text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == value and value not in (float("inf"), float("-inf")):
        return repr(value)
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
