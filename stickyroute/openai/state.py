"""State that one engine keeps for a client to come back to: responses and sessions, each by its id.

Owns where such an id stands in a request and where a reply gives it out. Engines keep both in their own memory, so a
request that names one is of use to that engine alone. An id that is not found costs a look elsewhere, never an error.
Knows nothing of backends.
"""

from __future__ import annotations

import re
from typing import Any

from stickyroute.openai.routes import Route, Shape

__all__ = ["GivenId", "gives_id", "held_id", "holds_id"]

_RESPONSES = b"/v1/responses/"
_ID_BYTES = 256

_HEAD_BYTES = 4096
"""An id that is not among the first bytes of a reply is not looked for any further."""

# Engines name responses so. Text of the model can't be taken for the field: in a JSON string every quote is escaped.
_RESPONSE_ID = re.compile(rb'"id"[ \t]{0,4}:[ \t]{0,4}"(resp_[A-Za-z0-9_-]{1,128})"')
_SESSION_ID = re.compile(rb'\s*"([^"\\\x00-\x1f]{1,256})"\s*')


def holds_id(route: Route, body: bytes) -> bool:
    """Whether a body that routing has no other use for has to be read for the id in it."""
    return route.template == "/close_session" or b'"session_params"' in body


def held_id(route: Route, path: bytes, fields: dict[str, Any] | None) -> bytes | None:
    """The id of what a request comes back to, told apart by kind; None for one that begins something new.

    `fields` is the body as far as it was read.
    """
    if route.template.startswith("/v1/responses/{id}"):
        return _response(path[len(_RESPONSES) :].partition(b"/")[0])
    if fields is None:
        return None
    if route.shape is Shape.RESPONSES:
        return _named(_response, fields.get("previous_response_id"))
    if route.template == "/close_session":
        return _named(_session, fields.get("session_id"))
    params = fields.get("session_params")
    return _named(_session, params.get("id")) if isinstance(params, dict) else None


def gives_id(route: Route) -> bool:
    """Whether replies on this route give out an id."""
    return route.shape is Shape.RESPONSES or route.template == "/open_session"


class GivenId:
    """Looks for the id that a reply gives out (`gives_id`), in its first pieces, wherever they are cut."""

    __slots__ = ("_head", "_pattern", "over")

    def __init__(self, route: Route) -> None:
        self._head = b""
        self._pattern = _RESPONSE_ID if route.shape is Shape.RESPONSES else _SESSION_ID
        self.over = False
        """Nothing more will be found."""

    def feed(self, piece: bytes) -> bytes | None:
        """The id, once, as `held_id` would tell it."""
        pattern = self._pattern
        if self.over:
            return None
        self._head += piece[:_HEAD_BYTES]
        found = pattern.search(self._head) if pattern is _RESPONSE_ID else pattern.fullmatch(self._head)
        if found is not None:
            self.over = True
            return _response(found[1]) if pattern is _RESPONSE_ID else _session(found[1])
        self.over = len(self._head) >= _HEAD_BYTES
        return None


def _named(kind: Any, value: object) -> bytes | None:
    """An id out of JSON; None for what can't be one."""
    if not isinstance(value, str) or not 0 < len(value) <= _ID_BYTES:
        return None
    named: bytes = kind(value.encode("utf-8", "surrogatepass"))
    return named


def _response(name: bytes) -> bytes:
    return b"response " + name


def _session(name: bytes) -> bytes:
    return b"session " + name
