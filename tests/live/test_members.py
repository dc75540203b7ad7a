"""Who is in the fleet out of what the configuration and discovery name, running and offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stickyroute.fleet import BackendSpec
from stickyroute.live.members import LeftOut, members_of, offline_members
from stickyroute.settings import Settings
from stickyroute.watch.discovery import Found


def settings(**values: Any) -> Settings:
    return Settings(**{"backends": [{"name": "a", "url": "http://h1:1"}], **values})


def found(name: str, host: str, source: str = "dns:h", draining: bool = False) -> Found:
    return Found(BackendSpec(name, "http", host, 1), draining, source)


def test_a_name_and_an_address_belong_to_the_first_and_the_others_are_told() -> None:
    told = members_of(
        settings(),
        [
            found("a", "h9"),
            found("again", "h1"),
            found("b", "h2"),
            found("b", "h3", "file:f"),
            found("c", "h2", "file:f"),
        ],
        lambda name: False,
    )
    assert [(spec.name, spec.host) for spec in told.specs] == [("a", "h1"), ("b", "h2")]
    assert told.left_out == (
        LeftOut("dns:h", "a", "the configuration has one of that name"),
        LeftOut("dns:h", "again", "the configuration has http://h1:1 as a"),
        LeftOut("file:f", "b", "dns:h has one of that name"),
        LeftOut("file:f", "c", "dns:h has http://h2:1 as b"),
    )


def test_who_is_being_ended_stays_only_where_it_is() -> None:
    told = members_of(
        settings(),
        [found("here", "h2", draining=True), found("new", "h3", draining=True), found("new", "h4")],
        {"here"}.__contains__,
    )
    assert [(spec.name, spec.host) for spec in told.specs] == [("a", "h1"), ("here", "h2"), ("new", "h4")]
    assert (told.draining, told.left_out) == ({"here"}, ())


def test_offline_files_are_read_and_the_rest_is_told(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(
        json.dumps([{"url": "http://h2:2", "engine": "sglang"}, {"name": "a", "url": "http://h3:3"}])
    )
    bad.write_text(json.dumps([{"url": "ftp://x"}, 3]))
    told = offline_members(
        settings(
            discovery=[
                {"kind": "file", "path": str(good), "weight": 4},
                {"kind": "file", "path": str(bad)},
                {"kind": "dns", "host": "h"},
                {"kind": "kubernetes", "service": "vllm"},
            ]
        )
    )
    assert [(spec.name, spec.weight, spec.engine) for spec in told.specs] == [
        ("a", 1, None),
        ("h2:2", 4, "sglang"),
    ]
    assert told.notes("look elsewhere") == [
        f"Backends read from file:{good} as it is now: 2.",
        f"file:{bad} has no backends now: {bad}: backends[0].url: must start with http:// or https://",
        f"file:{bad} has no backends now: {bad}: backends[1]: must be a group of `key: value` lines",
        f"Backend a of file:{good} is left out: the configuration has one of that name.",
        "Backends that dns:h, kubernetes:vllm finds are not known here: look elsewhere.",
    ]
    assert told.mistakes == tuple(told.notes("")[1:4])
    assert offline_members(settings()).notes("look elsewhere") == []
