"""`stickyroute drain`, `undrain`, `disable`, `enable`: one word to the admin port, and the wait for a drain to end.

Owns the exit codes: 0 done, 1 refused (no such backend, wrong token, somebody undrained it meanwhile), 2 nobody
answered, 3 requests still run at the time limit. Whatever happens, the backend stays as it was last told to be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TextIO
from urllib.parse import quote

from stickyroute.console.client import Admin, Refused, open_admin
from stickyroute.console.text import clean, span

__all__ = ["operate"]

_POLL_S = 0.5
_STILL_RUNNING = 3


def operate(action: str, flags: argparse.Namespace) -> int:
    """Tell every backend named, then wait if asked to. Returns the exit code; ConfigError is the caller's."""
    admin = open_admin(flags)
    code = 0
    left: list[str] = []
    for name in dict.fromkeys(flags.names):
        try:
            answer = admin.post(f"/backends/{quote(name, safe='')}/{action}")
        except Refused as refused:
            print(f"stickyroute: {action} {clean(name)}: {clean(str(refused))}", file=sys.stderr)
            code = 1
            continue
        if answer["in_flight"]:
            left.append(name)
        if "warning" in answer:
            print(f"stickyroute: {clean(answer['warning'])}", file=sys.stderr)
        print(clean(answer["told"].removesuffix(" " + answer.get("warning", "\0"))), flush=True)
    if action == "drain" and (flags.wait or flags.timeout is not None) and left:
        try:
            code = max(code, _Wait(admin, left, sys.stdout).until_drained(flags.timeout))
        except KeyboardInterrupt:
            print(
                f"stickyroute: not waiting any longer; still draining: {', '.join(map(clean, left))}",
                file=sys.stderr,
            )
            raise
    return code


class _Wait:
    def __init__(self, admin: Admin, names: list[str], out: TextIO) -> None:
        self._admin = admin
        self._left = dict.fromkeys(names, 0)
        self._out = out
        self._progress: Callable[[str], None] = _rewriting(out) if out.isatty() else _by_line(out)

    def until_drained(self, timeout_s: float | None) -> int:
        began_s = time.monotonic()
        code = 0
        while True:
            for name in list(self._left):
                try:
                    state = self._admin.get(f"/backends/{quote(name, safe='')}")
                except Refused as refused:
                    # It was removed from the configuration while it drained.
                    self._done(name, f"{clean(name)}: {clean(str(refused))}")
                    code = 1
                    continue
                self._left[name] = state["in_flight"]
                if state["operator"] not in ("draining", "disabled"):
                    self._done(name, f"{clean(name)} takes requests again: somebody took it back.")
                    code = 1
                elif not state["in_flight"]:
                    waited = span(time.monotonic() - began_s)
                    self._done(name, f"{clean(name)} is drained: nothing runs there, after {waited}.")
            if not self._left:
                return code
            waited_s = time.monotonic() - began_s
            still = ", ".join(f"{clean(name)} {left} left" for name, left in self._left.items())
            if timeout_s is not None and waited_s >= timeout_s:
                self._progress("")
                print(f"stickyroute: after {span(waited_s)} still draining: {still}", file=sys.stderr)
                return _STILL_RUNNING
            self._progress(f"draining: {still}")
            time.sleep(_POLL_S if timeout_s is None else min(_POLL_S, max(0.0, timeout_s - waited_s)))

    def _done(self, name: str, text: str) -> None:
        del self._left[name]
        self._progress("")
        print(text, file=self._out, flush=True)


def _rewriting(out: TextIO) -> Callable[[str], None]:
    """On a terminal one line tells how far it is."""

    def show(text: str) -> None:
        out.write(f"\r\x1b[K{text}")
        out.flush()

    return show


def _by_line(out: TextIO) -> Callable[[str], None]:
    """Elsewhere a line for each change."""
    last = ""

    def show(text: str) -> None:
        nonlocal last
        if text and text != last:
            print(text, file=out, flush=True)
        last = text or last

    return show
