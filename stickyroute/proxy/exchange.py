"""One proxied request between its attempts: route, keys, who was tried, the lease it holds.

Owns no decision: each hook of the relay goes to the `Core` that made the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from stickyroute.clock import monotonic
from stickyroute.fleet import Lease, Pool
from stickyroute.http.listener import ClientConnection
from stickyroute.http.message import Request, without
from stickyroute.http.pool import BackendPool
from stickyroute.http.relay import Relay
from stickyroute.http.words import COMPLETE, UPSTREAM_ABORTED, UPSTREAM_DEAD, UPSTREAM_ERROR
from stickyroute.openai.ask_usage import UsageSieve, ask_for_usage
from stickyroute.openai.failures import ABORTED, DEAD, FAILED, LOOK_BYTES, MORE, of_body, of_end, of_opening
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Route
from stickyroute.openai.state import GivenId, gives_id
from stickyroute.openai.usage import (
    FirstContent,
    Usage,
    read_fields,
    read_tail,
    usage_is_asked,
    usage_is_told,
)
from stickyroute.routing.keys import RequestKeys
from stickyroute.tracing import Trace, Tracer

_TRACEPARENT: Final = frozenset({b"traceparent"})
_ENDS: Final = {DEAD: UPSTREAM_DEAD, FAILED: UPSTREAM_ERROR, ABORTED: UPSTREAM_ABORTED}


@dataclass(frozen=True, slots=True)
class Target:
    """One backend as the request path needs it: its connections and the fixed part of a request head."""

    pool: BackendPool
    base_path: bytes
    host_line: bytes
    credential: bytes | None  # a whole Authorization line, or None to pass the client's on


class Judge(Protocol):
    """Who judges a backend by what becomes of its attempts."""

    def answered(self, exchange: Exchange) -> None:
        """The first byte of a reply's body is there."""

    def waited(self, exchange: Exchange, now_s: float) -> None:
        """There is none yet; asked again and again."""


class Core(Protocol):
    """What an exchange asks of the proxy."""

    @property
    def blame(self) -> Judge:
        """Who judges backends."""

    def wants(self, exchange: Exchange, status: int) -> bool:
        """Whether the reply with this status is relayed; False when another attempt has begun."""

    def relays(self, exchange: Exchange, status: int) -> None:
        """The reply with this status is the one that the client gets."""

    def excused(self, exchange: Exchange, failure: str) -> bool:
        """The engine says that it failed, by a word of `openai.failures`; whether another attempt has begun."""

    def attempt_failed(self, exchange: Exchange, failure: str) -> None:
        """An attempt ended before anything was sent to the client."""

    def account(self, exchange: Exchange, end: str) -> None:
        """The exchange is over."""

    def begun(self, exchange: Exchange) -> None:
        """The first real token of a stream, or the first byte of another reply, is on its way."""

    def gave(self, exchange: Exchange, name: bytes) -> None:
        """The reply gave out the id of a response or a session."""

    def reply_lines(self, exchange: Exchange) -> bytes:
        """Response fields to add."""


