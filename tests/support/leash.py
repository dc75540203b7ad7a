"""Ends a server, and all it started, when the test ends, however that happens: SIGTERM and SIGKILL included.

A server of several processes can't be trusted to notice that its test is gone, and a killed test cleans nothing up.
So a watcher of a few lines waits on a pipe from the test: its end, by whatever cause, is the end of the server.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WATCH = """
import os, signal, sys
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except ProcessLookupError:
    pass  # it ended by itself
"""


@contextmanager
def leashed(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Keep `process`, started with `start_new_session=True`, no longer than the block or this process."""
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # what kills a test's group must not kill it
    )
    assert watcher.stdin is not None
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait()  # before the server's number can belong to somebody else
        process.wait()
