"""From samples to a table: medians over the slices, ratios to each peer, the targets.

Pure: no process, no clock. Microseconds of CPU, milliseconds of latency, mebibytes of memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.dataplane.rig import DIRECT, TRIES, Samples
from bench.drivers.stickyroute import ASKING, OFF, ON

OURS = "stickyroute"
COSTS = {
    "unary_1k": "unary 1 KB",
    "unary_32k": "unary 32 KB",
    "unary_200k": "unary 200 KB",
    "coalesced": "64 events, one write",
    "token": "streamed token",
}
MIB = 1024 * 1024


def cost_us(phase: str, result: dict[str, Any]) -> float:
    """CPU microseconds per request, stream or token of one slice."""
    units: int = result["tokens"] if phase == "token" else result["requests"]
    return float(result["cpu_s"]) / max(1, units) * 1e6


def middle(values: list[float]) -> float | None:
    return median(values) if values else None


def percentile(values: list[float], share: float) -> float | None:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


@dataclass(frozen=True, slots=True)
class Row:
    """One router. Costs are one value a slice, None where the slice went wrong."""

    name: str
    label: str
    costs_us: dict[str, list[float | None]]
    reads_per_token: float | None
    p50_ms: float | None
    p99_ms: float | None
    idle_rss_mib: float | None
    loaded_rss_mib: float | None
    failures: tuple[str, ...]
    disturbed: dict[str, int]

    def cost_us(self, phase: str) -> float | None:
        """The median over the slices."""
        return middle(self.known(phase))

    def known(self, phase: str) -> list[float]:
        return [cost for cost in self.costs_us[phase] if cost is not None]


def rows(samples: dict[str, Samples]) -> list[Row]:
    """One row a router and one for no router, in the order in which they ran."""
    return [row_of(name, one) for name, one in samples.items()]


def row_of(name: str, samples: Samples) -> Row:
    latencies = [latency for result in samples.good("latency") for latency in result["latencies_ms"]]
    paced = samples.good("token")
    return Row(
        name=name,
        label=samples.label,
        costs_us={
            phase: [
                None if result is None else cost_us(phase, result) for result in samples.slices.get(phase, [])
            ]
            for phase in COSTS
        },
        reads_per_token=middle([result["reads"] / max(1, result["tokens"]) for result in paced]),
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
        idle_rss_mib=middle([value / MIB for value in samples.idle_rss_bytes]),
        loaded_rss_mib=middle([result["rss_bytes"] / MIB for result in paced]),
        failures=tuple(samples.failures),
        disturbed=samples.disturbed,
    )


def ratios(ours: Row, theirs: Row, phase: str) -> list[float]:
    """Our cost over theirs in the same slice, for every slice that both have."""
    pairs = zip(ours.costs_us[phase], theirs.costs_us[phase], strict=False)
    return [mine / other for mine, other in pairs if mine is not None and other]


def ratio(ours: Row, theirs: Row, phase: str) -> float | None:
    """The median, over the slices, of our cost over theirs in the same slice."""
    return middle(ratios(ours, theirs, phase))


def median_range(values: list[float]) -> tuple[float, float] | None:
    """Where the median of what was sampled lies, at 95 %: two order statistics, by the normal approximation of the
    binomial distribution of how many samples lie below it (n/2 and 1.96 sqrt(n)/2 to either side). None for fewer
    than eight."""
    if len(values) < 8:
        return None
    ordered, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = math.floor(len(values) / 2 - half), math.ceil(len(values) / 2 + half)
    return ordered[low - 1], ordered[high]


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(header: list[str], body: list[list[str]]) -> str:
    """A Markdown table, padded so that it also reads in a terminal."""
    widths = [max(len(line[column]) for line in [header, *body]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        first, *rest = (
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = (
        "|"
        + "|".join("-" * (width + 1) + ("-" if not column else ":") for column, width in enumerate(widths))
        + "|"
    )
    return "\n".join([line(header), rule, *(line(cells) for cells in body)])


def cost_table(found: list[Row]) -> str:
    """CPU of the process tree, latency added and memory."""
    bare = next((row for row in found if row.name == DIRECT), None)

    def added(routed: float | None, direct: float | None) -> str:
        return number(None if routed is None or direct is None else routed - direct, 2)

    header = [
        "CPU, us",
        *COSTS.values(),
        "reads a token",
        "added p50 ms",
        "added p99 ms",
        "RSS idle MiB",
        "loaded MiB",
    ]
    body = [
        [
            row.label,
            *(number(row.cost_us(phase), 1 if phase == "token" else 0) for phase in COSTS),
            number(row.reads_per_token, 2),
            added(row.p50_ms, bare.p50_ms if bare else None),
            added(row.p99_ms, bare.p99_ms if bare else None),
            number(row.idle_rss_mib),
            number(row.loaded_rss_mib),
        ]
        for row in found
        if row is not bare
    ]
    return table(header, body)


def spread_table(found: list[Row]) -> str:
    """The quartiles behind each median."""

    def quartiles(row: Row, phase: str) -> str:
        known = row.known(phase)
        return f"{number(percentile(known, 0.25), 1)} to {number(percentile(known, 0.75), 1)}"

    body = [[row.label, *(quartiles(row, phase) for phase in COSTS)] for row in found if row.name != DIRECT]
    return table(["middle half of the slices, us", *COSTS.values()], body)


def ratio_table(found: list[Row]) -> str | None:
    """stickyroute's cost over each peer's: below 1 is cheaper."""
    ours = next((row for row in found if row.name == OURS), None)
    if ours is None:
        return None
    body = [
        [f"to {row.label}", *(number(ratio(ours, row, phase), 2) for phase in COSTS)]
        for row in found
        if row.name not in (OURS, DIRECT)
    ]
    return table(["stickyroute's cost", *COSTS.values()], body)


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that stickyroute must not exceed in one run; with several peers, to each of them."""

    phase: str
    limit: float
    against: tuple[str, ...]

    def verdict(self, by_name: dict[str, Row]) -> str:
        """One line; a target is measured only when all its peers were."""
        peers = [by_name[name] for name in self.against if name in by_name]
        found = [ratio(by_name[OURS], row, self.phase) for row in peers]
        known = [value for value in found if value is not None]
        said = "not measured"
        if len(known) == len(self.against):
            said = f"{max(known):.2f}, {'met' if max(known) <= self.limit else 'MISSED'}"
        return f"{COSTS[self.phase]}: at most {self.limit:.2f} x {' and '.join(self.against)}: {said}"


