"""Requests, and the keys that a rule makes of them."""

from __future__ import annotations

from typing import Any

import orjson

from stickyroute.openai.request import parse
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.keys import Needs, RequestKeys

ASK = [{"role": "user", "content": "hello"}]
PROMPT = [{"role": "user", "content": "word " * 200}]


def keys(
    *sources: str,
    headers: dict[bytes, bytes] | None = None,
    tenant: str = "",
    shape: Shape = Shape.CHAT,
    **body: Any,
) -> RequestKeys:
    asked = parse(shape, orjson.dumps({"model": "m", **body}), strict=False)
    return AffinityRule(sources).keys(headers or {}, shape, asked, tenant)


def made(
    needs: Needs, rule: AffinityRule | None = None, pool: tuple[int, ...] = (), **body: Any
) -> RequestKeys:
    rule = rule or AffinityRule(["body:user", "prefix"], needs=needs)
    return rule.keys({}, Shape.CHAT, parse(Shape.CHAT, orjson.dumps({"model": "m", **body}), True), "", pool)
