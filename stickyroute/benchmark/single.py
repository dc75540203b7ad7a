"""One workload over HTTP against one address, whatever stands behind it.

Owns where the hit rate of such a run comes from: the engines' counters if they can be asked, else what their
replies report. Starts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import aiohttp

from stickyroute.benchmark.engines import Engines
from stickyroute.benchmark.load import Load
from stickyroute.benchmark.results import EngineTotals, Row, Run
from stickyroute.benchmark.workloads import Workload
from stickyroute.errors import ConfigError


async def run_single(
    url: str, model: str, workload: Workload, seed: int, engines: Sequence[str], on_row: Callable[[Row], None]
) -> tuple[Run, list[str]]:
    """The run, and facts about it for its reader. `engines` are base URLs.

    Raises ConfigError when an engine's metrics cannot be read.
    """
    counters = Engines([engine.rstrip("/") for engine in engines])
    try:
        try:
            await counters.begin()
        except (aiohttp.ClientError, OSError) as error:
            raise ConfigError(f"--engine: no metrics to be had: {error}") from None
        load = Load(url, model, on_row=on_row)
        requests = workload.requests(Random(f"workload {seed}"))
        loaded = await load.run(requests, counters.sample if engines else None)
        gained = await counters.gained() if engines else _reported(loaded.rows)
    finally:
        await counters.end()
    run = Run(
        workload.name, url, seed, loaded.duration_s, loaded.rows, gained, loaded.samples,
        loaded.lateness, how="http", rate=workload.rate,
    )  # fmt: skip
    late = loaded.lateness
    errors = Counter(row.error for row in loaded.rows if row.error)
    failed = ", ".join(f"{count} x {kind}" for kind, count in errors.most_common(3))
    source = "the engines' counters" if engines else "usage.cached_tokens of the replies"
    return run, [
        f"hit rate by {source}",
        f"load generator late by {late.p50_s * 1e3:.1f} ms p50, {late.p99_s * 1e3:.1f} ms p99",
        *([f"failed: {failed}"] if failed else []),
    ]


def _reported(rows: list[Row]) -> list[EngineTotals]:
    """Without engines to ask, what their replies said."""
    known = [row for row in rows if row.cached_tokens is not None]
    return [
        EngineTotals(
            queries=sum(row.prompt_tokens for row in known),
            hits=sum(row.cached_tokens or 0 for row in known),
            requests=len(rows),
        )
    ]
