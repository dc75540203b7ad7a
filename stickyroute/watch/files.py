"""Whether a file changed: looked at by its status, which is cheap, and read only when that differs.

Owns what counts as a change. A file that an editor replaces by renaming, and a symlink of a Kubernetes ConfigMap
that is turned to another folder, are changes like any other. Knows nothing of what a file holds.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["POLL_S", "FileWatch"]

POLL_S = 0.5
"""Seconds between two looks. A look is one system call of about 2 microseconds."""

_Status = tuple[int, int, int, int] | None


class FileWatch:
    """Compares `paths` with how they were at the last look; the first look is at the time of making it."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._now()
        self._told = self._seen

    def changed(self) -> bool:
        """Whether something changed since this was last true, and has stood still for one look.

        Whoever writes a file in several goes is left to finish. Never raises: a file that cannot be looked at
        is one that is not there.
        """
        now = self._now()
        still, self._seen = now == self._seen, now
        if not still or now == self._told:
            return False
        self._told = now
        return True

    def _now(self) -> tuple[_Status, ...]:
        return tuple(_status(path) for path in self._paths)


def _status(path: Path) -> _Status:
    try:
        told = os.stat(path)
    except (OSError, ValueError):
        return None
    # The time of the last change of the inode too: a copy that keeps times and size is a change as well.
    return (told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns)
