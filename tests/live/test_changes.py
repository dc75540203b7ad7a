"""What differs between two configurations, and which of it is live."""

from __future__ import annotations

from typing import Any

from stickyroute.live.changes import LIVE, changes, in_force
from stickyroute.settings import Settings

A, B = {"name": "a", "url": "http://a:1"}, {"name": "b", "url": "http://b:1"}


def settings(**values: Any) -> Settings:
    return Settings(**{"backends": [A, B], **values})


def told(old: Settings, new: Settings) -> list[str]:
    return [f"{change}{'' if change.live else ' (restart)'}" for change in changes(old, new)]


def test_equal_configurations_differ_in_nothing() -> None:
    assert told(settings(), settings()) == []


def test_every_kind_of_difference_has_words() -> None:
    old = settings(
        backends=[{**A, "weight": 2}, B],
        api_keys=[{"name": "team", "key": "one"}],
        discovery=[{"kind": "dns", "host": "h"}],
        limits={"max_in_flight": 3},
    )
    new = settings(
        listen="127.0.0.1:1",
        backends=[A, {"name": "c", "url": "http://c:1"}],
        api_keys=[{"name": "team", "key": "two"}],
        discovery=[{"kind": "dns", "host": "h", "weight": 3}],
        affinity={"sources": ["header:x-a", "prefix"]},
        strict_json=False,
        sticky={"bound": 2, "index_entries": 99},
    )
    assert told(old, new) == [
        "listen 0.0.0.0:8080 -> 127.0.0.1:1 (restart)",
        "backends.a.weight 2 -> 1",
        "backends.b removed",
        "backends.c added",
        "discovery.dns:h.weight 1 -> 3",
        f"affinity.sources {', '.join(old.affinity.sources)} -> header:x-a, prefix",
        "sticky.bound 4.0 -> 2.0",
        "sticky.index_entries 262144 -> 99 (restart)",
        "limits.max_in_flight 3 -> null",
        "api_keys.team.key (secret) -> (secret)",
        "strict_json true -> false",
    ]


def test_no_secret_is_in_a_change() -> None:
    old = settings(backends=[{**A, "api_key": "secret-1"}], admin_token="secret-2")
    new = settings(
        backends=[{**A, "api_key": "secret-3"}, {**B, "api_key": "secret-4"}], admin_token="secret-5"
    )
    assert [change.path for change in changes(old, new)] == [
        "admin_token",
        "backends.a.api_key",
        "backends.b",
    ]
    assert "secret-" not in repr(changes(old, new))


def test_in_force_is_the_new_one_but_for_what_needs_a_restart() -> None:
    old = settings()
    new = settings(
        listen="127.0.0.1:1", policy="ring", sticky={"bound": 2, "index_entries": 99}, ring={"vnodes": 7}
    )
    now = in_force(old, new)
    assert now.policy == "ring"
    assert (now.sticky.bound, now.sticky.index_entries) == (2, old.sticky.index_entries)
    assert (now.listen, now.ring) == (old.listen, old.ring)
    assert [change.path for change in changes(now, new)] == ["listen", "sticky.index_entries", "ring.vnodes"]
    assert all(change.live for change in changes(old, now))


def test_the_table_of_what_is_live_names_settings_that_exist() -> None:
    for path in LIVE:
        first, _, rest = path.partition(".")
        field = Settings.model_fields[first]
        if rest:
            assert rest in field.get_default(call_default_factory=True).model_fields_set | set(
                type(field.get_default(call_default_factory=True)).model_fields
            )
