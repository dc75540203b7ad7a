"""One line a request, written off the event loop.

Owns the line's fields and the writing thread. A finished request costs one tuple on a list; formatting and
writing happen in the thread, so a slow pipe or a full disk never holds the loop. The buffer is bounded: what
does not fit is counted and the count is logged. No raw affinity keys, headers or bodies get here: the key is
its hash, and text that came from a client is escaped and capped. Off is None: `AccessLog.open("off", ...)`
returns None and nothing is called.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Final, NamedTuple

import orjson

from stickyroute.errors import ConfigError

__all__ = ["CLIENT_LEFT", "COMPLETE", "UPSTREAM_DIED", "AccessLog"]

log = logging.getLogger(__name__)

COMPLETE: Final = "complete"
CLIENT_LEFT: Final = "client_left"
UPSTREAM_DIED: Final = "upstream_died"

FLUSH_S = 0.5
"""Longest time a line waits in the buffer."""
BATCH_LINES = 512
"""So many waiting lines are written at once, without waiting for FLUSH_S."""
MAX_WAITING_LINES = 65_536
"""Lines kept while the output is stuck; later ones are dropped and counted."""
MAX_TEXT = 256
"""Longest text value of a line, in characters."""
STOP_TIMEOUT_S = 2.0


class Line(NamedTuple):
    """The fields of a line in their order; times in seconds, sizes in bytes, `key` is a hash."""

    ts: float
    request_id: str
    method: str
    route: str
    model: str | None
    pool: str
    key: int | None
    key_source: str
    backend: str
    reason: str
    attempts: int
    status: int
    ttft_s: float | None
    duration_s: float
    bytes_in: int
    bytes_out: int
    end: str


_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")
"""Printable ASCII without space, quote, equals sign and backslash: needs no quoting in the text form."""

_Raw = tuple[
    float,
    str,
    str,
    str,
    str | None,
    str,
    int | None,
    str,
    str,
    str,
    int,
    int,
    float | None,
    float,
    int,
    int,
    str,
]
"""A Line's values before it is one: a plain tuple costs the hot path a third of a named one."""


class AccessLog:
    """The log of one app. Build it with `open`; `close` writes what is left."""

    def __init__(self, mode: str, fd: int, *, owns_fd: bool) -> None:
        self.dropped = 0
        self._format = _as_json if mode == "json" else _as_text
        self._fd = fd
        self._owns_fd = owns_fd
        self._lines: deque[_Raw] = deque()
        self._some = threading.Event()
        self._many = threading.Event()
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="accesslog", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, mode: str, path: Path | None) -> AccessLog | None:
        """The log for `mode` (off, text, json), appending to `path` or to stdout. None when off.

        Raises ConfigError when the file cannot be opened or the mode is unknown.
        """
        if mode == "off":
            return None
        if mode not in ("text", "json"):
            raise ConfigError(f"access_log: {mode!r} is not a mode; use off, text or json")
        if path is None:
            return cls(mode, 1, owns_fd=False)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise ConfigError(f"access_log_path: {path} cannot be opened: {error.strerror}") from error
        return cls(mode, fd, owns_fd=True)

    def write(
        self,
        request_id: str,
        method: str,
        route: str,
        model: str | None,
        pool: str,
        key: int | None,
        key_source: str,
        backend: str,
        reason: str,
        attempts: int,
        status: int,
        ttft_s: float | None,
        duration_s: float,
        bytes_in: int,
        bytes_out: int,
        end: str,
    ) -> None:
        """Add one finished request: `key` a hash, times in seconds, `end` one of the three words."""
        lines = self._lines
        waiting = len(lines)
        if waiting >= MAX_WAITING_LINES:
            self.dropped += 1
            return
        lines.append(
            (
                time(),
                request_id,
                method,
                route,
                model,
                pool,
                key,
                key_source,
                backend,
                reason,
                attempts,
                status,
                ttft_s,
                duration_s,
                bytes_in,
                bytes_out,
                end,
            )
        )
        # Append first, look second; the thread clears first and takes second. So no line waits without a
        # wake-up.
        if not self._some.is_set():
            self._some.set()
        if waiting == BATCH_LINES:
            self._many.set()

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Write what is left and end; wait at most `timeout_s` seconds for a reader that does not read."""
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
        if self._owns_fd:
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
                log.warning(
                    "access log: cannot be written (%s), lines are dropped until it can", error.strerror
                )
            self._failing = True
            return
        if self._failing:
            log.warning("access log: writes again, %d lines were lost so far", self.dropped)
        self._failing = False


def _fields(raw: _Raw) -> dict[str, str | float | None]:
    """What a line says: text capped, the key as 16 hex digits, times rounded to microseconds."""
    line = Line._make(raw)
    fields: dict[str, str | float | None] = line._asdict()
    stamp = datetime.fromtimestamp(line.ts, UTC).isoformat(timespec="milliseconds")
    fields["ts"] = stamp.replace("+00:00", "Z")
    fields["key"] = None if line.key is None else f"{line.key:016x}"
    fields["ttft_s"] = None if line.ttft_s is None else round(line.ttft_s, 6)
    fields["duration_s"] = round(line.duration_s, 6)
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = value[:MAX_TEXT] or None
    return fields


def _as_json(raw: _Raw) -> bytes:
    fields = _fields(raw)
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # text with lone surrogates, which orjson refuses
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _as_text(raw: _Raw) -> bytes:
    return (" ".join(f"{name}={_text(value)}" for name, value in _fields(raw).items()) + "\n").encode()


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        # JSON's escapes keep every control and non-ASCII character out of the file; a lone "-" is quoted to
        # differ from an absent value.
        return value if _PLAIN.fullmatch(value) and value != "-" else json.dumps(value)
    return str(value)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [fd], [])