class Exchange(Relay):
    """State of one proxied request.

    `slot` is the backend of the current attempt, -1 before the first. `may_have_run`: a pooled connection was
    dropped under it, most likely unseen by the backend. `held`: the id of what the request comes back to.
    `blamed`, `silent`: the fleet was told of the attempt at hand that it failed, that nothing came for long.
    `learns`: whether the fleet learns from it, which only who counts tokens goes by.
    `first_token_s`: when the first real token of a stream came, or the first byte of another reply; 0 before, and
    where replies are not looked at.
    """

    __slots__ = (
        "_core",
        "_given",
        "_look",
        "_sieve",
        "_tells_usage",
        "_tracer",
        "asks_stream",
        "attempts",
        "blamed",
        "first_token_s",
        "held",
        "keys",
        "learns",
        "lease",
        "may_have_run",
        "model",
        "pool",
        "reason",
        "route",
        "silent",
        "slot",
        "trace",
        "tried",
    )

    def __init__(
        self,
        core: Core,
        client: ClientConnection,
        request: Request,
        route: Route,
        asked: Asked,
        pool: Pool,
        keys: RequestKeys,
    ) -> None:
        super().__init__(client, request)
        self._core = core
        self.route = route
        # Not `asked` itself: it holds the whole prompt, and a generation can be long.
        self.model = asked.model
        self.asks_stream = asked.stream
        self._tells_usage = usage_is_asked(route.shape, asked.body)
        self.pool = pool
        self.keys = keys
        self.tried: list[int] = []
        self.attempts = 0
        self.learns = False
        self.first_token_s = 0.0
        self.may_have_run = False
        self.blamed = False
        self.silent = False
        self.lease: Lease | None = None
        self.slot = -1
        self.reason = ""
        self.held: bytes | None = None
        self._given = GivenId(route) if gives_id(route) else None
        self._look: FirstContent | None = None
        self._sieve: UsageSieve | None = None
        self.trace: Trace | None = None
        self._tracer: Tracer | None = None

    def accept(self, status: int) -> bool:
        return self._core.wants(self, status)

    def doubts(self, status: int, own: dict[bytes, bytes]) -> bool:
        if status == 500:  # of an engine that takes no requests any more?
            length = own.get(b"content-length", b"")
            short = len(length) < 10 and length.isdigit() and int(length) <= LOOK_BYTES
            return short and self.request.method != b"HEAD"
        if not 200 <= status < 300 or self.request.method == b"HEAD":
            return False
        return own.get(b"content-type", b"").startswith(b"text/event-stream")

    def judge(self, status: int, opening: bytes, last: bool) -> bool | None:
        if status != 500:
            said = of_opening(opening, last)
        elif last:
            said = of_body(opening)
        else:
            return None
        if not said:
            return True
        return None if said == MORE else not self._core.excused(self, said)

    def relaying(self, status: int) -> None:
        self._core.relays(self, status)

    def answering(self) -> None:
        self._core.blame.answered(self)

    def sweep(self, now_s: float) -> None:
        if not self.bytes_out and not self.silent and self.upstream is not None:
            self._core.blame.waited(self, now_s)
        super().sweep(now_s)

    def retry_after_s(self) -> float | None:
        """How long a busy backend asks to be left alone, in seconds; None where it says nothing of the kind."""
        for line in self.upstream.lines if self.upstream is not None else ():
            if line[:12].lower() == b"retry-after:":
                told = line[12:].strip()
                return float(told) if told.isdigit() and len(told) < 6 else None
        return None

    def failed(self, failure: str) -> None:
        self._core.attempt_failed(self, failure)

    def finished(self, end: str) -> None:
        if end == COMPLETE and self.streams and self.status < 300:
            end = _ENDS.get(of_end(self.ending()), end)
        self._core.account(self, end)

    def extra_lines(self) -> bytes:
        return self._core.reply_lines(self)

    def watch_reply(self) -> None:
        """From here on look for the reply's first token, where it can have one or the fleet waits for it, and keep its
        end."""
        self.looking = self.asks_stream or self.learns or self._given is not None
        self.keep_tail()

    @property
    def gives_id(self) -> bool:
        """Whether the reply is still to be looked at for an id."""
        return self._given is not None

    def has_begun(self, piece: bytes) -> bool:
        given = self._given
        if given is not None:
            name = given.feed(piece)
            if name is not None:
                self._core.gave(self, name)
            if given.over:
                self._given = None
        if self.streams:
            look = self._look
            if look is None:
                look = self._look = FirstContent(self.route.shape)
            if not look.feed(piece):
                return False
            if self.tail is not None and not self._tells_usage and not usage_is_told(piece):
                self.tail = None  # nothing is worth keeping, and each token may go the fastest way
        self._core.begun(self)
        return True

    def begin_trace(self, tracer: Tracer, now_s: float) -> None:
        """Trace the request, if it is one to be traced; the backend then hears of our span, not of the client's."""
        request = self.request
        parent = request.headers.get(b"traceparent")
        trace = self.trace = tracer.begin(parent, now_s)
        if trace is not None:
            self._tracer = tracer
            if parent is not None:
                request.lines = without(request.lines, _TRACEPARENT)

    def traced_attempt(self, backend: str) -> bytes:
        """The field that makes what the backend does of this attempt a part of the trace."""
        assert self._tracer is not None
        assert self.trace is not None
        return b"traceparent: %b\r\n" % self._tracer.attempt(self.trace, backend, monotonic())

    def ask_for_usage(self, asked: Asked) -> None:
        """Have a stream end with its usage, and its client get the stream without."""
        request = self.request
        body = ask_for_usage(self.route.shape, request.body, asked.body)
        if body is not None:
            request.body = body
            if b"accept-encoding" in request.headers:
                # What is coded can't be taken apart.
                request.lines = [line for line in request.lines if line[:16].lower() != b"accept-encoding:"]
            self.sieve = self._sieve = UsageSieve()

    def usage(self) -> Usage | None:
        """What the reply said of its tokens, as far as its end was kept."""
        if self._sieve is not None and self._sieve.told is not None:
            return read_fields(self.route.shape, self._sieve.told)
        tail = self.end_of_body()
        return read_tail(self.route.shape, tail, self.streams) if tail else None

    def release(self, now_s: float | None = None) -> None:
        """Give the lease back, if one is held; `now_s` only if the backend did what it was asked."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release(now_s)
