"""What about an engine costs its users time, and which of its flags to set: one warning of each kind a backend.

Owns the codes, the limits and the words. Each is raised once and goes away by itself when what it says is no
longer so; raising and going are told as events. Reads samples; time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

from stickyroute.defaults import ROOM_KV_MARK
from stickyroute.fleet.sample import Sample
from stickyroute.routing.recent import Recent

__all__ = ["CODES", "BackendWarning", "WarningRules", "Warnings"]

PREEMPTIONS = "preemptions"
KV_FULL = "kv_full"
NO_PREFIX_CACHING = "no_prefix_caching"
LOW_HIT_RATE = "low_hit_rate"
CODES = (PREEMPTIONS, KV_FULL, NO_PREFIX_CACHING, LOW_HIT_RATE)

_MEMORY_S = 60.0  # preemptions
_TRAFFIC_MEMORY_S = 300.0
_HYSTERESIS = 0.05
_RETURNING = 0.5  # from here on traffic is multi-turn
_FEWEST_TOKENS = 20_000
_FEWEST_REQUESTS = 20

_VLLM = "vllm"
_SGLANG = "sglang"

_FLAGS: dict[str, dict[str, str]] = {
    PREEMPTIONS: {
        _VLLM: "lower --max-num-seqs, or give it more cache: --gpu-memory-utilization, --kv-cache-dtype fp8",
        _SGLANG: "lower --max-running-requests, raise --schedule-conservativeness, or give it more cache: "
        "--mem-fraction-static, --kv-cache-dtype fp8_e5m2",
    },
    KV_FULL: {
        _VLLM: "give it more cache (--gpu-memory-utilization, --kv-cache-dtype fp8), lower --max-num-seqs or "
        "--max-model-len, or add a backend",
        _SGLANG: "give it more cache (--mem-fraction-static, --kv-cache-dtype fp8_e5m2), lower "
        "--max-running-requests or --context-length, or add a backend",
    },
    NO_PREFIX_CACHING: {
        _VLLM: "start it with --enable-prefix-caching (without --no-enable-prefix-caching)",
        _SGLANG: "start it without --disable-radix-cache",
    },
    LOW_HIT_RATE: {
        _VLLM: "give it more cache (--gpu-memory-utilization, --kv-cache-dtype fp8, --kv-offloading-size), and see "
        "`stickyroute doctor` for prompts that begin differently each time",
        _SGLANG: "give it more cache (--mem-fraction-static, --enable-hierarchical-cache), and see "
        "`stickyroute doctor` for prompts that begin differently each time",
    },
}


@dataclass(frozen=True, slots=True)
class BackendWarning:
    """`code` is one of `CODES`; `text` says what to do; `since_s` is of the fleet's clock."""

    code: str
    since_s: float
    text: str


@dataclass(frozen=True, slots=True)
class WarningRules:
    """`preemptions`: in about a minute. `kv_mark` (0 to 1) for longer than `kv_full_s` seconds. `hit_rate`: 0 to 1."""

    preemptions: float = 3.0
    kv_mark: float = ROOM_KV_MARK
    kv_full_s: float = 60.0
    hit_rate: float = 0.3


class _Seen:
    """What of one backend's samples has to be remembered. Sums fade."""

    def __init__(self) -> None:
        self.before: Sample | None = None
        self.at_s = 0.0
        self.preempted = 0.0
        self.queries = self.hits = 0.0  # tokens
        self.requests = self.returns = 0.0
        self.requests_then = self.returns_then = 0
        self.kv_since_s: float | None = None
        self.raised: dict[str, BackendWarning] = {}


