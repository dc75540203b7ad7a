"""One line a request, written off the event loop.

Owns the queue and the writing thread; `form` is what a line looks like. A finished request costs one tuple on a
queue; formatting and writing happen in the thread, so a slow pipe or a full disk never holds the loop. The queue
is bounded: what does not fit is counted, and the count is logged. No raw affinity keys, headers or bodies get
here: the key is its hash, and text that came from a client is escaped and capped.

Off costs nothing: the composition root builds no AccessLog then.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import threading
from collections import deque
from pathlib import Path
from time import time

from stickyroute.accesslog.form import END, FORMATS, STATUS, Line, Text
from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError

__all__ = ["AccessLog", "Line"]

log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Longest time a line waits in the queue."""
BATCH_LINES = 2048
"""So many waiting lines are written at once, without waiting for FLUSH_S: some four milliseconds, in which the loop may
have to wait. Few batches, and in each few calls that let go of the interpreter's lock: while the thread waits to
have it back, each step of a busy loop wakes it in vain. With 512 lines and two calls more, that was a context
switch for every third request, and made the log several times as dear as its lines."""
FOLLOW_S = 1.0
"""How soon a file that was moved away is opened anew, once lines come."""
MAX_WAITING_LINES = 65_536
"""Lines kept while the output is stuck; later ones are dropped and counted."""
STOP_TIMEOUT_S = 2.0
STDOUT = 1


class AccessLog:
    """The log of one app: `mode` is text or json, `path` the file to append to, None for stdout.

    Of requests that went well a share of `sample`, 0 to 1, has a line; all others have one. A file that was moved
    away is opened anew. `close` writes what is left. `dropped` counts lost lines. Raises ConfigError when it can't
    open the file.
    """

    def __init__(self, mode: str, path: Path | None = None, sample: float = 1.0) -> None:
        if mode not in FORMATS:
            raise ConfigError(f"access_log: {mode!r} is not a format; use off, text or json")
        self.dropped = 0
        self._format = FORMATS[mode]
        self._path = path
        self._fd = STDOUT if path is None else _open(path)
        self._sample = sample
        self._due = 0.0  # lines of requests that went well, less those written
        self._lines: deque[Line] = deque()
        self._some = threading.Event()
        self._many = threading.Event()
        self._woken = False
        self._closing = False
        self._lost_at_last_report = 0
        self._failing = False
        self._followed_s = 0.0
        self._writer = threading.Thread(target=self._run, name="accesslog", daemon=True)
        self._writer.start()

    def retune(self, sample: float) -> None:
        """This share from here on."""
        self._sample = sample

    def write(
        self,
        *,
        request_id: Text,
        peer: Text,
        method: Text,
        route: Text,
        pool: Text,
        key: int | None,
        key_source: Text,
        backend: Text,
        reason: Text,
        attempts: int,
        status: int,
        ttft_s: float | None,
        duration_s: float,
        bytes_in: int,
        bytes_out: int,
        end: Text,
        model: Text = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        expected_tokens: float | None = None,
        answer_tokens: int | None = None,
    ) -> None:
        """Add one finished request: `key` a hash, times in seconds, `end` how it ended.

        `key_source` is the rule's name of the source (`header:x-session-id`), never the value found there. Of the
        prompt's tokens `cached_tokens` were cached and `expected_tokens` believed to be; None is unknown.
        """
        self.add((
            time(), request_id, peer, method, route, model, pool, key, key_source, backend, reason,
            attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
            expected_tokens, answer_tokens, end,
        ))  # fmt: skip

    def add(self, line: Line) -> None:
        """The same, with everything in its place and Unix time first: for who writes a line each request."""
        if self._sample < 1.0 and line[STATUS] < 400 and line[END] == "complete":
            self._due += self._sample
            if self._due < 1.0:
                return
            self._due -= 1.0
        lines = self._lines
        waiting = len(lines)
        if waiting >= MAX_WAITING_LINES:
            self.dropped += 1
            return
        lines.append(line)
        # Append first, look second; the thread clears first, owns to it second and takes third. So no line misses its
        # wake-up. The flag says what the event does, at a tenth of the cost.
        if not self._woken:
            self._woken = True
            self._some.set()
        if waiting == BATCH_LINES:
            self._many.set()

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Write what is left and end; wait at most `timeout_s` seconds for an output that is stuck."""
        self._closing = True
        self._some.set()
        self._many.set()
        self._writer.join(timeout_s)
        if self._writer.is_alive():
            log.warning("access log: its output is stuck, the last lines are lost")

    def _run(self) -> None:
        while not self._closing:
            self._some.wait()
            self._many.wait(FLUSH_S)
            self._some.clear()
            self._many.clear()
            self._woken = False
            self._flush()
        self._flush()
        if self._fd != STDOUT:
            os.close(self._fd)

    def _flush(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            now_s = monotonic()
            if self._path is not None and (self._closing or now_s - self._followed_s >= FOLLOW_S):
                self._follow(self._path)
                self._followed_s = now_s
            _write_all(self._fd, "".join(map(self._format, lines)).encode())
        except (OSError, ConfigError) as error:
            self.dropped += len(lines)
            if not self._failing:
                why = error.strerror if isinstance(error, OSError) else error
                log.warning("access log: cannot be written (%s), dropping lines until it can", why)
            self._failing = True
            return
        self._failing = False
        if self.dropped > self._lost_at_last_report:
            log.warning("access log: %d lines were lost so far", self.dropped)
            self._lost_at_last_report = self.dropped

    def _follow(self, path: Path) -> None:
        """Go on in a new file where the one that is open was moved away, as log rotation does."""
        mine = os.fstat(self._fd)
        if not stat.S_ISREG(mine.st_mode):
            return
        try:
            there = os.stat(path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev):
            fresh = _open(path)
            os.close(self._fd)
            self._fd = fresh


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise ConfigError(f"access_log_path: {path} cannot be opened: {error.strerror}") from error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            sent = os.write(fd, view)
            view = view[sent:]  # in one expression, mypyc would write twice
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [fd], [])
