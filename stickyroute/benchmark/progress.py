"""A progress bar on a terminal, a few plain lines elsewhere.

Owns one line of the terminal at a time. Knows nothing of what progresses.
"""

from __future__ import annotations

import sys
from typing import TextIO

from stickyroute.clock import monotonic

_WIDTH = 28
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Progress:
    """`update(share, note)` as often as liked, `step(share, note)` when a part is finished, `done(note)` once.

    On a file or pipe there is a line for each quarter, or for each finished part where there are parts.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label = label
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._told = 0.0
        self._began_s = monotonic()

    def update(self, share: float, note: str = "") -> None:
        """`share` of the work, 0 to 1, is done."""
        share = min(1.0, max(0.0, share))
        if self._live:
            eighths = int(share * _WIDTH * 8)
            full, part = divmod(eighths, 8)
            bar = "█" * full + (_EIGHTHS[part] if full < _WIDTH else "")
            self._stream.write(f"\r\x1b[2K  {self._label:<14} ▕{bar:<{_WIDTH}}▏ {share:4.0%}  {note}")
            self._stream.flush()
        elif share >= self._told + 0.25:
            self._told = int(share * 4) / 4
            self._stream.write(f"  {self._label:<14} {self._told:4.0%}  {note}\n")
            self._stream.flush()

    def step(self, share: float, note: str = "") -> None:
        """A part is finished, and with it `share` of the work."""
        if self._live:
            self.update(share, note)
            return
        self._told = 1.0  # parts say enough
        took_s = monotonic() - self._began_s
        self._stream.write(f"  {self._label:<14} {share:4.0%}  {took_s:4.0f} s  {note}\n")
        self._stream.flush()

    def done(self, note: str = "") -> None:
        """Leave the finished line behind."""
        start = "\r\x1b[2K" if self._live else ""
        self._stream.write(f"{start}  {self._label:<14} {note}\n")
        self._stream.flush()