TARGETS = (
    Target("token", 0.8, ("sglang-router", "vllm-router", "smg")),
    Target("token", 1.1, ("nginx",)),
    Target("coalesced", 0.3, ("sglang-router",)),
    Target("unary_1k", 0.85, ("sglang-router",)),
    Target("unary_32k", 0.75, ("sglang-router",)),
    Target("unary_200k", 0.65, ("sglang-router",)),
)


def verdicts(found: list[Row]) -> list[str]:
    """One line a target; none without stickyroute among the routers."""
    by_name = {row.name: row for row in found}
    return [target.verdict(by_name) for target in TARGETS] if OURS in by_name else []


WATCHING_LIMITS = {"unary_1k": 1.15, "unary_32k": 1.15, "unary_200k": 1.15, "coalesced": 1.15, "token": 1.05}
"""What all that watches requests may cost, times the same with none of it."""


def watching_verdicts(found: list[Row]) -> list[str]:
    """One line a phase for each policy that was measured with everything on and off."""
    by_name = {row.name: row for row in found}
    lines = []
    for name, on in by_name.items():
        policy, _, watching = name.rpartition("+")
        off = by_name.get(f"{policy}+{OFF}")
        if watching not in (ON, ASKING) or off is None:
            continue
        for phase, limit in WATCHING_LIMITS.items():
            value, known = ratio(on, off, phase), median_range(ratios(on, off, phase))
            said = "not measured"
            if value is not None:
                within = f" ({known[0]:.2f} to {known[1]:.2f})" if known else ""
                said = f"{value:.2f}{within}, {'met' if value <= limit else 'MISSED'}"
            lines.append(f"{on.label}: {COSTS[phase]}: at most {limit:.2f} x everything off: {said}")
    return lines


def text(samples: dict[str, Samples]) -> str:
    """The whole report in Markdown."""
    found = rows(samples)
    targets = "\n".join(f"- {line}" for line in verdicts(found) + watching_verdicts(found))
    failures = "\n".join(f"- {row.name}: {failure}" for row in found for failure in row.failures)
    disturbed = "\n".join(f"- {row.name}: {row.disturbed}" for row in found if row.disturbed)
    parts = [
        cost_table(found),
        spread_table(found),
        ratio_table(found),
        targets,
        failures and f"Failures:\n{failures}",
        disturbed and f"Slices disturbed {TRIES} times over, left out:\n{disturbed}",
    ]
    return "\n\n".join(part for part in parts if part)
