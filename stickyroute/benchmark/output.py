"""What a command of `stickyroute bench` leaves behind: a printed table, a JSON file, an HTML page, a page of
documentation.

Owns the facts that stand above the figures, and the files. Renders nothing itself.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from stickyroute.benchmark.jobs import Done
from stickyroute.benchmark.report import markdown, page, table
from stickyroute.benchmark.report.document import Report
from stickyroute.benchmark.scenario import Scenario
from stickyroute.build import version_words


def document(scenario: Scenario, found: Sequence[Done], facts: list[str]) -> Report:
    """The report of a scenario's runs; `facts` come after what the scenario says of itself."""
    profile = scenario.spec.profile
    room = profile.blocks * profile.block_size
    return Report(
        title=f"stickyroute bench: {scenario.name}",
        made=made(),
        facts=[
            *([scenario.about] if scenario.about else []),
            f"{scenario.spec.engines} simulated engines, {profile.name}, {room:,} KV tokens each",
            *facts,
        ],
        slo_ttft_s=scenario.slo_ttft_s,
        gpu_hour_usd=scenario.gpu_hour_usd,
        summaries=[one.summary for one in found],
        series=[one.series for one in found if one.series is not None],
        scenario=scenario.digest,
    )


def write(path: Path, text: str) -> None:
    """Never half a file, since the process may be stopped at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def save(report: Report, out: Path, stem: str, documentation: Path | None = None) -> int:
    """Print the table, write JSON and page into `out`, and the page of documentation if there is one to write.

    Returns the exit code: 3 if no run has figures.
    """
    write(out / f"{stem}.json", report.as_json())
    write(out / f"{stem}.html", page.render(report))
    print(table.render(report))
    print(f"\n{out / stem}.json\n{out / stem}.html")
    if documentation is not None:
        write(documentation, markdown.render(report))
        print(documentation)
    return 3 if report.summaries and all(summary.refused for summary in report.summaries) else 0


def made() -> str:
    """When, by what and on what: the line that makes figures citable."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, stickyroute {version_words()}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores{_processor()}"
    )


def _processor() -> str:
    """The name of the processor where the system tells it, as part of a sentence."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f" of {name}" if name else ""
