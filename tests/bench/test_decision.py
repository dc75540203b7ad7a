"""The page of what a decision costs: its table is written where it belongs, and says what was promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.decision.page import BEGIN, END, Row, table, write_between

COLUMNS = {
    "parse": 2.0,
    "chain": 1.0,
    "anew": 4.0,
    "keys": 6.0,
    "decide": 12.0,
    "routing": 25.0,
    "life": 60.0,
}


def test_a_line_for_each_prompt_and_a_column_for_each_fleet() -> None:
    rows = [
        Row("sticky", 1, "user", 16, COLUMNS),
        Row("ring", 32, "prompt", 16, COLUMNS),
        Row("sticky", 1, "user", 500, {**COLUMNS, "decide": 90.0}),
        Row("ring", 32, "prompt", 500, {**COLUMNS, "decide": 91.0}),
    ]
    lines = table(rows).splitlines()
    assert lines[-2:] == [
        "| `sticky`, 1 KB | user | 6 | 9 | 12 | 18 | 25 | 30 | 58 | 90 |",
        "| `ring`, 32 KB | prompt | 6 | 9 | 12 | 18 | 25 |  | 58 | 91 |",
    ]
    assert {line.count("|") for line in lines[2:]} == {11}


def test_the_page_around_the_table_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for text in ("new", "newer"):
        write_between(page, text)
        assert page.read_text() == f"before\n{BEGIN}\n{text}\n{END}\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="no place"):
        write_between(page, "new")


def test_the_documentation_has_a_place_for_it() -> None:
    page = (Path(__file__).parents[2] / "docs/decision.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1
