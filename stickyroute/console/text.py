"""Numbers and names as a terminal shows them.

Owns the wording of numbers, and that a name which somebody else chose can't move the cursor: control characters
never get through.
"""

from __future__ import annotations

import unicodedata

__all__ = ["UNKNOWN", "clean", "count", "cut", "percent", "seconds", "span", "width"]

UNKNOWN = "-"


def clean(text: str) -> str:
    """The text on one line, with a mark for each character that does something instead of being seen."""
    return "".join(char if char.isprintable() else "?" for char in text)


def width(text: str) -> int:
    """Columns it takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, columns: int) -> str:
    """Cleaned, and exactly so many columns wide; a dot at the end where something is missing."""
    text = clean(text)
    if width(text) > columns:
        while text and width(text) > columns - 1:
            text = text[:-1]
        text += "~"
    return text + " " * (columns - width(text))


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:.0f}%"


def count(value: float | None) -> str:
    """In four or five characters: 950, 12.4k, 3.1M."""
    if value is None:
        return UNKNOWN
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def seconds(value: float | None) -> str:
    """As a person says it, without a space: 85ms, 1.24s, 3min."""
    if value is None:
        return UNKNOWN
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    if value < 99.5:
        return f"{value:.2f}s" if value < 9.995 else f"{value:.1f}s"
    return f"{value / 60:.0f}min"


def span(value: float | None) -> str:
    """A long time: 42 s, 12 min, 3 h 5 min, 2 d 4 h."""
    if value is None:
        return UNKNOWN
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
