"""One line a request, written off the event loop.

Owns the line's fields and the writing thread. A finished request costs one tuple on a queue; formatting and
writing happen in the thread, so a slow pipe or a full disk never holds the loop. The queue is bounded: what
does not fit is counted, and the count is logged. No raw affinity keys, headers or bodies get here: the key is
its hash, and text that came from a client is escaped and capped.

Off costs nothing: the composition root builds no AccessLog then.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
from collections import deque
from functools import lru_cache
from pathlib import Path
from time import gmtime, strftime, time

import orjson

from stickyroute.errors import ConfigError

__all__ = ["AccessLog"]

log = logging.getLogger(__name__)

FLUSH_S = 0.5
"""Longest time a line waits in the queue."""
BATCH_LINES = 512
"""So many waiting lines are written at once, without waiting for FLUSH_S."""
MAX_WAITING_LINES = 65_536
"""Lines kept while the output is stuck; later ones are dropped and counted."""
MAX_TEXT = 256
"""Longest text value of a line, in characters."""
STOP_TIMEOUT_S = 2.0
STDOUT = 1

_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")
"""Printable ASCII without space, quote, equals sign and backslash: needs no quoting in the text form."""

_Text = str | bytes | None
_Value = str | int | float | None
# fmt: off
_Line = tuple[
    float, _Text, _Text, _Text, _Text, _Text, _Text, int | None, _Text, _Text, _Text,
    int, int, float | None, float, int, int, _Text,
]
# fmt: on
"""A line's values in the order of `_fields`: a plain tuple is the cheapest the hot path can make."""


class AccessLog:
    """The log of one app: `mode` is text or json, `path` the file to append to, None for stdout.

    `close` writes what is left. `dropped` counts lost lines. Raises ConfigError when it can't open the file.
    """

    def __init__(self, mode: str, path: Path | None = None) -> None:
        if mode not in _FORMATS:
            raise ConfigError(f"access_log: {mode!r} is not a format; use off, text or json")
        self.dropped = 0
        self._format = _FORMATS[mode]
        self._fd = STDOUT if path is None else _open(path)
        self._lines: deque[_Line] = deque()
        self._some = threading.Event()
        self._many = threading.Event()
        self._closing = False
        self._lost_at_last_report = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="accesslog", daemon=True)
        self._thread.start()

    def write(
        self,
        *,
        request_id: _Text,
        peer: _Text,
        method: _Text,
        route: _Text,
        pool: _Text,
        key: int | None,
        key_source: _Text,
        backend: _Text,
        reason: _Text,
        attempts: int,
        status: int,
        ttft_s: float | None,
        duration_s: float,
        bytes_in: int,
        bytes_out: int,
        end: _Text,
        model: _Text = None,
    ) -> None:
        """Add one finished request: `key` a hash, times in seconds, `end` how it ended.

        `key_source` is the rule's name of the source (`header:x-session-id`), never the value found there.
        """
        lines = self._lines
        waiting = len(lines)
        if waiting >= MAX_WAITING_LINES:
            self.dropped += 1
            return
        lines.append((
            time(), request_id, peer, method, route, model, pool, key, key_source, backend, reason,
            attempts, status, ttft_s, duration_s, bytes_in, bytes_out, end,
        ))  # fmt: skip
        # Append first, look second; the thread clears first and takes second. So no line misses its wake-up.
        if not self._some.is_set():
            self._some.set()
        if waiting == BATCH_LINES:
            self._many.set()

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Write what is left and end; wait at most `timeout_s` seconds for an output that is stuck."""
        self._closing = True
        self._some.set()
        self._many.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("access log: its output is stuck, the last lines are lost")

    def _run(self) -> None:
        while not self._closing:
            self._some.wait()
            self._many.wait(FLUSH_S)
            self._some.clear()
            self._many.clear()
            self._flush()
        self._flush()
        if self._fd != STDOUT:
            os.close(self._fd)

    def _flush(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            _write_all(self._fd, b"".join(map(self._format, lines)))
        except OSError as error:
            self.dropped += len(lines)
            if not self._failing:
                log.warning("access log: cannot be written (%s), dropping lines until it can", error.strerror)
            self._failing = True
            return
        self._failing = False
        if self.dropped > self._lost_at_last_report:
            log.warning("access log: %d lines were lost so far", self.dropped)
            self._lost_at_last_report = self.dropped


def _fields(line: _Line) -> dict[str, _Value]:
    """What a line says, in order: text capped, the key as 16 hex digits, times rounded to microseconds."""
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, end,
    ) = line  # fmt: skip
    whole = int(ts)
    return {
        "ts": f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(whole))}.{int((ts - whole) * 1000):03d}Z",
        "request_id": _capped(request_id),
        "peer": _capped(peer),
        "method": _capped(method),
        "route": _capped(route),
        "model": _capped(model),
        "pool": _capped(pool),
        "key": None if key is None else f"{key:016x}",
        "key_source": _capped(key_source),
        "backend": _capped(backend),
        "reason": _capped(reason),
        "attempts": attempts,
        "status": status,
        "ttft_s": None if ttft_s is None else round(ttft_s, 6),
        "duration_s": round(duration_s, 6),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "end": _capped(end),
    }


def _capped(text: _Text) -> str | None:
    """At most MAX_TEXT characters; None when there is nothing to say."""
    if not text:
        return None
    if isinstance(text, bytes):
        return text[:MAX_TEXT].decode("latin-1")
    return text[:MAX_TEXT]


def _as_json(line: _Line) -> bytes:
    fields = _fields(line)
    try:
        out = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate
        out = b"\x7f"
    if out.isascii() and b"\x7f" not in out:
        return out
    # orjson leaves DEL, C1 controls and line separators as they are: terminals and log readers act on them.
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _as_text(line: _Line) -> bytes:
    return " ".join([f"{name}={_plain(value)}" for name, value in _fields(line).items()]).encode() + b"\n"


def _plain(value: _Value) -> str:
    """A time keeps its microseconds as digits: 9.8e-05 is nothing for grep, awk or eyes."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    return "-" if value is None else str(value)


@lru_cache(maxsize=512)
def _quoted(text: str) -> str:
    """As it stands where that is clear, else as a JSON string: no control character gets into the file.

    "-" alone stands for an absent value. Most texts of a line are among few, hence the cache.
    """
    return text if _PLAIN.fullmatch(text) and text != "-" else json.dumps(text)


_FORMATS = {"text": _as_text, "json": _as_json}


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise ConfigError(f"access_log_path: {path} cannot be opened: {error.strerror}") from error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [fd], [])
