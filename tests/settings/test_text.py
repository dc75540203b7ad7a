"""Texts that no configuration can be: refused at once, whole, and with their name."""

from __future__ import annotations

import pytest

from stickyroute.errors import ConfigError
from stickyroute.settings.text import parse


def grown(leaf: str, item: str) -> str:
    """Nine anchors, each ten aliases of the one before."""
    lines = [f"a: &a {leaf}"]
    lines += [f"{chr(c)}: &{chr(c)} {item % ','.join([f'*{chr(c - 1)}'] * 10)}" for c in range(98, 107)]
    return "\n".join([*lines, "backends: *j"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (grown("[x, y]", "[%s]"), "holds too much"),
        ("backends: &a [*a]", "is nested too deeply"),
        ("backends: &a {backends: *a}", "is nested too deeply"),
        ('{"a":' * 900 + "1" + "}" * 900, "is nested too deeply"),
        ("[" * 50_000, "is nested too deeply"),
        ('access_log_path: "a\\0b"', "NUL character"),
        ('discovery: [{kind: file, path: "a\\ud800b"}]', "half a character"),
        ('"\\ud800": 1', "half a character"),
    ],
)
def test_what_nobody_could_walk_through_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        parse(text.encode(), "c.yaml")
    assert refused.value.message.startswith("c.yaml: ")


def test_merges_of_merges_are_what_they_say() -> None:
    values = parse(grown("{x: 1}", "{<<: [%s]}").encode(), "c.yaml")
    assert values["backends"] == {"x": 1}


def test_aliases_are_as_good_as_what_they_stand_for() -> None:
    text = b"engine: &engine {weight: 2}\nbackends: [{url: 'http://a', <<: *engine}, {url: 'http://b', <<: *engine}]"
    assert [row["weight"] for row in parse(text, "c.yaml")["backends"]] == [2, 2]
