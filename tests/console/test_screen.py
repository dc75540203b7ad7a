"""What `top` draws: every width, with and without colours, and names that would like to draw themselves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stickyroute.console.screen import Style, draw
from stickyroute.console.text import clean, count, cut, percent, seconds, span, width
from tests.support.admin_port import admin_port

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def backend(name: str, **other: Any) -> dict[str, Any]:
    return {
        "name": name, "url": "http://x", "models": [], "models_count": None, "operator": "active",
        "health": "healthy", "ejected": False, "refused": False,
        "available": True, "why": "", "for_s": 3.0, "warnings": [], "weight": 1,
        "room": 1.0, "in_flight": 3, "max_in_flight": None, "backlog_tokens": 1234.0, "kv": 0.5, "running": 2,
        "waiting": 0, "kv_stale": False, "key_share": 0.25, "traffic_share": 0.2, "hit_rate": 0.7, "ttft_s": 0.123,
        **other,
    }  # fmt: skip


def state(*backends: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "version": "1.2.3", "policy": "sticky", "uptime_s": 4000.0, "ring": {"fingerprint": "0123456789abcdef"},
        "config": {"generation": 3},
        "summary": {
            "hit_rate": 0.78, "ttft_p50_s": 0.142, "ttft_p95_s": 0.61, "requests_s": 24.3, "in_flight": 14,
            "backlog_tokens": 12700.0, "available": len(backends), "backends": len(backends),
        },
        "points": [{"hit_rate": i / 40, "ttft_p50_s": None if i % 3 else 0.1} for i in range(40)],
        "alerts": [], "backends": list(backends), "decisions": [], "doctor": None, **other,
    }  # fmt: skip


def decision(**other: Any) -> dict[str, Any]:
    return {
        "backend": "gpu-1", "reason": "home", "model": "m", "expected": 0.9, "achieved": 0.8, "ttft_s": 0.05,
        "duration_s": 1.0, "failed": None, **other,
    }  # fmt: skip


FULL = state(
    backend("gpu-1"),
    backend("gpu-2", operator="draining", available=False, in_flight=2),
    backend("a-backend-with-a-name-that-is-longer-than-any-column-would-like-it-to-be", kv=None, ttft_s=None),
    backend(
        "日本語の名前", kv=0.95, room=0.5, weight=100, in_flight=123456, backlog_tokens=9.9e9, ttft_s=4321.0
    ),
    alerts=[{"level": "bad", "backend": "gpu-2", "code": "x", "text": "gone " * 60}],
    decisions=[decision(), decision(failed="upstream_died", backend=None, reason=None, model="模" * 80)] * 20,
    doctor={
        "findings": [
            {
                "title": "A clock in tools",
                "where": "x " * 90,
                "level": "warn",
                "advice": "",
                "lost_tokens_per_hour": 1e6,
            }
        ],
        "note": "",
        "rules": [],
    },
)


@pytest.mark.parametrize("columns", [60, 79, 80, 100, 133, 250])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_wider_than_the_terminal(columns: int, colour: bool) -> None:
    for line in draw(FULL, Style(columns=columns, colour=colour)):
        assert width(ESCAPE.sub("", line)) <= columns, line


@pytest.mark.parametrize("rows", [10, 16, 24, 50, 200])
def test_no_screen_is_higher_than_the_terminal(rows: int) -> None:
    many = {**FULL, "backends": [backend(f"gpu-{i}") for i in range(100)]}
    for shown in (FULL, many):
        lines = draw(shown, Style(rows=rows))
        assert len(lines) <= rows
        assert any("BACKEND" in line for line in lines)


def test_what_does_not_fit_of_the_fleet_is_said() -> None:
    lines = draw(state(*(backend(f"gpu-{i}") for i in range(100))), Style(rows=24))
    (more,) = [line for line in lines if "more" in line]
    shown = sum(1 for line in lines if line.startswith("gpu-"))
    assert shown + int(more.split()[1]) - 1 == 100  # the blank line after the fleet is hidden with it


def test_at_eighty_columns_all_is_there() -> None:
    lines = draw(state(backend("gpu-1")), Style(unicode=False))
    assert lines[0] == "stickyroute 1.2.3   policy sticky   up 1 h 6 min   ring 01234567   config #3"
    assert lines[2] == "24.3 requests/s   14 in flight   12.7k tokens waiting   1/1 available"
    assert lines[4].split() == [
        "BACKEND",
        "STATE",
        "KV",
        "FLY",
        "WAIT",
        "WEIGHT",
        "KEYS",
        "TRAF",
        "HIT",
        "TTFT",
    ]
    assert lines[5].split() == [
        "gpu-1",
        "healthy",
        "###...",
        "50%",
        "3",
        "1.2k",
        "1",
        "25%",
        "20%",
        "70%",
        "123ms",
    ]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"operator": "disabled"}, "disabled"),
        ({"health": "unhealthy"}, "unhealthy"),
        ({"ejected": True}, "ejected"),
        ({"ejected": True, "refused": True}, "down"),
        ({"operator": "draining", "in_flight": 2}, "draining"),
        ({"operator": "draining", "in_flight": 0}, "drained"),
        ({"available": False}, "unavail."),
        ({"warnings": [{"code": "x", "text": "y"}]}, "warned"),
        ({"health": "unknown"}, "unproven"),
        ({}, "healthy"),
    ],
)
def test_each_state_has_a_word(fields: dict[str, Any], word: str) -> None:
    lines = draw(state(backend("gpu-1", **fields)), Style())
    assert lines[5].split()[1] == word


def test_without_colours_and_unicode_it_is_plain_ascii() -> None:
    text = "\n".join(draw(state(backend("gpu-1"), decisions=[decision()]), Style(unicode=False)))
    assert text.isascii()
    assert "\x1b" not in text


def test_no_name_moves_the_cursor() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\r\n\x9b31m\u202e"
    shown = state(
        backend(evil, why=evil),
        alerts=[{"level": "warn", "backend": evil, "code": "x", "text": evil}],
        decisions=[decision(backend=evil, model=evil, failed=evil, reason=evil)],
    )
    for line in draw(shown, Style()):
        assert clean(line) == line


async def test_it_draws_what_the_port_says() -> None:
    async with admin_port("gpu-1", "gpu-2") as port:
        port.fleet.record_refused(1, 100.0, 0.5)
        _, told = await port.ask("GET", "/board")
    text = "\n".join(draw(told, Style()))
    assert "1/2 available" in text
    assert "! gpu-2: " in text


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (percent, None, "-"), (percent, 0.784, "78%"), (percent, 1.0, "100%"),
        (count, None, "-"), (count, 0.4, "0"), (count, 999, "999"), (count, 999.6, "1.0k"), (count, 12_400, "12.4k"),
        (count, 99_960, "100k"), (count, 3.1e6, "3.1M"), (count, 2e9, "2.0G"),
        (seconds, None, "-"), (seconds, 0.085, "85ms"), (seconds, 0.9996, "1.00s"), (seconds, 12.34, "12.3s"),
        (seconds, 180, "3min"),
        (span, 42.9, "42 s"), (span, 720, "12 min"), (span, 11_100, "3 h 5 min"), (span, 187_200, "2 d 4 h"),
    ],
)  # fmt: skip
def test_numbers_as_people_say_them(show: Any, value: float | None, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("gpu", 5, "gpu  "),
        ("gpu-1", 5, "gpu-1"),
        ("gpu-10", 5, "gpu-~"),
        ("日本", 4, "日本"),
        ("日本語", 4, "日~ "),
        ("", 2, "  "),
    ],
)
def test_a_text_is_cut_to_its_columns(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown
    assert width(shown) == columns
