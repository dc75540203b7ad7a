"""Backends from a watched list in YAML or JSON.

Owns the form of the file: a list of URLs and groups as under `backends` in the configuration, or a group with the
one key `backends`. A file with a mistake in it is refused as a whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from stickyroute.errors import ConfigError
from stickyroute.settings import DiscoverySettings, read_backends
from stickyroute.watch.discovery.places import Found, Listener, Place, spec_of
from stickyroute.watch.files import POLL_S, FileWatch

__all__ = ["FileSource", "found_in_file"]


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
            places = await asyncio.to_thread(_places, self._path)
        except ConfigError as error:
            listener.failed(error.message)
        else:
            listener.found(places)

    def again(self) -> None:
        """A file says the same however often it is read."""


def found_in_file(entry: DiscoverySettings) -> list[Found]:
    """What the file of `entry` lists now. Blocks. Raises ConfigError."""
    assert entry.path is not None
    return [Found(spec_of(entry, place), False, entry.label) for place in _places(entry.path)]


def _places(path: Path) -> list[Place]:
    return [
        Place(backend.name, backend.address.host, backend.address.port, own=backend)
        for backend in read_backends(path)
    ]
