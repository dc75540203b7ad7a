"""Who hears of each request that was sent: the doctor, the shadow policy.

Owns that what watches never breaks what it watches: a witness that raises is logged and not called again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stickyroute.openai.request import Asked
from stickyroute.proxy.exchange import Exchange

__all__ = ["Witness", "Witnesses"]

log = logging.getLogger(__name__)

Witness = Callable[[Exchange, Asked, str], None]
"""Hears of a request that was sent: what it asks and whose it is (the tenant). Must cost microseconds and not keep the
exchange past its end."""


class Witnesses:
    """Them all, in order; false without any."""

    __slots__ = ("_all",)

    def __init__(self, witnesses: tuple[Witness, ...]) -> None:
        self._all = witnesses

    def __bool__(self) -> bool:
        return bool(self._all)

    def tell(self, exchange: Exchange, asked: Asked, tenant: str) -> None:
        """A request was sent, and its exchange still runs."""
        for witness in self._all:
            try:
                witness(exchange, asked, tenant)
            except Exception:
                log.exception("a witness of requests failed and is not asked again")
                self._all = tuple(other for other in self._all if other is not witness)
