"""Which requests the public port takes: exact methods and paths, and what kind of body each carries.

Owns the allow-list. It holds the inference, utility and stateful routes of vLLM and SGLang; everything else
is unknown here, so what administers an engine (`/flush_cache`, `/sleep`, `/load_lora_adapter`, ...) can't be
reached through the proxy. Left out as well is what tells about one engine rather than the fleet (`/metrics`,
`/load`, `/docs`, `/openapi.json`, `/kv_event_sources`). Knows nothing of backends or of bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Route", "RouteTable", "Shape"]


class Shape(StrEnum):
    """What a request body looks like. OPAQUE ones are forwarded unread; the last three are answered here."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    OPAQUE = "opaque"
    MODELS = "models"
    MODEL = "model"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `template` is its path with `{id}` for the variable segment: a bounded label for metrics."""

    shape: Shape
    template: str
    websocket: bool = False


_READ: dict[str, Shape] = {
    "/v1/chat/completions": Shape.CHAT,
    "/v1/completions": Shape.COMPLETIONS,
    "/v1/responses": Shape.RESPONSES,
    "/v1/messages": Shape.MESSAGES,
    # Costs the engine little, but its clients expect Anthropic's errors, and its body is that of a message.
    "/v1/messages/count_tokens": Shape.MESSAGES,
    "/v1/embeddings": Shape.EMBEDDINGS,
}

_LOCAL: dict[str, Shape] = {
    "/health": Shape.HEALTH,
    "/ping": Shape.HEALTH,
    "/ready": Shape.HEALTH,
    "/v1/models": Shape.MODELS,
}

# Inference of both engines, unread: audio is multipart, the rest is balanced by load.
_INFERENCE = """
POST /v1/chat/completions/batch
POST /v2/embed
POST /pooling
POST,PUT /classify
POST /v1/classify
POST /score
POST /v1/score
POST /rerank
POST,PUT /v1/rerank
POST /v2/rerank
POST /v1/decisions
POST /v1/systemone
POST /v1/audio/transcriptions
POST /v1/audio/translations
POST /generative_scoring
POST /cohere/v2/chat
POST /invocations
POST /vertex_generate
POST,PUT /generate
POST,PUT /encode
POST /api/chat
POST /api/generate
POST /inference/v1/generate
POST /v1/chat/completions/render
POST /v1/completions/render
POST /v1/responses/render
POST /v1/messages/render
POST /v1/chat/completions/derender
POST /v1/completions/derender
"""

# State lives in one engine's memory. Responses and sessions are found again by their id (`state`); of files and
# batches, which SGLang has given up, only a sticky header finds the engine.
_STATEFUL = """
GET /v1/responses/{id}
POST /v1/responses/{id}/cancel
GET,POST /open_session
GET,POST /close_session
POST /v1/files
GET,DELETE /v1/files/{id}
GET /v1/files/{id}/content
POST /v1/batches
GET /v1/batches/{id}
POST /v1/batches/{id}/cancel
"""

_UTILITY = """
POST /tokenize
POST /v1/tokenize
POST /detokenize
POST /v1/detokenize
POST /parse_function_call
POST /separate_reasoning
POST /api/show
GET /api/tags
GET /version
GET /tokenizer_info
GET /model_info
GET /get_model_info
GET /health_generate
GET /
"""

_REALTIME = "/v1/realtime"

_METHOD = re.compile(r"[A-Z]{3,16}")
# A path as it stands in a request line, less percent-encoding: an encoded slash or dot would name another
# path to the engine than it does here.
_LITERAL = re.compile(r"/|(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+/?")
_SEGMENT = rb"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~:@+=,-]{1,256}"
# Names of models hold slashes ("org/model"); the route is answered here, so the tail names nothing elsewhere.
_MODEL_PREFIX = b"/v1/models/"
_MODEL = Route(Shape.MODEL, "/v1/models/{id}")
_MODEL_METHODS = ("GET", "HEAD")


class RouteTable:
    """The routes of one proxy: the built-in ones and `extra`, each "METHOD /path", `{id}` for any segment.

    An extra route that is built in already changes nothing. Raises ValueError for one that is malformed.
    """

    __slots__ = ("_exact", "_patterns")

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._exact: dict[bytes, dict[bytes, Route]] = {}
        self._patterns: list[tuple[re.Pattern[bytes], dict[bytes, Route]]] = []
        templates: dict[str, dict[bytes, Route]] = {}
        for path, shape in _READ.items():
            self._add(templates, ("POST",), Route(shape, path))
        for path, shape in _LOCAL.items():
            self._add(templates, ("GET",), Route(shape, path))
        self._add(templates, ("POST",), Route(Shape.HEALTH, "/ping"))
        self._add(templates, ("GET",), Route(Shape.OPAQUE, _REALTIME, websocket=True))
        for line in (_INFERENCE + _STATEFUL + _UTILITY).split("\n"):
            if line:
                methods, _, path = line.partition(" ")
                self._add(templates, methods.split(","), Route(Shape.OPAQUE, path))
        for line in extra:
            method, path = _parse_extra(line)
            self._add(templates, (method,), Route(Shape.OPAQUE, path))

    def match(self, method: bytes, path: bytes) -> Route | None:
        """The route, None for one this proxy doesn't have; `path` as received, without its query."""
        routes = self._exact.get(path)
        if routes is None:
            routes = self._by_pattern(path)
            if routes is None:
                return _MODEL if method in (b"GET", b"HEAD") and _names_model(path) else None
        return routes.get(method)

    def allowed(self, path: bytes) -> tuple[str, ...]:
        """The methods that `path` takes, sorted; empty for a path this proxy doesn't have."""
        routes = self._exact.get(path) or self._by_pattern(path)
        if routes is None:
            return _MODEL_METHODS if _names_model(path) else ()
        return tuple(sorted(method.decode() for method in routes))

    def _by_pattern(self, path: bytes) -> dict[bytes, Route] | None:
        for pattern, routes in self._patterns:
            if pattern.fullmatch(path):
                return routes
        return None

    def _add(self, templates: dict[str, dict[bytes, Route]], methods: Iterable[str], route: Route) -> None:
        routes = templates.get(route.template)
        if routes is None:
            routes = templates[route.template] = {}
            if "{id}" in route.template:
                self._patterns.append((_pattern(route.template), routes))
            else:
                self._exact[route.template.encode()] = routes
        for method in methods:
            routes.setdefault(method.encode(), route)
            if method == "GET" and not route.websocket:
                routes.setdefault(b"HEAD", route)


def _names_model(path: bytes) -> bool:
    return path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX)


def _pattern(template: str) -> re.Pattern[bytes]:
    return re.compile(_SEGMENT.join(re.escape(part.encode()) for part in template.split("{id}")))


def _parse_extra(line: str) -> tuple[str, str]:
    """A route of the configuration in parts. Raises ValueError that says what to write."""
    method, blank, path = line.strip().partition(" ")
    path = path.strip()
    if not blank or not _METHOD.fullmatch(method) or not path.startswith("/"):
        raise ValueError(f"route {line!r}: write METHOD /path, such as POST /v1/score")
    literal = re.sub(r"(?<=/)\{id\}(?=/|$)", "id", path)
    if "{" in literal or "}" in literal:
        raise ValueError(f"route {line!r}: the only variable part is {{id}}, and it is a whole segment")
    if not _LITERAL.fullmatch(literal) or {".", ".."} & set(literal.split("/")):
        raise ValueError(f"route {line!r}: write plain segments, with no query, no encoding and no dots")
    return method, path
