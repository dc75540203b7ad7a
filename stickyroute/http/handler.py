"""What a relay asks whoever decides: whether a reply is relayed, and what to do about a failed attempt.

Owns no state. The data plane calls these; `proxy.Exchange` answers them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class RelayHandler(ABC):
    """The decisions about one exchange."""

    __slots__ = ()

    @abstractmethod
    def accept(self, status: int) -> bool:
        """Whether the reply with this status is relayed. False: the subclass has begun another attempt."""

    @abstractmethod
    def failed(self, failure: str) -> None:
        """An attempt failed and nothing was sent: try again or answer. `failure` is a word of `upstream`."""

    @abstractmethod
    def finished(self, end: str) -> None:
        """The exchange is over; called once, after the last byte went to the client's transport."""

    @abstractmethod
    def extra_lines(self) -> bytes:
        """Response fields the proxy adds, complete lines."""

    def doubts(self, status: int, own: dict[bytes, bytes]) -> bool:
        """Whether the beginning of the body must be seen before the reply is relayed; `own`: its fields."""
        return False

    def judge(self, status: int, opening: bytes, last: bool) -> bool | None:
        """Whether a reply in doubt is relayed, by the beginning of its body; `last`: it is all of it.

        None: not known yet, never if `last`. False: the subclass has begun another attempt or answered.
        """
        return True

    @abstractmethod
    def relaying(self, status: int) -> None:
        """The reply with this status is the one that is relayed; nothing of it was sent yet."""

    @abstractmethod
    def answering(self) -> None:
        """The first byte of the body is on its way to the client."""

    def has_begun(self, piece: bytes) -> bool:
        """Whether the reply proper began with this piece of the body; asked until it did, if `looking`."""
        return True
