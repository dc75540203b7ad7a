"""What `stickyroute top` draws: a state of the admin port as lines of text.

Pure: a state, a size and whether there are colours go in, lines come out, none wider than asked. Every text that
somebody else chose is cleaned of control characters on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stickyroute.console.text import UNKNOWN, clean, count, cut, percent, seconds, span, width

__all__ = ["Style", "draw"]

HIGH_WATER = 0.8
_BARS = "▁▂▃▄▅▆▇█"
_BARS_MOST = 60
_DECISIONS_LEAST = 5
_DECISIONS_ONCE = 10
_FINDINGS = 3
_NAME_LEAST = 14
_FIRST_TO_GO = ("KEYS", "WEIGHT", "TRAF")
"""Columns that a narrow terminal does without."""

_COLOURS = {"good": "32", "warn": "33", "bad": "31", "quiet": "2", "bold": "1", "accent": "36"}
_REASONS = {"home": "good", "warm": "accent", "spill": "warn", "failover": "bad"}


class Style(NamedTuple):
    """How the terminal wants it: `columns` wide, `rows` high (None: as many as it takes), with or without colours
    and characters outside ASCII."""

    columns: int = 80
    rows: int | None = None
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, name: str) -> str:
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self.colour and name and text.strip() else text


def draw(state: dict[str, Any], style: Style) -> list[str]:
    """The lines of one screen."""
    top = [*_header(state, style), *_alerts(state, style)]
    fleet = _fleet(state, style)
    below = [*_findings(state, style), *_decisions(state, style)]
    if style.rows is None:
        return [*top, *fleet, *_findings(state, style), *_decisions(state, style)[: 1 + _DECISIONS_ONCE]]
    # The fleet matters most; what does not fit of it is said, and the decisions take what is left.
    room = max(3, style.rows - len(top))
    least = min(len(below), _DECISIONS_LEAST)
    if len(fleet) > room - least:
        hidden = len(fleet) - max(2, room - least - 1)
        fleet = [
            *fleet[: len(fleet) - hidden],
            style.paint(f"  and {hidden} more: widen the window", "quiet"),
        ]
    return [*top, *fleet, *below[: max(0, room - len(fleet))]][: style.rows]


def _header(state: dict[str, Any], style: Style) -> list[str]:
    now = state["summary"]
    config = state["config"]
    facts = [
        style.paint(f"stickyroute {state['version']}", "bold"),
        f"policy {state['policy']}",
        f"up {span(state['uptime_s'])}",
        f"ring {state['ring']['fingerprint'][:8]}",
        *([f"config #{config['generation']}"] if config else []),
    ]
    points = state.get("points", [])
    hits = f"hit rate {percent(now['hit_rate'])}"
    ttft = f"TTFT {seconds(now['ttft_p50_s'])} p95 {seconds(now['ttft_p95_s'])}"
    bars = min(_BARS_MOST, max(1, (style.columns - len(hits) - len(ttft) - 5) // 2))
    hits += " " + _spark([p["hit_rate"] for p in points[-bars:]], 1.0, style)
    ttft += " " + _spark([p["ttft_p50_s"] for p in points[-bars:]], None, style)
    available = f"{now['available']}/{now['backends']} available"
    if now["available"] < now["backends"]:
        available = style.paint(available, "bad" if not now["available"] else "warn")
    load = [
        f"{now['requests_s']:.1f} requests/s",
        f"{count(now['in_flight'])} in flight",
        f"{count(now['backlog_tokens'])} tokens waiting",
        available,
    ]
    return [_joined(facts, style), _joined([hits, ttft], style), _joined(load, style), ""]


def _joined(parts: Sequence[str], style: Style) -> str:
    """As many of the parts as fit on a line."""
    line, used = "", 0
    for part in parts:
        size = width(_plain(part)) + (3 if line else 0)
        if used + size > style.columns:
            break
        line += ("   " if line else "") + part
        used += size
    return line


def _plain(text: str) -> str:
    for code in (*_COLOURS.values(), "0"):
        text = text.replace(f"\x1b[{code}m", "")
    return text


def _spark(values: Sequence[float | None], top: float | None, style: Style) -> str:
    """The last minutes as a line of small bars, each for five seconds."""
    known = [value for value in values if value is not None]
    if not style.unicode or not known:
        return ""
    highest = (top if top is not None else max(known)) or 1.0
    return "".join(" " if v is None else _BARS[min(7, int(8 * v / highest))] for v in values)


def _alerts(state: dict[str, Any], style: Style) -> list[str]:
    lines = []
    for alert in state["alerts"]:
        level = {"bad": "bad", "warn": "warn"}.get(alert["level"], "accent")
        who = f"{alert['backend']}: " if alert["backend"] else ""
        lines.append(style.paint(cut(f"! {who}{alert['text']}", style.columns).rstrip(), level))
    return [*lines, ""] if lines else []


class _Column(NamedTuple):
    title: str
    columns: int
    show: Callable[[dict[str, Any]], tuple[str, str]]
    """Text and colour."""
    left: bool = False


def _fleet(state: dict[str, Any], style: Style) -> list[str]:
    spare = max(0, style.columns - 80)
    bar = 6 + min(14, spare // 3)
    fixed = [
        _Column("STATE", 10, _state, left=True),
        _Column("KV", bar + 5, lambda b: _kv(b, bar, style), left=True),
        _Column("FLY", 4, lambda b: (count(b["in_flight"]), "")),
        _Column("WAIT", 5, lambda b: (count(b["backlog_tokens"]), "")),
        _Column("WEIGHT", 6, _weight),
        _Column("KEYS", 4, lambda b: (percent(b["key_share"]), "quiet")),
        _Column("TRAF", 4, lambda b: (percent(b["traffic_share"]), "")),
        _Column("HIT", 4, lambda b: (percent(b["hit_rate"]), "")),
        _Column("TTFT", 6, lambda b: (seconds(b["ttft_s"]), "")),
    ]
    longest = max((width(clean(backend["name"])) for backend in state["backends"]), default=0)
    wanted = max(7, min(longest, _NAME_LEAST))
    for title in _FIRST_TO_GO:
        if style.columns - sum(column.columns + 1 for column in fixed) < wanted:
            fixed = [column for column in fixed if column.title != title]
    room = style.columns - sum(column.columns + 1 for column in fixed)
    columns = [
        _Column("BACKEND", min(room, max(longest, 7)), lambda b: (b["name"], "bold"), left=True),
        *fixed,
    ]
    lines = [style.paint(" ".join(_cell(column, column.title) for column in columns).rstrip(), "quiet")]
    for backend in state["backends"]:
        cells = []
        for column in columns:
            text, colour = column.show(backend)
            cells.append(style.paint(_cell(column, text), colour))
        lines.append(" ".join(cells).rstrip())
    if not state["backends"]:
        lines.append("no backend")
    return [*lines, ""]


def _cell(column: _Column, text: str) -> str:
    if column.left:
        return cut(text, column.columns)
    text = cut(text, column.columns).rstrip()
    return " " * (column.columns - width(text)) + text


def _state(backend: dict[str, Any]) -> tuple[str, str]:
    """The same words as the dashboard's."""
    if backend["operator"] == "disabled":
        return "disabled", "quiet"
    if backend["health"] == "unhealthy":
        return "unhealthy", "bad"
    if backend["refused"]:
        return "down", "bad"
    if backend["ejected"]:
        return "ejected", "bad"
    if backend["operator"] == "draining":
        return ("draining" if backend["in_flight"] else "drained"), "quiet"
    if not backend["available"]:
        return "unavail.", "bad"
    if backend["warnings"]:
        return "warned", "warn"
    return ("unproven", "quiet") if backend["health"] == "unknown" else ("healthy", "good")


