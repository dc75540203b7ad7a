"""What is answered without a backend: keys, health, models, preflights, unknown paths, errors.

Owns every reply that stickyroute words itself. Must not choose a backend or open a connection.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Final

from stickyroute.accesslog import AccessLog
from stickyroute.clock import monotonic
from stickyroute.errors import NoBackend, NotFound, StickyrouteError, Unauthorized
from stickyroute.fleet import Fleet
from stickyroute.http.listener import ClientConnection
from stickyroute.http.message import Request
from stickyroute.http.words import COMPLETE
from stickyroute.metrics import Metrics
from stickyroute.openai.errors import error_body
from stickyroute.openai.models import merge_models
from stickyroute.openai.routes import Route, RouteTable, Shape

_JSON: Final = b"content-type: application/json\r\n"
# What decides whether a browser may read a reply: ours to say, once origins are configured.
CORS_FIELDS: Final = frozenset({b"access-control-allow-origin", b"access-control-allow-credentials"})
_LOCAL: Final = frozenset({Shape.HEALTH, Shape.MODELS, Shape.MODEL})


class Front:
    """Local answers. `gateway_keys` maps a key to its name (the tenant); none means an open port."""

    __slots__ = ("_access_log", "_fleet", "_metrics", "_routes", "allow_origins", "gateway_keys")

    def __init__(
        self,
        fleet: Fleet,
        routes: RouteTable,
        metrics: Metrics,
        access_log: AccessLog | None,
        gateway_keys: Mapping[bytes, str],
        allow_origins: frozenset[str],
    ) -> None:
        self._fleet = fleet
        self._routes = routes
        self._metrics = metrics
        self._access_log = access_log
        self.gateway_keys = gateway_keys
        self.allow_origins = allow_origins

    def retune(
        self, gateway_keys: Mapping[bytes, str], allow_origins: frozenset[str], routes: RouteTable
    ) -> None:
        """Go by these from the next request on."""
        self.gateway_keys = gateway_keys
        self.allow_origins = allow_origins
        self._routes = routes

    def tenant(self, request: Request, route: Route) -> str:
        """Who is asking, "" on an open port. Raises Unauthorized; keys are compared in constant time.

        `/health` asks for no key, as in the engines: whoever balances load over several proxies has none.
        """
        keys = self.gateway_keys
        if not keys or route.shape is Shape.HEALTH:
            return ""
        offered = request.headers.get(b"x-api-key", b"")
        bearer = request.headers.get(b"authorization", b"")
        if bearer[:7].lower() == b"bearer ":
            offered = bearer[7:].strip()
        found = ""
        for key, name in keys.items():
            if hmac.compare_digest(key, offered):
                found = name
        if not found:
            raise Unauthorized("Incorrect API key provided.")
        return found

    def answers(self, client: ClientConnection, request: Request, route: Route) -> bool:
        """Answer a route that is ours; False for one that needs a backend."""
        if route.shape not in _LOCAL:
            return False
        if not any(self._fleet.available):
            # An empty list of models would look like one; clients keep such things.
            wait_s = max(1.0, self._fleet.next_retry_s(monotonic()))
            raise NoBackend("No backend is reachable.", retry_after_s=wait_s)
        if route.shape is Shape.HEALTH:
            body = b'{"status":"ok"}'
        elif route.shape is Shape.MODELS:
            body = merge_models(self._fleet.models())
        else:
            name = request.path.removeprefix(b"/v1/models/").decode("latin-1")
            body = merge_models(self._fleet.models(), only=name)
        self._reply(client, request, 200, body, _JSON, route)
        return True

    def off_the_map(self, client: ClientConnection, request: Request) -> None:
        """Answer what is no route: a preflight, a wrong method, an unknown path. Nothing is forwarded."""
        methods = self._routes.allowed(request.path)
        if not methods:
            raise NotFound("Unknown path: only inference routes are served here.", code="unknown_path")
        allow = b"allow: %b\r\n" % ", ".join((*methods, "OPTIONS")).encode()
        if request.method == b"OPTIONS":
            self._reply(client, request, 204, b"", allow + self._preflight(request, methods), None)
            return
        problem = StickyrouteError("This path does not take that method.", status=405, code="wrong_method")
        problem.type = "invalid_request_error"
        self._reply(client, request, 405, problem_body(None, problem), _JSON + allow, None)

    def refuse(
        self,
        client: ClientConnection,
        request: Request,
        problem: StickyrouteError,
        route: Route | None = None,
    ) -> None:
        """Answer with an error in the shape of the route's API; nothing was forwarded."""
        self._reply(
            client, request, problem.status, problem_body(route, problem), problem_lines(problem), route
        )

    def _reply(
        self,
        client: ClientConnection,
        request: Request,
        status: int,
        body: bytes,
        lines: bytes,
        route: Route | None,
    ) -> None:
        template = route.template if route is not None else ""
        duration_s = monotonic() - request.started_s
        sent = 0 if request.method == b"HEAD" else len(body)
        self._metrics.record("", "", template, status, "local", None, duration_s, request.wire_bytes, sent)
        if self._access_log is not None:
            self._access_log.write(
                request_id=request.request_id,
                peer=client.peer,
                method=request.method,
                route=template,
                pool="",
                key=None,
                key_source="",
                backend="",
                reason="local",
                attempts=0,
                status=status,
                ttft_s=None,
                duration_s=duration_s,
                bytes_in=request.wire_bytes,
                bytes_out=sent,
                end=COMPLETE,
            )
        lines += b"x-request-id: %b\r\n" % request.request_id + self.cors(request)
        client.reply(request, status, body, lines)

    def cors(self, request: Request) -> bytes:
        """The fields that let a browser at an allowed origin read the reply."""
        allowed = self.allow_origins
        origin = request.headers.get(b"origin")
        if not allowed or origin is None:
            return b""
        if "*" in allowed:
            return b"access-control-allow-origin: *\r\n"
        if origin.decode("latin-1") in allowed:
            return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin
        return b""

    def _preflight(self, request: Request, methods: Sequence[str]) -> bytes:
        if not self.cors(request):
            return b""
        asked = request.headers.get(b"access-control-request-headers", b"*")
        return (
            b"access-control-allow-methods: %b\r\n"
            b"access-control-allow-headers: %b\r\n"
            b"access-control-max-age: 600\r\n" % (", ".join(methods).encode(), asked)
        )


def problem_body(route: Route | None, problem: StickyrouteError) -> bytes:
    """The error object in the shape that clients of the route expect."""
    shape = route.shape if route is not None else None
    return error_body(shape, problem.status, problem.message, problem.type, problem.code, problem.param)


def problem_lines(problem: StickyrouteError) -> bytes:
    """Header lines of an error reply; Retry-After is in whole seconds, at least one."""
    if problem.retry_after_s is None:
        return _JSON
    return _JSON + b"retry-after: %d\r\n" % max(1, round(problem.retry_after_s + 0.5))
