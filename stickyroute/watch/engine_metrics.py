"""An engine's `/metrics` page as a `Sample`: every name that vLLM, SGLang and llama.cpp have had for it.

Owns the names, and how the series of data-parallel ranks make one figure. Pure, and quick, since it runs on
the event loop: lines that are not wanted cost one look-up of their name. What is malformed or missing is
unknown; nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stickyroute.fleet.sample import Sample

__all__ = ["PageReader", "read_sample"]

# Metric names without their dialect's prefix, and counters without `_total`. The first that a page has wins.
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "kv": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "running": ("num_requests_running",),
        "waiting": ("num_requests_waiting",),
        "preemptions": ("num_preemptions",),
        "queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
        "hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
        "info": ("cache_config_info",),
        "created": ("num_preemptions_created",),
    },
    "sglang": {
        "kv": ("token_usage",),
        "running": ("num_running_reqs",),
        "waiting": ("num_queue_reqs",),
        "preemptions": ("num_retracted_reqs", "total_retracted_reqs"),
        "queries": ("prompt_tokens",),
        "hits": ("cached_tokens",),
        "capacity": ("max_total_num_tokens",),
        "page": ("page_size",),
        "pages": ("num_pages",),
        "context": ("context_len",),
        "info": ("cache_config_info",),
    },
    "llamacpp": {
        "running": ("requests_processing",),
        "waiting": ("requests_deferred",),
        "computed": ("prompt_tokens",),
        "hits": ("prompt_tokens_cached",),
    },
}

_PROCESS_START = b"process_start_time_seconds"
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
# Labels that tell copies of one engine's figure apart, rather than parts of a sum: every tensor-parallel rank
# may report what the first does, and with several API servers each process what all do.
_COPIES = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})

_TOO_MUCH = 1e18

_Series = tuple[dict[str, str], float]


def _wanted() -> dict[bytes, tuple[str, str]]:
    """By the name on the page: the dialect, and the name without what came and went around it.

    Counters end in `_total` or, declared so or by old clients, do not; behind Ray the prefix is another.
    """
    table: dict[bytes, tuple[str, str]] = {}
    for dialect, figures in _NAMES.items():
        for names in figures.values():
            for name in names:
                for before in (f"{dialect}:", f"{dialect}_", f"ray_{dialect}_"):
                    for after in ("", "_total"):
                        table[f"{before}{name}{after}".encode()] = (dialect, name)
    return table


_WANTED = _wanted()


class PageReader:
    """Reads the pages of one engine, which has the same lines in the same places from one page to the next: names and
    labels of the known ones are remembered, so that only their values are read, and the others are not looked at.
    Now and then, and whenever a line is not where it was, all are.
    """

    __slots__ = ("_known", "_lines", "_since")

    def __init__(self) -> None:
        self._lines = 0
        self._known: list[_Known] = []
        self._since = 0

    def read(self, page: bytes) -> Sample:
        """What `read_sample` says of the page."""
        lines = page.split(b"\n")
        self._since += 1
        if len(lines) != self._lines or self._since > _TRUSTED or not self._fits(lines):
            self._known, self._lines, self._since = _look(lines), len(lines), 0
        return _sample(lines, self._known)

    def _fits(self, lines: list[bytes]) -> bool:
        return all(lines[known.place].startswith(known.begin) for known in self._known)


_TRUSTED = 20
"""Pages that are read by what is remembered before all lines are looked at again."""


class _Known(NamedTuple):
    """A line with a known name. `begin` is all of it but the value (and the time), `labels` are in it."""

    place: int
    begin: bytes
    name: bytes
    labels: dict[str, str]


def read_sample(page: bytes) -> Sample:
    """The figures on a page; a page without any that are known is an empty sample, of no dialect."""
    lines = page.split(b"\n")
    return _sample(lines, _look(lines))


def _look(lines: list[bytes]) -> list[_Known]:
    known = []
    for place, line in enumerate(lines):
        name = line.partition(b"{")[0]
        if len(name) == len(line):  # no labels
            name = line.partition(b" ")[0]
        if name in _WANTED or name == _PROCESS_START:
            begin = line[: line.rfind(b"}") + 1] if b"{" in line else name
            known.append(_Known(place, begin, name, _labels(line)))
    return known


def _sample(lines: list[bytes], known: list[_Known]) -> Sample:
    found: dict[str, dict[str, list[_Series]]] = {}
    started_s = None
    for place, begin, name, labels in known:
        value = _value(lines[place][len(begin) :])
        wanted = _WANTED.get(name)
        if wanted is None:
            started_s = value
        elif value is not None:
            dialect, base = wanted
            found.setdefault(dialect, {}).setdefault(base, []).append((labels, value))
    if not found:
        return Sample()
    dialect = max(found, key=lambda name: len(found[name]))
    return _READERS[dialect](_Page(dialect, found[dialect], started_s))


class _Page:
    """The series of one dialect, asked for by what they mean."""

    def __init__(self, dialect: str, series: dict[str, list[_Series]], started_s: float | None) -> None:
        self.dialect = dialect
        self.started_s = started_s
        self._series = series

    def get(self, figure: str) -> list[_Series]:
        """The series of the first name that the page has; with priorities, only those of all together."""
        for name in _NAMES[self.dialect][figure]:
            series = self._series.get(name)
            if series:
                return [one for one in series if not one[0].get("priority")]
        return []

    def total(self, figure: str) -> int | None:
        """The sum over everything that is not a copy; None where the page has no such series."""
        parts: dict[tuple[tuple[str, str], ...], float] = {}
        for labels, value in self.get(figure):
            part = tuple(sorted(label for label in labels.items() if label[0] not in _COPIES))
            parts[part] = max(value, parts.get(part, 0.0))
        return _whole(sum(parts.values())) if parts else None

    def most(self, figure: str) -> float | None:
        return max((value for _, value in self.get(figure)), default=None)

    def info(self, name: str) -> list[str]:
        """A label of `cache_config_info`, of each series that tells it. "None" is Python's."""
        values = (labels.get(name) for labels, _ in self.get("info"))
        return [value for value in values if value is not None and value != "None"]

    def ranks(self, label: str) -> int | None:
        """How many data-parallel ranks report."""
        running = self.get("running") or self.get("kv")
        return len({labels.get(label, "") for labels, _ in running}) or None


