"""The counters behind every metric, and the little a finished request costs: one look-up, a few additions.

Owns labels and counts, and keeps the number of series bounded. Must not know about sockets, HTTP messages or
policies, nor how a scrape is written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from stickyroute.metrics.histogram import (
    DECISION_BUCKETS_S,
    DURATION_BUCKETS_S,
    INTER_TOKEN_BUCKETS_S,
    LAG_BUCKETS_S,
    PROMPT_BUCKET_TOKENS,
    PROMPT_BUCKETS,
    TTFT_BUCKETS_S,
    Histogram,
)
from stickyroute.metrics.sources import Sources
from stickyroute.metrics.watched import Watched
from stickyroute.openai.usage import Usage

__all__ = ["NONE", "OTHER", "STATUS_CLASSES", "Counters", "Histogram", "Prices"]

OTHER: Final = "other"
"""Label of every pool or route that is not one of ours."""

NONE: Final = "none"
"""`pool`, `backend` or `reason` of a request that was answered before one was chosen."""

MAX_POOLS = 256
"""Pool labels in one process at most; engines that list more models than that share `other`."""

STATUS_CLASSES: Final = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}


class Prices:
    """What a prompt token of each model costs. `each` maps models to the price of one token, "*" is every other
    model; `read` and `written` are what a cached and a newly cached one cost, times that."""

    __slots__ = ("_each", "_other", "_read", "_written")

    def __init__(self, each: Mapping[str, float], read: float, written: float) -> None:
        self._each = dict(each)
        self._other = self._each.pop("*", 0.0)
        self._read = read
        self._written = written

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._other or any(self._each.values()))

    def of(self, pool: str) -> tuple[float, float]:
        """What a cached token of the pool saves, and what a newly cached one costs more than another."""
        price = self._each.get(pool, self._other)
        return price * max(0.0, 1.0 - self._read), price * max(0.0, self._written - 1.0)


_FREE = Prices({}, 0.0, 0.0)


class _Traffic:
    """What one backend did for one pool. `by_prompt` is the pool's: TTFT by length of the prompt."""

    __slots__ = (
        "answer_tokens", "by_prompt", "bytes_in", "bytes_out", "cached_tokens", "cost_extra", "cost_saved", "duration",
        "expected_tokens", "gain", "inter_token", "known_tokens", "penalty", "prompt_tokens", "ttft", "written_tokens",
    )  # fmt: skip

    def __init__(self, by_prompt: list[Histogram], price: tuple[float, float]) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.expected_tokens = 0.0
        self.known_tokens = 0
        self.written_tokens = 0
        self.answer_tokens = 0
        self.cost_saved = 0.0
        self.cost_extra = 0.0
        self.gain, self.penalty = price
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.inter_token = Histogram(INTER_TOKEN_BUCKETS_S)
        self.duration = Histogram(DURATION_BUCKETS_S)
        self.by_prompt = by_prompt


class _Series:
    """Requests with one combination of labels, and the traffic they add to."""

    __slots__ = ("requests", "traffic")

    def __init__(self, traffic: _Traffic) -> None:
        self.requests = 0
        self.traffic = traffic


_Key = tuple[str, str, str, int, str]
"""pool, backend, route, hundreds of the status, reason."""