class Warnings:
    """By slot. `note(now_s, slot, code, text, good)` hears of each that is raised or goes."""

    def __init__(
        self, rules: WarningRules, recent: Recent, note: Callable[[float, int, str, str, bool], None]
    ) -> None:
        self.rules = rules
        self._recent = recent
        self._note = note
        self._seen: list[_Seen] = []

    def grow(self, count: int) -> None:
        """There are `count` slots now."""
        self._seen += [_Seen() for _ in range(count - len(self._seen))]

    def forget(self, slot: int) -> None:
        """Another engine is there."""
        seen = self._seen[slot] = _Seen()
        seen.requests_then, seen.returns_then = self._recent.requests[slot], self._recent.returns[slot]

    def of(self, slot: int) -> tuple[BackendWarning, ...]:
        """Those that stand."""
        return tuple(self._seen[slot].raised.values())

    def restarted(self, slot: int) -> None:
        """The engine's sums begin anew; what was raised stands until it is seen to be over."""
        self._seen[slot].before = None

    def record(self, slot: int, sample: Sample, now_s: float) -> None:
        """Look at what an engine says of itself."""
        seen, rules = self._seen[slot], self.rules
        self._add_up(slot, seen, sample, now_s)
        flags = _SGLANG if sample.dialect == _SGLANG else _VLLM

        def judge(code: str, bad: bool, over: bool, told: str) -> None:
            if bad and code not in seen.raised:
                warning = BackendWarning(code, now_s, f"{told}: {_FLAGS[code][flags]}")
                seen.raised[code] = warning
                self._note(now_s, slot, code, warning.text, False)
            elif over and code in seen.raised:
                del seen.raised[code]
                self._note(now_s, slot, code, "no longer so", True)

        judge(
            PREEMPTIONS,
            seen.preempted >= rules.preemptions,
            seen.preempted < 0.2 * rules.preemptions,
            "it preempts running requests for want of cache and computes them again",
        )
        kv = sample.kv_utilization
        if kv is not None:
            if kv < rules.kv_mark:
                seen.kv_since_s = None
            elif seen.kv_since_s is None:
                seen.kv_since_s = now_s
            judge(
                KV_FULL,
                seen.kv_since_s is not None and now_s - seen.kv_since_s >= rules.kv_full_s,
                kv < rules.kv_mark - _HYSTERESIS,
                f"running requests have held over {rules.kv_mark:.0%} of its cache for {rules.kv_full_s:g} s",
            )
        judge(
            NO_PREFIX_CACHING,
            sample.prefix_caching is False,
            sample.prefix_caching is True,
            "prefix caching is off, so every turn of a conversation is computed from its beginning",
        )
        rate = seen.hits / seen.queries if seen.queries else 0.0
        returning = seen.returns / seen.requests if seen.requests else 0.0
        judge(
            LOW_HIT_RATE,
            sample.prefix_caching is not False
            and seen.queries >= _FEWEST_TOKENS
            and seen.requests >= _FEWEST_REQUESTS
            and returning >= _RETURNING
            and rate < rules.hit_rate,
            rate >= rules.hit_rate + _HYSTERESIS or returning < _RETURNING - _HYSTERESIS,
            f"only {rate:.0%} of prompt tokens are found in its cache, though {returning:.0%} of requests are further "
            "turns",
        )

    def _add_up(self, slot: int, seen: _Seen, sample: Sample, now_s: float) -> None:
        before, seen.before = seen.before, sample
        passed_s = max(0.0, now_s - seen.at_s)
        seen.at_s = now_s
        requests, returns = self._recent.requests[slot], self._recent.returns[slot]
        came, came_back = requests - seen.requests_then, returns - seen.returns_then
        seen.requests_then, seen.returns_then = requests, returns
        if before is None:
            return
        seen.preempted = seen.preempted * exp(-passed_s / _MEMORY_S) + _rise(
            before.preemptions, sample.preemptions
        )
        kept = exp(-passed_s / _TRAFFIC_MEMORY_S)
        seen.queries = seen.queries * kept + _rise(before.queries_tokens, sample.queries_tokens)
        seen.hits = seen.hits * kept + _rise(before.hits_tokens, sample.hits_tokens)
        seen.requests = seen.requests * kept + came
        seen.returns = seen.returns * kept + came_back


def _rise(before: int | None, after: int | None) -> int:
    """By how much a sum grew; 0 where it is not known, and where it fell, since it began anew."""
    return max(0, after - before) if before is not None and after is not None else 0
