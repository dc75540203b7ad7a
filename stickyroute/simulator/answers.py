"""What every route of an engine answers with: JSON in the dialect's shape, its errors, its headers.

Owns shapes and the count of requests by route. Knows no route.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import orjson

from stickyroute.simulator.asks import Refused
from stickyroute.simulator.wire import JSON, Connection, Request

if TYPE_CHECKING:
    from stickyroute.simulator.server import RunningEngine


class Answers:
    """For one engine; `known` are the paths it has, which label its request counts."""

    def __init__(self, engine: RunningEngine, known: set[str]) -> None:
        self._engine = engine
        self._config = engine.config
        self._known = known
        self._sglang = engine.config.dialect == "sglang"

    def body(self, request: Request) -> dict[str, Any]:
        """The request's JSON object; Refused says what is wrong with it."""
        return self._engine.reader.body(request.body, request.headers.get(b"content-type", JSON))

    def answer(
        self, connection: Connection, request: Request, status: int, value: object, headers: bytes = b""
    ) -> None:
        """A value as JSON."""
        self.count(request, f"{status // 100}xx")
        connection.respond(status, orjson.dumps(value), headers=headers)

    def refuse(self, connection: Connection, request: Request, refused: Refused) -> None:
        """An error in the dialect's shape."""
        error = self.error(refused.status, refused.message, refused.kind, refused.param)
        self.answer(connection, request, refused.status, error if self._sglang else {"error": error})

    def error(self, status: int, message: str, kind: str, param: str | None) -> dict[str, Any]:
        """An error object."""
        error = {"message": message, "type": kind, "param": param, "code": status}
        return {"object": "error", **error} if self._sglang else error

    def count(self, request: Request, status: str) -> None:
        """Count one reply, by route, method and class of status."""
        known = request.path in self._known
        self._engine.observed.http[(request.path if known else "none", request.method, status)] += 1

    def request_id(self, request: Request) -> bytes:
        """The header line that echoes the request's id, if the engine was told to."""
        if not self._config.request_id_headers:
            return b""
        return b"x-request-id: %b\r\n" % (request.headers.get(b"x-request-id") or uuid.uuid4().hex.encode())
