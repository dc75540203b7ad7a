"""The settings and the core agree: neither takes what the other refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.routes import RouteTable
from stickyroute.routing.affinity import AffinityRule
from stickyroute.settings import Settings
from tests.openai.test_routes import MALFORMED
from tests.routing.test_affinity import REQUEST_IDS


def settings(**fields: Any) -> Settings:
    return Settings(backends=[{"url": "http://127.0.0.1:9"}], **fields)


@pytest.mark.parametrize("line", [line for line in MALFORMED if line != "post /v1/foo"])
def test_the_settings_refuse_the_routes_that_the_table_refuses(line: str) -> None:
    with pytest.raises(ValueError, match="extra_routes"):
        settings(extra_routes=[line])


@given(st.from_regex(r"(POST|get) /([ab{id}.%?é/-]|\{id\}|/)*", fullmatch=True))
def test_the_table_takes_the_routes_that_the_settings_take(line: str) -> None:
    try:
        routes = settings(extra_routes=[line]).extra_routes
    except ValueError:
        return
    RouteTable(routes)


@pytest.mark.parametrize("source", REQUEST_IDS)
def test_the_settings_refuse_what_differs_on_every_request(source: str) -> None:
    with pytest.raises(ValueError, match="differs on every request"):
        settings(affinity={"sources": [source]})


@given(st.from_regex(r"(header|body|prefix|x):?[a-zA-Z_.é :/'-]{0,6}(request|rid|_id)?", fullmatch=True))
def test_the_rule_takes_the_sources_that_the_settings_take(source: str) -> None:
    try:
        sources = settings(affinity={"sources": [source]}).affinity.sources
    except ValueError:
        return
    AffinityRule(sources)
