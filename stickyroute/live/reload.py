"""Notices that there is something to read again: a signal, a changed file of the configuration or the certificate.

Owns the looking; what is read and what becomes of it is `Live`'s. Every change is looked at, also one back to what
is in force after a mistake.
"""

from __future__ import annotations

import asyncio

from stickyroute.live.live import Live
from stickyroute.watch.files import POLL_S, FileWatch
from stickyroute.watch.supervisor import Supervisor

__all__ = ["Reloader"]


class Reloader:
    """Looks each `poll_s` seconds, from `start` to `stop`."""

    def __init__(self, live: Live, poll_s: float = POLL_S) -> None:
        self._live = live
        self._poll_s = poll_s
        self._asked = asyncio.Event()
        self._supervisor = Supervisor()

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._supervisor.start("reload on request", self._when_asked)
        self._supervisor.start("reload on change", self._when_changed)

    async def stop(self) -> None:
        """End every task."""
        await self._supervisor.stop()

    def soon(self) -> None:
        """Read everything again, changed or not (SIGHUP). Several at once are one."""
        self._asked.set()

    async def _when_asked(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._live.reload("SIGHUP")
            await self._live.renew_certificate()

    async def _when_changed(self) -> None:
        live = self._live
        configuration = FileWatch(*([live.origin.path] if live.origin.path is not None else []))
        tls = live.settings.tls
        certificate = FileWatch(*([tls.cert, tls.key] if tls is not None else []))
        while True:
            await asyncio.sleep(self._poll_s)
            live.tidy()
            if configuration.changed() and live.settings.reload_on_change:
                await live.reload("the file changed")
            if live.settings.tls != tls:
                tls = live.settings.tls
                certificate = FileWatch(*([tls.cert, tls.key] if tls is not None else []))
            elif certificate.changed():
                await live.renew_certificate()