def _kv(backend: dict[str, Any], bar: int, style: Style) -> tuple[str, str]:
    kv = backend["kv"]
    if kv is None:
        return UNKNOWN, "quiet"
    full, empty = ("█", "░") if style.unicode else ("#", ".")
    filled = min(bar, round(kv * bar))
    colour = "quiet" if backend["kv_stale"] else "bad" if kv >= 0.92 else "warn" if kv >= HIGH_WATER else ""
    return f"{full * filled}{empty * (bar - filled)} {percent(kv)}", colour


def _weight(backend: dict[str, Any]) -> tuple[str, str]:
    """The operator's weight, or what it acts as where the backend is short of room."""
    if backend["room"] < 0.995 and backend["weight"] and backend["available"]:
        return f"{backend['weight'] * backend['room']:.2f}/{backend['weight']}", "warn"
    return str(backend["weight"]), ""


def _findings(state: dict[str, Any], style: Style) -> list[str]:
    doctor = state["doctor"]
    if not doctor or not doctor["findings"]:
        return []
    lines = [style.paint("PREFIX DOCTOR", "quiet")]
    for finding in doctor["findings"][:_FINDINGS]:
        text = (
            f"{finding['title']}, {count(finding['lost_tokens_per_hour'])} tokens/h lost: {finding['where']}"
        )
        lines.append(style.paint(cut(text, style.columns).rstrip(), finding["level"]))
    return [*lines, ""]


def _decisions(state: dict[str, Any], style: Style) -> list[str]:
    if not state["decisions"]:
        return []
    name = min(30, max(12, style.columns - 60))
    model = min(30, style.columns - name - 48)
    title = f"{'DECISION':<10} {cut('BACKEND', name)} {cut('MODEL', model)} {'EXPECTED':>8} {'CACHED':>6} {'TTFT':>7}"
    lines = [style.paint(cut(title, style.columns).rstrip(), "quiet")]
    for row in state["decisions"]:
        reason = (row["reason"] or "none").replace("_", " ")
        took = row["failed"] or seconds(row["ttft_s"] if row["ttft_s"] is not None else row["duration_s"])
        line = (
            f"{style.paint(cut(reason, 10), _REASONS.get(row['reason'] or '', 'quiet'))} "
            f"{cut(row['backend'] or UNKNOWN, name)} {style.paint(cut(row['model'] or UNKNOWN, model), 'quiet')} "
            f"{percent(row['expected']):>8} {percent(row['achieved']):>6} "
        )
        left = style.columns - name - model - 28
        lines.append(
            line
            + style.paint(
                cut(took, left).rstrip() if row["failed"] else f"{took:>7}", "bad" if row["failed"] else ""
            )
        )
    return lines
