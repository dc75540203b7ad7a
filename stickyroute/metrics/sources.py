"""Figures that others keep and a scrape shows: plain values, asked for when the scrape comes.

Owns their shapes. Whoever keeps them hands a callable to `Counters`; None is a part that is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["ConfigFigures", "DiscoveryFigures", "PrefixBreaks", "ShadowFigures", "Sources"]


class ConfigFigures(NamedTuple):
    """`generation` of the configuration in force, how many were applied and refused since the start, when the one in
    force was loaded (Unix time), and whether the last one that came was refused."""

    generation: int
    applied: int
    refused: int
    loaded_at_s: float
    failing: bool


class DiscoveryFigures(NamedTuple):
    """How one source of discovery (`source` is its name in the configuration's terms) goes: the backends it found
    last, the lookups that failed since the start, and whether the last one did."""

    source: str
    backends: int
    failures: int
    failing: bool


class PrefixBreaks(NamedTuple):
    """How often prompts of one key broke with the one before, at a `place` and in a `kind` of way (words of the
    doctor's), and the tokens that were computed again for it."""

    place: str
    kind: str
    breaks: int
    tokens: float


class ShadowFigures(NamedTuple):
    """What a shadow `policy` would have done, over the requests it saw: how many, for how many it chose the same
    backend, their prompt tokens, those it expects to be cached where it sends them, those expected where they were
    sent, and how uneven either spreads prompt tokens (fullest backend by mean)."""

    policy: str
    decisions: int
    agreed: int
    prompt_tokens: float
    expected_tokens: float
    live_expected_tokens: float
    imbalance: float
    live_imbalance: float


class Sources:
    """Where to ask. Set by the composition root; all None at first."""

    def __init__(self) -> None:
        self.config: Callable[[], ConfigFigures] | None = None
        self.discovery: Callable[[], Iterable[DiscoveryFigures]] | None = None
        self.breaks: Callable[[], Iterable[PrefixBreaks]] | None = None
        self.shadow: Callable[[], ShadowFigures | None] | None = None
        self.log_lines_dropped: Callable[[], int] | None = None
        self.spans_dropped: Callable[[], int] | None = None
        self.held_requests: Callable[[], int] | None = None