class Counters:
    """What happened since the start, in plain numbers.

    `client_disconnects` is a plain number: whoever sees a client leave before its reply is complete adds 1.
    `sources` are figures that others keep.
    """

    def __init__(self, fleet: Watched) -> None:
        self.fleet = fleet
        self.sources = Sources()
        self.client_disconnects = 0
        self.series: dict[_Key, _Series] = {}
        self.traffic: dict[tuple[str, str], _Traffic] = {}
        self.by_prompt: dict[str, list[Histogram]] = {}
        self.retries_by_kind: dict[str, int] = {}
        self.failures: dict[tuple[str, str], int] = {}
        self.decisions_by_reason: dict[str, int] = {}
        self.decision = Histogram(DECISION_BUCKETS_S)
        self.lag = Histogram(LAG_BUCKETS_S)
        self._prices = _FREE
        self._known: dict[_Key, _Series] = {}
        self._pools: set[str] = set()

    def record(
        self,
        pool: str,
        backend: str,
        route: str,
        status: int,
        reason: str,
        ttft_s: float | None,
        duration_s: float,
        bytes_in: int,
        bytes_out: int,
        inter_token_s: float | None = None,
        prompt_tokens: float = 0.0,
        usage: Usage | None = None,
        expected_tokens: float | None = None,
    ) -> None:
        """Count one finished request. `ttft_s` is None for a reply that did not stream or had no first token,
        `inter_token_s` for one whose tokens were not told; `expected_tokens` is how many of the prompt's were
        believed to be cached when it was sent, None where nobody looked.

        `pool` is the fleet's label, `backend` the name of the one that answered last ("" for none), `route`
        the template of the route ("" when none matched), `status` what the client saw, sizes are bytes.
        """
        series = self._known.get((pool, backend, route, status // 100, reason))
        if series is None:
            series = self._open(pool, backend, route, status // 100, reason)
        series.requests += 1
        traffic = series.traffic
        traffic.bytes_in += bytes_in
        traffic.bytes_out += bytes_out
        traffic.duration.observe(duration_s)
        if ttft_s is not None:
            traffic.ttft.observe(ttft_s)
            traffic.by_prompt[bisect_left(PROMPT_BUCKET_TOKENS, prompt_tokens)].observe(ttft_s)
            if inter_token_s is not None:
                traffic.inter_token.observe(inter_token_s)
        if usage is None:
            return
        prompt, cached, answer, written = usage
        if answer is not None:
            traffic.answer_tokens += answer
        if cached is not None:
            traffic.prompt_tokens += prompt
            traffic.cached_tokens += cached
            traffic.cost_saved += cached * traffic.gain
            if written:
                traffic.written_tokens += written
                traffic.cost_extra += written * traffic.penalty
            if expected_tokens is not None:
                traffic.expected_tokens += expected_tokens
                traffic.known_tokens += prompt

    def cached_tokens(self) -> tuple[int, int]:
        """Of all prompts whose replies told it: tokens that were cached, and tokens in all."""
        traffic = self.traffic.values()
        return sum(one.cached_tokens for one in traffic), sum(one.prompt_tokens for one in traffic)

    def decisions(self, reason: str) -> None:
        """Count one choice of a backend, those of further attempts included."""
        self.decisions_by_reason[reason] = self.decisions_by_reason.get(reason, 0) + 1

    def retries(self, kind: str) -> None:
        """Count one further attempt; `kind` is why (a word of the proxy's)."""
        self.retries_by_kind[kind] = self.retries_by_kind.get(kind, 0) + 1

    def upstream_failures(self, backend: str, kind: str) -> None:
        """Count one attempt that failed on its backend; `kind` is how (a word of the proxy's)."""
        key = (backend, kind)
        self.failures[key] = self.failures.get(key, 0) + 1

    def decision_time(self, seconds: float) -> None:
        """Observe how long one routing decision took."""
        self.decision.observe(seconds)

    def price(self, prices: Prices) -> None:
        """Count money by these from now on."""
        self._prices = prices
        for (pool, _), traffic in self.traffic.items():
            traffic.gain, traffic.penalty = prices.of(pool)

    @property
    def counts_money(self) -> bool:
        """Whether any model has a price."""
        return self._prices.any

    def _open(self, pool: str, backend: str, route: str, hundreds: int, reason: str) -> _Series:
        """The series of labels not seen before. A pool the fleet does not name is not remembered."""
        label = self._pool_label(pool)
        named = backend or NONE
        key = (label, named, route or OTHER, hundreds if hundreds in STATUS_CLASSES else 0, reason or NONE)
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = _Series(self._traffic_of(label, named))
        if pool in (label, ""):
            self._known[pool, backend, route, hundreds, reason] = series
        return series

    def _traffic_of(self, label: str, named: str) -> _Traffic:
        traffic = self.traffic.get((label, named))
        if traffic is None:
            by_prompt = self.by_prompt.get(label)
            if by_prompt is None:
                by_prompt = self.by_prompt[label] = [Histogram(TTFT_BUCKETS_S) for _ in PROMPT_BUCKETS]
            traffic = self.traffic[label, named] = _Traffic(by_prompt, self._prices.of(label))
        return traffic

    def _pool_label(self, name: str) -> str:
        if not name:
            return NONE
        if name in self._pools:
            return name
        if len(self._pools) >= MAX_POOLS or not self._is_pool(name):
            return OTHER
        self._pools.add(name)
        return name

    def drop_removed(self) -> None:
        """Forget what is labelled with a backend or a model that the fleet no longer has."""
        backends = {backend.name for backend in self.fleet.backends} | {NONE, ""}
        self._pools = {name for name in self._pools if self._is_pool(name)}
        pools = self._pools | {OTHER, NONE, ""}
        for table in (self.series, self._known):
            for key in [key for key in table if key[0] not in pools or key[1] not in backends]:
                del table[key]
        for pair in [pair for pair in self.traffic if pair[0] not in pools or pair[1] not in backends]:
            del self.traffic[pair]
        for failure in [failure for failure in self.failures if failure[0] not in backends]:
            del self.failures[failure]
        for label in [label for label in self.by_prompt if label not in pools]:
            del self.by_prompt[label]

    def _is_pool(self, name: str) -> bool:
        pool = self.fleet.pool(name)
        return pool is not None and pool.label == name