def _vllm(page: _Page) -> Sample:
    # The number of blocks is that of all ranks, written on the series of each: it is read once, never summed.
    # The size in tokens is each rank's own, and right where blocks times their size are not.
    blocks = max(_wholes(page.info("num_gpu_blocks")), default=None)
    block_size = max(_wholes(page.info("block_size")), default=None)
    capacity: int | None = sum(_wholes(page.info("kv_cache_size_tokens"))) or None
    if capacity is None and blocks and block_size:
        capacity = blocks * block_size
    caching = page.info("enable_prefix_caching")
    return Sample(
        kv_utilization=_ratio(page.most("kv")),
        running=page.total("running"),
        waiting=page.total("waiting"),
        preemptions=page.total("preemptions"),
        queries_tokens=page.total("queries"),
        hits_tokens=page.total("hits"),
        blocks=blocks or None,
        block_size_tokens=block_size or None,
        prefix_caching="True" in caching if caching else None,
        started_s=page.started_s or page.most("created"),
        capacity_tokens=capacity,
        ranks=page.ranks("engine"),
        dialect="vllm",
    )


def _sglang(page: _Page) -> Sample:
    block_size = _whole(page.most("page")) or max(_wholes(page.info("page_size")), default=None) or None
    blocks = page.total("pages") or sum(_wholes(page.info("num_pages"))) or None
    capacity = page.total("capacity")
    if blocks is None and capacity and block_size:
        blocks = capacity // block_size
    elif not capacity and blocks and block_size:
        capacity = blocks * block_size
    return Sample(
        kv_utilization=_ratio(page.most("kv")),
        running=page.total("running"),
        waiting=page.total("waiting"),
        preemptions=page.total("preemptions"),
        queries_tokens=page.total("queries"),
        hits_tokens=page.total("hits"),
        blocks=blocks,
        block_size_tokens=block_size,
        max_model_len=_whole(page.most("context")),
        started_s=page.started_s,
        capacity_tokens=capacity or None,
        ranks=page.ranks("dp_rank"),
        dialect="sglang",
    )


def _llamacpp(page: _Page) -> Sample:
    computed, hits = page.total("computed"), page.total("hits")
    return Sample(
        running=page.total("running"),
        waiting=page.total("waiting"),
        queries_tokens=computed + hits if computed is not None and hits is not None else None,
        hits_tokens=hits,
        dialect="llamacpp",
    )


_READERS: dict[str, Callable[[_Page], Sample]] = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}


def _value(rest: bytes) -> float | None:
    """The number after name and labels; a time may follow it. What no figure here can be says nothing."""
    words = rest.split()
    if not 1 <= len(words) <= 2:
        return None
    try:
        value = float(words[0])
    except ValueError:
        return None
    return value if 0.0 <= value < _TOO_MUCH else None  # false for NaN as well


def _labels(line: bytes) -> dict[str, str]:
    text = line[: line.rfind(b"}")].decode("utf-8", "replace") if b"{" in line else ""
    return dict(_LABEL.findall(text))


def _ratio(value: float | None) -> float | None:
    return min(1.0, value) if value is not None else None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None


def _wholes(texts: Iterable[str]) -> list[int]:
    return [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 19]
