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
import stat
import threading
from collections import deque
from functools import lru_cache
from pathlib import Path
from time import gmtime, strftime, time
from typing import Final

import orjson

from stickyroute.errors import ConfigError

__all__ = ["AccessLog", "Line"]

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
# fmt: off
Line = tuple[
    float, _Text, _Text, _Text, _Text, _Text, _Text, int | None, _Text, _Text, _Text,
    int, int, float | None, float, int, int, int | None, int | None, float | None, int | None, _Text,
]
# fmt: on
"""A line's values in the order of `FIELDS`: a plain tuple is the cheapest the hot path can make."""

FIELDS = (
    "ts", "request_id", "peer", "method", "route", "model", "pool", "key", "key_source", "backend", "reason",
    "attempts", "status", "ttft_s", "duration_s", "bytes_in", "bytes_out", "prompt_tokens", "cached_tokens",
    "expected_tokens", "answer_tokens", "end",
)  # fmt: skip
_STATUS: Final = 12  # the places of two of them
_END: Final = 21


class AccessLog:
    """The log of one app: `mode` is text or json, `path` the file to append to, None for stdout.

    Of requests that went well a share of `sample`, 0 to 1, has a line; all others have one. A file that was moved
    away is opened anew. `close` writes what is left. `dropped` counts lost lines. Raises ConfigError when it can't
    open the file.
    """

    def __init__(self, mode: str, path: Path | None = None, sample: float = 1.0) -> None:
        if mode not in _FORMATS:
            raise ConfigError(f"access_log: {mode!r} is not a format; use off, text or json")
        self.dropped = 0
        self._format = _FORMATS[mode]
        self._path = path
        self._fd = STDOUT if path is None else _open(path)
        self._sample = sample
        self._due = 0.0  # lines of requests that went well, less those written
        self._lines: deque[Line] = deque()
        self._some = threading.Event()
        self._many = threading.Event()
        self._closing = False
        self._lost_at_last_report = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="accesslog", daemon=True)
        self._thread.start()

    def retune(self, sample: float) -> None:
        """This share from here on."""
        self._sample = sample

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
        if self._sample < 1.0 and line[_STATUS] < 400 and line[_END] == "complete":
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
            if self._path is not None:
                self._follow(self._path)
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


# The thread's part. What most lines have in common is written once: a line costs its CPU at the data plane's expense.


def _as_json(line: Line) -> str:
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    short = model is None or len(model) <= MAX_TEXT
    if short and type(request_id) is bytes and type(method) is bytes and len(request_id) <= MAX_TEXT:
        try:
            out = orjson.dumps(
                {
                    "ts": _time(ts),
                    "request_id": request_id.decode("latin-1") or None,
                    "peer": peer or None,
                    "method": method.decode("latin-1") or None,
                    "route": route or None,
                    "model": model or None,
                    "pool": pool or None,
                    "key": None if key is None else f"{key:016x}",
                    "key_source": key_source or None,
                    "backend": backend or None,
                    "reason": reason or None,
                    "attempts": attempts,
                    "status": status,
                    "ttft_s": None if ttft_s is None else round(ttft_s, 6),
                    "duration_s": round(duration_s, 6),
                    "bytes_in": bytes_in,
                    "bytes_out": bytes_out,
                    "prompt_tokens": prompt_tokens,
                    "cached_tokens": cached_tokens,
                    "expected_tokens": None if expected_tokens is None else round(expected_tokens),
                    "answer_tokens": answer_tokens,
                    "end": end,
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
        except TypeError:  # a lone surrogate, or bytes where text is usual
            return _odd_as_json(line)
        # orjson leaves DEL, C1 controls and line separators as they are: terminals and log readers act on them.
        if out.isascii() and b"\x7f" not in out:
            return out.decode()
    return _odd_as_json(line)


def _odd_as_json(line: Line) -> str:
    """The same for whatever a client may have put in it."""
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    return _JSON % (
        _time(ts), _json_text(request_id), _json_word(peer), _json_word(method), _json_word(route), _json_word(model),
        _json_word(pool), "null" if key is None else f'"{key:016x}"', _json_word(key_source), _json_word(backend),
        _json_word(reason), attempts, status, "null" if ttft_s is None else f"{ttft_s:.6f}", f"{duration_s:.6f}",
        bytes_in, bytes_out, "null" if prompt_tokens is None else prompt_tokens,
        "null" if cached_tokens is None else cached_tokens,
        "null" if expected_tokens is None else round(expected_tokens),
        "null" if answer_tokens is None else answer_tokens, _json_word(end),
    )  # fmt: skip


def _as_text(line: Line) -> str:
    (
        ts, request_id, peer, method, route, model, pool, key, key_source, backend, reason,
        attempts, status, ttft_s, duration_s, bytes_in, bytes_out, prompt_tokens, cached_tokens,
        expected_tokens, answer_tokens, end,
    ) = line  # fmt: skip
    # Times keep their microseconds as digits: 9.8e-05 is nothing for grep, awk or eyes.
    return _TEXT % (
        _time(ts), _plain_text(request_id), _plain_word(peer), _plain_word(method), _plain_word(route),
        _plain_word(model), _plain_word(pool), "-" if key is None else f"{key:016x}", _plain_word(key_source),
        _plain_word(backend), _plain_word(reason), attempts, status, "-" if ttft_s is None else f"{ttft_s:.6f}",
        f"{duration_s:.6f}", bytes_in, bytes_out, "-" if prompt_tokens is None else prompt_tokens,
        "-" if cached_tokens is None else cached_tokens,
        "-" if expected_tokens is None else round(expected_tokens),
        "-" if answer_tokens is None else answer_tokens, _plain_word(end),
    )  # fmt: skip


_FORMATS = {"text": _as_text, "json": _as_json}
_TEXT = " ".join(f"{name}=%s" for name in FIELDS) + "\n"
_JSON = (
    "{"
    + ",".join(f'"{name}":{"%s" if name != "ts" else chr(34) + "%s" + chr(34)}' for name in FIELDS)
    + "}\n"
)


def _time(ts: float) -> str:
    whole = int(ts)
    return f"{_second(whole)}.{int((ts - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(whole: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(whole))


def _capped(text: str | bytes) -> str:
    """At most MAX_TEXT characters."""
    if isinstance(text, bytes):
        return text[:MAX_TEXT].decode("latin-1")
    return text[:MAX_TEXT]


def _json_text(text: _Text) -> str:
    """A JSON string in ASCII: terminals and log readers act on control characters and line separators."""
    if not text:
        return "null"
    capped = _capped(text)
    return f'"{capped}"' if _PLAIN.fullmatch(capped) else json.dumps(capped).replace("\x7f", "\\u007f")


def _plain_text(text: _Text) -> str:
    """As it stands where that is clear, else as a JSON string; "-" alone stands for an absent value."""
    if not text:
        return "-"
    capped = _capped(text)
    if _PLAIN.fullmatch(capped) and capped != "-":
        return capped
    return json.dumps(capped).replace("\x7f", "\\u007f")


# Most texts of a line are among few. What is kept is capped before.
def _json_word(text: _Text) -> str:
    return _kept_json(text if text is None or len(text) <= MAX_TEXT else text[:MAX_TEXT])


def _plain_word(text: _Text) -> str:
    return _kept_plain(text if text is None or len(text) <= MAX_TEXT else text[:MAX_TEXT])


_kept_json = lru_cache(maxsize=512)(_json_text)
_kept_plain = lru_cache(maxsize=512)(_plain_text)


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
