"""What a scrape says of requests and of the process: names, help texts and rows.

Owns the names of these metrics; docs/metrics.md lists them all, and a test compares the two. Reads the counters
and never changes what they count.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from stickyroute.build import compiled
from stickyroute.metrics.counters import OTHER, STATUS_CLASSES, Counters
from stickyroute.metrics.exposition import Family, counter, gauge, histogram
from stickyroute.metrics.histogram import PROMPT_BUCKETS
from stickyroute.metrics.sources import ConfigFigures, DiscoveryFigures, ShadowFigures

__all__ = ["process_families", "request_families"]

_PAIR = ("pool", "backend")
_Rows = list[tuple[tuple[str, ...], float]]


def request_families(counters: Counters) -> Iterator[Family]:
    """Requests, times, tokens, money."""
    by_choice: dict[tuple[str, ...], float] = {}
    by_route: dict[tuple[str, ...], float] = {}
    for (pool, backend, route, hundreds, reason), series in counters.series.items():
        status = STATUS_CLASSES.get(hundreds, OTHER)
        choice = (pool, backend, status, reason)
        by_choice[choice] = by_choice.get(choice, 0) + series.requests
        by_route[route, status] = by_route.get((route, status), 0) + series.requests
    yield counter(
        "stickyroute_requests",
        "Finished requests.",
        ("pool", "backend", "status", "reason"),
        list(by_choice.items()),
    )
    yield counter(
        "stickyroute_route_requests",
        "Finished requests by route template.",
        ("route", "status"),
        list(by_route.items()),
    )
    yield counter(
        "stickyroute_client_disconnects",
        "Clients that left before their reply was complete.",
        (),
        [((), counters.client_disconnects)],
    )
    traffic = list(counters.traffic.items())
    for name, help_text, attribute in _TIMES:
        yield histogram(name, help_text, _PAIR, [(pair, getattr(one, attribute)) for pair, one in traffic])
    yield histogram(
        "stickyroute_ttft_by_prompt_seconds",
        "Time to first token by length of the prompt in tokens, up to so many; flat where caching works.",
        ("pool", "prompt"),
        [
            ((pool, length), one)
            for pool, all_lengths in list(counters.by_prompt.items())
            if any(any(one.counts) for one in all_lengths)
            for length, one in zip(PROMPT_BUCKETS, all_lengths, strict=True)
        ],
    )
    for name, help_text, attribute in _SUMS:
        yield counter(name, help_text, _PAIR, [(pair, getattr(one, attribute)) for pair, one in traffic])
    if counters.counts_money:
        yield counter(
            "stickyroute_cost_saved",
            "What cached prompt tokens cost less than others, in the currency of prices.",
            _PAIR,
            [(pair, one.cost_saved) for pair, one in traffic],
        )
        yield counter(
            "stickyroute_cost_of_writing",
            "What newly cached prompt tokens cost more than others, in the currency of prices.",
            _PAIR,
            [(pair, one.cost_extra) for pair, one in traffic],
        )


_TIMES = (
    (
        "stickyroute_ttft_seconds",
        "Streamed replies: time from the request's head to the reply's first token.",
        "ttft",
    ),
    (
        "stickyroute_inter_token_seconds",
        "Streamed replies that told their tokens: mean time between two tokens after the first.",
        "inter_token",
    ),
    ("stickyroute_request_duration_seconds", "Time from the request's head to its end.", "duration"),
)
_SUMS = (
    ("stickyroute_received_bytes", "Bytes of requests received from clients.", "bytes_in"),
    ("stickyroute_sent_bytes", "Bytes of replies sent to clients.", "bytes_out"),
    (
        "stickyroute_prompt_tokens",
        "Prompt tokens of replies that told how many of them were cached.",
        "prompt_tokens",
    ),
    ("stickyroute_cached_tokens", "Those of them that the engine had cached.", "cached_tokens"),
    ("stickyroute_written_tokens", "Those of them that the engine says it newly cached.", "written_tokens"),
    (
        "stickyroute_predicted_prompt_tokens",
        "Those of them whose request was looked up in what is believed to be cached.",
        "known_tokens",
    ),
    (
        "stickyroute_expected_cached_tokens",
        "Those of the latter that were believed to be cached where the request was sent.",
        "expected_tokens",
    ),
    ("stickyroute_answer_tokens", "Tokens of answers, of replies that told them.", "answer_tokens"),
)


def process_families(counters: Counters, version: str) -> Iterator[Family]:
    """Routing as a whole, configuration, what watches decisions, and this process."""
    yield counter(
        "stickyroute_decisions",
        "Choices of a backend, further attempts included.",
        ("reason",),
        _by_word(counters.decisions_by_reason),
    )
    yield counter(
        "stickyroute_retries",
        "Attempts beyond a request's first.",
        ("kind",),
        _by_word(counters.retries_by_kind),
    )
    yield histogram(
        "stickyroute_decision_seconds", "Time one routing decision took.", (), [((), counters.decision)]
    )
    sources = counters.sources
    if sources.held_requests is not None:
        yield gauge(
            "stickyroute_held_requests",
            "Requests that wait until a backend can take them.",
            (),
            [((), sources.held_requests())],
        )
    if sources.config is not None:
        yield from _config(sources.config())
    found = list(sources.discovery()) if sources.discovery is not None else []
    if found:
        yield from _discovery(found)
    if sources.breaks is not None:
        rows = list(sources.breaks())
        labels = ("place", "kind")
        yield counter(
            "stickyroute_prefix_breaks",
            "Prompts that differ from the one before of the same key before that one ends.",
            labels,
            [((row.place, row.kind), row.breaks) for row in rows],
        )
        yield counter(
            "stickyroute_prefix_break_tokens",
            "Tokens of prompts past such a difference that had been cached.",
            labels,
            [((row.place, row.kind), row.tokens) for row in rows],
        )
    shadow = sources.shadow() if sources.shadow is not None else None
    if shadow is not None:
        yield from _shadow(shadow)
    if sources.log_lines_dropped is not None:
        yield counter(
            "stickyroute_access_log_dropped",
            "Lines of the access log that could not be written.",
            (),
            [((), sources.log_lines_dropped())],
        )
    if sources.spans_dropped is not None:
        yield counter(
            "stickyroute_spans_dropped",
            "Spans of traces that could not be sent.",
            (),
            [((), sources.spans_dropped())],
        )
    yield histogram(
        "stickyroute_loop_lag_seconds",
        "How late this process's event loop was, looked at twice a second.",
        (),
        [((), counters.lag)],
    )
    yield gauge(
        "stickyroute_build_info",
        "Always 1; the labels say what runs.",
        ("version", "build", "python"),
        [((version, "compiled" if compiled() else "interpreted", platform.python_version()), 1)],
    )


def _config(figures: ConfigFigures) -> Iterator[Family]:
    yield gauge(
        "stickyroute_config_generation",
        "Which configuration is in force, counted from 1 since the start.",
        (),
        [((), figures.generation)],
    )
    yield counter(
        "stickyroute_config_reloads",
        "Configurations that came after the first, by what became of them.",
        ("result",),
        [(("applied",), figures.applied), (("refused",), figures.refused)],
    )
    yield gauge(
        "stickyroute_config_last_reload_failed",
        "1 while the last configuration that came was refused, else 0.",
        (),
        [((), int(figures.failing))],
    )
    yield gauge(
        "stickyroute_config_loaded_timestamp_seconds",
        "When the configuration in force was loaded, seconds since the epoch.",
        (),
        [((), figures.loaded_at_s)],
    )


def _discovery(found: list[DiscoveryFigures]) -> Iterator[Family]:
    labels = ("source",)
    yield gauge(
        "stickyroute_discovery_backends",
        "Backends that a source of discovery found last.",
        labels,
        [((row.source,), row.backends) for row in found],
    )
    yield counter(
        "stickyroute_discovery_failures",
        "Lookups of a source of discovery that gave no answer.",
        labels,
        [((row.source,), row.failures) for row in found],
    )
    yield gauge(
        "stickyroute_discovery_failing",
        "1 while the last lookup of a source gave no answer that is used, else 0.",
        labels,
        [((row.source,), int(row.failing)) for row in found],
    )


def _shadow(figures: ShadowFigures) -> Iterator[Family]:
    labels, values = ("policy",), (figures.policy,)
    yield counter(
        "stickyroute_shadow_decisions",
        "Requests that the shadow policy decided as well, by whether it chose the same backend.",
        ("policy", "same"),
        [
            ((figures.policy, "yes"), figures.agreed),
            ((figures.policy, "no"), figures.decisions - figures.agreed),
        ],
    )
    for name, help_text, value in (
        ("prompt_tokens", "Prompt tokens of those requests.", figures.prompt_tokens),
        (
            "expected_cached_tokens",
            "Those of them that would have been cached where the shadow policy sends them.",
            figures.expected_tokens,
        ),
        (
            "live_expected_cached_tokens",
            "Those of them believed to be cached where they were sent.",
            figures.live_expected_tokens,
        ),
    ):
        yield counter(f"stickyroute_shadow_{name}", help_text, labels, [(values, value)])
    yield gauge(
        "stickyroute_shadow_imbalance",
        "Prompt tokens of the backend with most of them by the mean, as the shadow policy spreads them.",
        labels,
        [(values, figures.imbalance)],
    )
    yield gauge(
        "stickyroute_shadow_live_imbalance",
        "The same as they were sent.",
        labels,
        [(values, figures.live_imbalance)],
    )


def _by_word(counts: dict[str, int]) -> _Rows:
    return [((word,), count) for word, count in counts.items()]
