"""Backends from a watched list in YAML or JSON.

Owns the form of the file: a list of URLs and groups as under `backends` in the configuration, or a group with the
one key `backends`. A file with a mistake in it is refused as a whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from stickyroute.errors import ConfigError
from stickyroute.settings import BackendSettings, read_backends
from stickyroute.watch.discovery.places import Listener, Place
from stickyroute.watch.files import POLL_S, FileWatch

__all__ = ["FileSource"]


class FileSource:
    """The list in `path`, looked at each POLL_S seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, listener: Listener) -> None:
        watch = FileWatch(self._path)
        changed = True
        while True:
            if changed:
                await self._read(listener)
            await asyncio.sleep(POLL_S)
            changed = watch.changed()

    async def _read(self, listener: Listener) -> None:
        try:
            backends = await asyncio.to_thread(read_backends, self._path)
        except ConfigError as error:
            listener.failed(error.message)
        else:
            listener.found([_place(backend) for backend in backends])

    def again(self) -> None:
        """A file says the same however often it is read."""


def _place(backend: BackendSettings) -> Place:
    address = backend.address
    return Place(backend.name, address.host, address.port, own=backend)
