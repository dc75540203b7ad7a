"""`stickyroute top`: the dashboard in a terminal, until Ctrl-C or q; `--once` prints it and ends.

Owns the terminal while it runs and gives it back as it was, whatever ends it. Draws on the alternate screen, a frame
a second and one at each change of the window's size.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from stickyroute.console.client import Admin, Refused, open_admin
from stickyroute.console.screen import Style, draw
from stickyroute.console.text import clean
from stickyroute.errors import ConfigError

__all__ = ["top"]

_EACH_S = 1.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _LINE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_NARROWEST = 60


def top(flags: argparse.Namespace, out: TextIO | None = None) -> int:
    """Run the command; the exit code is 0, or 1 when the port refuses. ConfigError is the caller's."""
    out = out if out is not None else sys.stdout
    admin = open_admin(flags)
    try:
        if flags.once or not out.isatty():
            print("\n".join(draw(admin.get("/board"), style(out, flags.no_color, rows=False))), file=out)
        else:
            _watch(admin, out, flags.no_color)
    except Refused as refused:
        hint = f" Is {admin.url} the admin port?" if refused.status == 404 else ""
        print(f"stickyroute: {clean(str(refused))}{hint}", file=sys.stderr)
        return 1
    finally:
        admin.close()
    return 0


def style(out: TextIO, no_color: bool, *, rows: bool) -> Style:
    """What the terminal can do. Colours only on one that has them and where nobody asked for none."""
    columns, lines = shutil.get_terminal_size((80, 24))
    plain = no_color or "NO_COLOR" in os.environ or os.environ.get("TERM") in (None, "", "dumb")
    return Style(
        columns=max(_NARROWEST, columns),
        rows=lines if rows else None,
        colour=out.isatty() and not plain,
        unicode="utf" in (out.encoding or "").lower(),
    )


def _watch(admin: Admin, out: TextIO, no_color: bool) -> None:
    """Until somebody ends it. A port that stops answering is told in the frame and asked again."""
    with _terminal(out) as keys:
        lines: list[str] = []
        while True:
            look = style(out, no_color, rows=True)
            try:
                lines = draw(admin.get("/board"), look)
            except ConfigError as error:
                if not lines:
                    raise
                lines[-1:] = [look.paint(error.message[: look.columns], "bad")]
            out.write(_HOME + "".join(f"{line}{_LINE_END}\r\n" for line in lines[:-1]))
            out.write(f"{lines[-1]}{_LINE_END}{_BELOW}")
            out.flush()
            if keys.pressed(_EACH_S) in ("q", "Q", "\x03"):
                return


class _Keys:
    """What is typed, and the wake-up when the window changes."""

    def __init__(self, source: int | None, waker: int) -> None:
        self._source = source
        self._waker = waker
        self.ended: BaseException | None = None
        """What a signal raised. Python drops it where it strikes in a destructor, so it is raised again from here."""

    def pressed(self, seconds: float) -> str:
        """The next key, or nothing after `seconds` or when there is another reason to draw."""
        watched = [self._waker] if self._source is None else [self._waker, self._source]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self.ended is not None:
            raise self.ended
        if self._waker in ready:
            os.read(self._waker, 4096)
        if self._source in ready and self._source is not None:
            typed = os.read(self._source, 1)
            if not typed:
                self._source = None  # the terminal's input ended; Ctrl-C still works
            return typed.decode("latin-1")
        return ""


@contextmanager
def _terminal(out: TextIO) -> Iterator[_Keys]:
    """The alternate screen, no cursor, keys as they are typed; all of it undone at the end."""
    source = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = termios.tcgetattr(source) if source is not None else None
    waker, woken = os.pipe()
    os.set_blocking(woken, False)

    def resized(number: int, frame: FrameType | None) -> None:
        try:
            os.write(woken, b".")
        except BlockingIOError:
            pass  # it is to be drawn anew already

    keys = _Keys(source, waker)

    def ended(number: int, frame: FrameType | None) -> None:
        keys.ended = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        resized(number, frame)
        raise keys.ended

    handlers = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, resized),
        signal.SIGINT: signal.signal(signal.SIGINT, ended),
        signal.SIGTERM: signal.signal(signal.SIGTERM, ended),
        signal.SIGHUP: signal.signal(signal.SIGHUP, ended),
    }
    try:
        if source is not None:
            tty.setcbreak(source)
        out.write(_ENTER)
        out.flush()
        yield keys
    finally:
        try:
            out.write(_LEAVE)
            out.flush()
        except OSError:
            pass  # the terminal is gone
        if source is not None and before is not None:
            termios.tcsetattr(source, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(waker)
        os.close(woken)
