"""Charts as inline SVG text: lines and grouped bars, with axes, ticks and a legend.

Owns geometry. Knows nothing of what the numbers mean; a label is escaped here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 280
_LEFT, _RIGHT, _BOTTOM = 56, 14, 44
_TITLE_Y, _LEGEND_Y, _LEGEND_ROW, _PLOT_GAP = 14, 31, 14, 9
_LETTER = 5.7  # the width of a letter of the legend, generously
COLORS = (
    "#6b7280",
    "#2563eb",
    "#d97706",
    "#059669",
    "#dc2626",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#4d7c0f",
    "#f472b6",
    "#a16207",
    "#a3a3a3",
)


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline; `color` is an index. Without a name it has no place in the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Line],
    log_x: bool = False,
    log_y: bool = False,
    top: float | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """A line chart. `top` fixes the upper end of the y axis."""
    points = [point for line in series for point in line.points if _finite(point)]
    if not points:
        return ""
    named = [(line.name, _color(line.color)) for line in series if line.name]
    legend, ceiling = _legend(named, width)
    xs = _axis([x for x, _ in points], log_x, _LEFT, width - _RIGHT, zero=not log_x)
    values = [y for _, y in points] + ([top] if top else [])
    ys = _axis(values, log_y, height - _BOTTOM, ceiling, zero=not log_y)
    body = [_frame(title, x_label, y_label, xs, ys, width, height), legend]
    for line in series:
        drawn = [f"{xs.at(x):.1f},{ys.at(y):.1f}" for x, y in line.points if _finite((x, y))]
        body.append(
            f'<polyline fill="none" stroke="{_color(line.color)}" stroke-width="1.8" '
            f'points="{" ".join(drawn)}"/>'
        )
    return _svg(body, width, height, title)


def bars(
    title: str,
    y_label: str,
    classes: Sequence[str],
    series: Sequence[tuple[str, Sequence[float], int]],
    log_y: bool = False,
    show: Callable[[float], str] | None = None,
) -> str:
    """Grouped bars: for each class one bar a series (name, a value for each class or nan, colour)."""
    values = [
        value for _, row, _ in series for value in row if not math.isnan(value) and (value > 0 or not log_y)
    ]
    if not values:
        return ""
    legend, ceiling = _legend([(name, _color(color)) for name, _, color in series], WIDTH)
    ys = _axis(values, log_y, HEIGHT - _BOTTOM, ceiling, zero=not log_y)
    xs = _Axis(lambda value: value, [], [])
    body = [_frame(title, "", y_label, xs, ys, WIDTH, HEIGHT), legend]
    room = (WIDTH - _LEFT - _RIGHT) / len(classes)
    wide = room * 0.82 / max(1, len(series))
    floor = HEIGHT - _BOTTOM
    for place, name in enumerate(classes):
        left = _LEFT + place * room + room * 0.09
        body.append(_text(left + room * 0.41, floor + 15, name))
        for number, (_, row, color) in enumerate(series):
            value = row[place]
            if math.isnan(value) or (log_y and value <= 0):
                continue
            high = ys.at(value)
            body.append(
                f'<rect x="{left + number * wide:.1f}" y="{high:.1f}" width="{wide * 0.92:.1f}" '
                f'height="{max(0.5, floor - high):.1f}" fill="{_color(color)}"/>'
            )
            if show is not None and wide > 24:
                body.append(_text(left + (number + 0.46) * wide, high - 3, show(value)))
    return _svg(body, WIDTH, HEIGHT, title)


@dataclass(frozen=True, slots=True)
class _Axis:
    at: Callable[[float], float]
    ticks: Sequence[float]
    places: Sequence[float]


def _axis(values: Sequence[float], log: bool, start: float, end: float, zero: bool) -> _Axis:
    low, high = min(values), max(values)
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        low_power = math.floor(math.log10(min(positive)))
        high_power = max(low_power + 1, math.ceil(math.log10(max(positive)) - 1e-9))
        ticks = [10.0**power for power in range(low_power, high_power + 1)]
        span = high_power - low_power

        def at_log(value: float) -> float:
            power = math.log10(max(value, 10.0**low_power))
            return start + (power - low_power) / span * (end - start)

        return _Axis(at_log, ticks, [at_log(tick) for tick in ticks])
    if zero:
        low = min(0.0, low)
    if high <= low:
        high = low + 1.0
    step = _step((high - low) / 5)
    first = math.floor(low / step)
    last = math.ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]

    def at(value: float) -> float:
        return start + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (end - start)

    return _Axis(at, ticks, [at(tick) for tick in ticks])


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)


def _frame(title: str, x_label: str, y_label: str, xs: _Axis, ys: _Axis, width: int, height: int) -> str:
    parts = [f'<text x="{_LEFT}" y="{_TITLE_Y}" class="h">{escape(title)}</text>']
    for tick, place in zip(ys.ticks, ys.places, strict=True):
        parts.append(
            f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{place:.1f}" y2="{place:.1f}" class="g"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 5}" y="{place + 3.5:.1f}" text-anchor="end" class="t">{_number(tick)}</text>'
        )
    for tick, place in zip(xs.ticks, xs.places, strict=True):
        parts.append(_text(place, height - _BOTTOM + 15, _number(tick)))
    middle = (min(ys.places) + max(ys.places)) / 2
    parts.append(f'<g transform="rotate(-90 12 {middle:.0f})">{_text(12, middle, y_label)}</g>')
    parts.append(_text((_LEFT + width - _RIGHT) / 2, height - _BOTTOM + 28, x_label))
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="t">{escape(words)}</text>'


def _legend(named: Sequence[tuple[str, str]], width: int) -> tuple[str, int]:
    """The legend under the title, in as many rows as it takes, and where the plot below it may begin."""
    parts = []
    left, row = float(_LEFT), 0
    for name, color in named:
        wide = 15 + _LETTER * len(name)
        if left > _LEFT and left + wide > width - _RIGHT:
            left, row = float(_LEFT), row + 1
        y = _LEGEND_Y + row * _LEGEND_ROW
        parts.append(f'<rect x="{left:.0f}" y="{y - 6}" width="10" height="5" fill="{color}"/>')
        parts.append(f'<text x="{left + 13:.0f}" y="{y}" class="t">{escape(name)}</text>')
        left += wide + 9
    rows = row + 1 if named else 0
    return "".join(parts), _TITLE_Y + rows * _LEGEND_ROW + _PLOT_GAP + (3 if rows else 0)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)]


def _svg(body: Sequence[str], width: int, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">'
        f"{''.join(body)}</svg>"
    )


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}"
    return f"{value:.4g}"


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])
