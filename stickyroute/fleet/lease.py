"""A held place on a backend, from dispatch to the end of the reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickyroute.openai.usage import Usage
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.view import FleetView

if TYPE_CHECKING:
    from stickyroute.fleet.books import Books

__all__ = ["Lease"]


class Lease:
    """One request in flight on the backend in `slot`, until `release`. Made by `Fleet.lease`.

    `tokens` is the length of the prompt as far as known, `missing_tokens` what of it the backend has to
    compute, `cached_tokens` what it is expected to find in its cache (to the token, where the conversation's length is
    known), `ahead_tokens` what it had to compute before, `expected_s` the time to the first token that follows, all as
    believed at dispatch. `teaches` says whether what becomes of it is learned from, `learns` whether its first token
    is too. Every method may be called again without effect. Times are of one clock, in seconds.
    """

    __slots__ = (
        "_answered", "_books", "_held", "_told", "ahead_tokens", "began_s", "cached_tokens", "expected_s",
        "first_s", "held_blocks",
        "held_tokens", "keys", "learns", "missing_tokens", "running_then", "slot", "streams", "teaches",
        "tokens", "view",
    )  # fmt: skip

    def __init__(
        self,
        books: Books,
        slot: int,
        keys: RequestKeys,
        view: FleetView | None,
        now_s: float,
        streams: bool,
    ) -> None:
        self._books = books
        self.slot = slot
        self.keys = keys
        self.view = view
        self.streams = streams
        self.began_s = now_s
        self.first_s = 0.0
        self.tokens = 0.0
        self.held_tokens = 0.0
        self.held_blocks = 0
        self.missing_tokens = 0.0
        self.cached_tokens = 0.0
        self.ahead_tokens = 0.0
        self.expected_s = 0.0
        self.running_then = 0
        self.learns = True
        self.teaches = True
        self._held = True
        self._answered = False
        self._told = False
        books.open(self, now_s)

    @property
    def answered(self) -> bool:
        """Whether the backend has computed the prompt."""
        return self._answered

    def first_token(self, now_s: float) -> None:
        """The prompt is computed: the first real token of a stream is there (not the headers, not an empty
        first event), or the first byte of a good reply that does not stream."""
        if self._held and not self._answered:
            self._answered = True
            self.first_s = now_s
            self._books.first_token(self, now_s)

    def usage(self, usage: Usage, now_s: float) -> None:
        """What the reply says of its tokens, before or after `release`."""
        if not self._told:
            self._told = True
            self._books.usage(self, usage, now_s)

    def release(self, now_s: float | None = None) -> None:
        """Give the place back, and what is left of the backlog. Only the first call counts.

        `now_s` is None where the reply broke off, so that nothing is learned from when it ended.
        """
        if self._held:
            self._held = False
            self._books.close(self, now_s)
