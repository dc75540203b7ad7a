"""What the doctor has found so far: breaks by who, where and why, and how much of prompts is ever repeated.

Owns the sums, all bounded however many tenants there are. Rates are over the last half hour, weighted by age; time
is an argument. Knows no prompts, only breaks.
"""

from __future__ import annotations

from collections import Counter
from math import exp
from typing import Any, Final

from stickyroute.routing.doctor.compare import Break

__all__ = ["Finding", "Findings", "Group"]

_MEMORY_S: Final = 1800.0
_YOUNGEST_S: Final = 60.0  # a rate is not told from less
_GROUPS: Final = 256
_FINDINGS: Final = 512
_KEYS: Final = 256  # counted apart
_NAMED: Final = 3
_INDEXES: Final = 16
_SAMPLES: Final = 2
_BINS: Final = 50


class _Rate:
    """A sum that fades."""

    __slots__ = ("_at_s", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_s = 0.0

    def add(self, amount: float, now_s: float) -> None:
        self._sum = self._sum * exp(min(0.0, self._at_s - now_s) / _MEMORY_S) + amount
        self._at_s = max(self._at_s, now_s)

    def per_hour(self, began_s: float, now_s: float) -> float:
        age_s = max(_YOUNGEST_S, now_s - began_s)
        kept = self._sum * exp(min(0.0, self._at_s - now_s) / _MEMORY_S)
        return kept * 3600.0 / (_MEMORY_S * (1.0 - exp(-age_s / _MEMORY_S)))


class Finding:
    """One kind of break of one tenant's prompts in one pool."""

    __slots__ = (
        "breaks",
        "indexes",
        "keys",
        "kind",
        "last_s",
        "lost_tokens",
        "named",
        "offsets",
        "place",
        "pool",
        "rate",
        "samples",
        "tenant",
    )

    def __init__(self, tenant: str, pool: str, place: str, kind: str) -> None:
        self.tenant, self.pool, self.place, self.kind = tenant, pool, place, kind
        self.breaks = 0.0
        self.lost_tokens = 0.0
        self.last_s = 0.0
        self.rate = _Rate()
        self.keys: set[int] = set()
        self.named: list[int] = []
        self.indexes: Counter[int] = Counter()
        self.offsets = (1 << 62, 0)
        self.samples: list[str] = []


class Group:
    """One tenant's prompts in one pool: how many, and how many could be compared with an earlier one."""

    __slots__ = ("broken", "compared", "requests")

    def __init__(self) -> None:
        self.requests = 0.0
        self.compared = 0.0
        self.broken = 0.0


class Findings:
    """Sums since `began_s`."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.found: dict[tuple[str, str, str, str], Finding] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.by_place: Counter[tuple[str, str]] = Counter()
        """Breaks by place and kind."""
        self.lost_by_place: Counter[tuple[str, str]] = Counter()
        """And the tokens that were computed again for them."""
        self.requests = 0.0
        self.tokens = 0.0
        self._overlaps = [0.0] * (_BINS + 1)

    def record(
        self,
        tenant: str,
        pool: str,
        key: int,
        named: bool,
        tokens: float,
        overlap: float,
        compared: bool,
        broken: Break | None,
        tokens_per_byte: float,
        now_s: float,
        weight: float,
        sample: str | None,
    ) -> None:
        """One prompt of `tokens`, of which the part `overlap` began as an earlier one did. It stands for `weight`
        prompts. `named`: the key is the client's own."""
        self.requests += weight
        self.tokens += weight * tokens
        self._overlaps[int(overlap * _BINS)] += weight
        group = self.groups.get((tenant, pool))
        if group is None:
            if len(self.groups) >= _GROUPS:
                # Tenants may be what clients say they are: many that came once must hide nobody.
                least = min(
                    self.groups, key=lambda name: (self.groups[name].broken, self.groups[name].requests)
                )
                del self.groups[least]
            group = self.groups[tenant, pool] = Group()
        group.requests += weight
        if compared:
            group.compared += weight
        if broken is None:
            return
        group.broken += weight
        self.by_place[broken.place, broken.kind] += round(weight)
        name = (tenant, pool, broken.place, broken.kind)
        finding = self.found.get(name)
        if finding is None:
            if len(self.found) >= _FINDINGS:
                del self.found[min(self.found, key=lambda name: self.found[name].lost_tokens)]
            finding = self.found[name] = Finding(*name)
        finding.last_s = now_s
        lost = broken.lost_bytes * tokens_per_byte
        self.lost_by_place[broken.place, broken.kind] += round(weight * lost)
        finding.breaks += weight
        finding.lost_tokens += weight * lost
        finding.rate.add(weight * lost, now_s)
        if len(finding.keys) < _KEYS:
            finding.keys.add(key)
        if named and len(finding.named) < _NAMED and key not in finding.named:
            finding.named.append(key)
        if broken.number in finding.indexes or len(finding.indexes) < _INDEXES:
            finding.indexes[broken.number] += 1
        low, high = finding.offsets
        finding.offsets = (min(low, broken.offset), max(high, broken.offset))
        if sample is not None:
            finding.samples = [*finding.samples[1 - _SAMPLES :], sample]

    def median_overlap(self) -> float | None:
        """Half of all prompts repeat at least so much of an earlier one, 0 to 1. None before there were any."""
        if not self.requests:
            return None
        left = self.requests / 2
        for number, count in enumerate(self._overlaps):
            left -= count
            if left <= 0:
                return number / _BINS
        return 1.0

    def told(self, now_s: float, samples: bool = False) -> list[dict[str, Any]]:
        """Every finding as JSON values, the most expensive first."""
        rows = []
        for finding in self.found.values():
            group = self.groups.get((finding.tenant, finding.pool)) or Group()
            low, high = finding.offsets
            row: dict[str, Any] = {
                "tenant": finding.tenant or None,
                "pool": finding.pool,
                "place": finding.place,
                "message": finding.indexes.most_common(1)[0][0] if finding.place == "message" else None,
                "offset_bytes": [low, high],
                "kind": finding.kind,
                "breaks": round(finding.breaks),
                "share_of_followups": round(finding.breaks / group.compared, 4) if group.compared else None,
                "keys": len(finding.keys),
                "example_keys": [f"{key:016x}" for key in finding.named],
                "lost_tokens": round(finding.lost_tokens),
                "lost_tokens_per_hour": round(finding.rate.per_hour(self.began_s, now_s)),
                "last_seen_s": round(max(0.0, now_s - finding.last_s), 1),
            }
            if samples and finding.samples:
                row["samples"] = finding.samples
            rows.append(row)
        return sorted(
            rows, key=lambda row: (-row["lost_tokens_per_hour"], -row["breaks"], row["place"], row["kind"])
        )
