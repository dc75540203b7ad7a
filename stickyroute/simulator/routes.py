"""The HTTP surface of one engine: which path does what, in vLLM's dialect and in SGLang's.

Owns paths, status codes and small bodies. Generation itself is the server's; bodies are read by `asks`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from stickyroute.simulator import exposition
from stickyroute.simulator.asks import Ask, Refused
from stickyroute.simulator.faults import from_mapping
from stickyroute.simulator.replies import Reply, VllmChat, VllmCompletion
from stickyroute.simulator.replies_sglang import SglangChat, SglangCompletion
from stickyroute.simulator.wire import JSON, Connection, Request

if TYPE_CHECKING:
    from stickyroute.simulator.server import RunningEngine

_BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # what vLLM's --api-key covers
_FAULTS_PATH = "/sim/faults"

Handler = Callable[[Connection, Request], None]


class Routes:
    """Answers every request of one engine."""

    def __init__(self, engine: RunningEngine) -> None:
        self._engine = engine
        self._config = engine.config
        self._sglang = engine.config.dialect == "sglang"
        self._created = int(time.time())
        self._table: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/load": {"GET": self._load},
            _FAULTS_PATH: {"GET": self._faults, "POST": self._faults, "DELETE": self._faults},
        }

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer, or hand over to the engine."""
        engine = self._engine
        methods = self._table.get(request.path)
        handler = methods.get(request.method) if methods is not None else None
        if request.path != _FAULTS_PATH:
            if self._refuse_key(connection, request):
                return
            if request.method == "POST" and engine.faults.take("hang_before_headers") is not None:
                return  # read, and never answered
            if engine.faults.take("garbage") is not None:
                connection.write(b"\x00\x17\xfe\xedgarbage\r\n\r\n")
                connection.close()
                return
        if methods is None:
            self._answer(connection, request, 404, {"detail": "Not Found"})
            return
        if handler is None:
            allowed = b"allow: %b\r\n" % ", ".join(methods).encode()
            self._answer(connection, request, 405, {"detail": "Method Not Allowed"}, allowed)
            return
        try:
            handler(connection, request)
        except Refused as refused:
            self._refuse(connection, request, refused)

    def load_header(self, request: Request) -> bytes:
        """The ORCA report of a whole chat or plain completion of vLLM, when the request asks for one."""
        kind = request.headers.get(b"endpoint-load-metrics-format", b"").upper()
        if self._sglang or kind not in (b"TEXT", b"JSON"):
            return self._request_id(request)
        engine = self._engine.engine
        named = {"kv_cache_usage_perc": engine.cache.usage, "num_requests_waiting": float(engine.waiting)}
        if kind == b"TEXT":
            report = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
        else:
            report = orjson.dumps({"named_metrics": named}).decode()
        return b"endpoint-load-metrics: %b %b\r\n" % (kind, report.encode()) + self._request_id(request)

    def _chat(self, connection: Connection, request: Request) -> None:
        ask = self._engine.reader.chat(self._body(request))
        kind = SglangChat if self._sglang else VllmChat
        self._generate(
            connection, request, ask, kind(self._id(request), int(time.time()), ask.model, ask.usage_asked)
        )

    def _completion(self, connection: Connection, request: Request) -> None:
        ask = self._engine.reader.completion(self._body(request))
        kind = SglangCompletion if self._sglang else VllmCompletion
        self._generate(
            connection, request, ask, kind(self._id(request), int(time.time()), ask.model, ask.usage_asked)
        )

    def _generate(self, connection: Connection, request: Request, ask: Ask, reply: Reply) -> None:
        engine = self._engine
        engine.check_fit(ask)
        if engine.busy():
            engine.observed.rejected += 1
            raise Refused(503, _BUSY, "Service Unavailable")
        self._count(request, "2xx")
        engine.generate(connection, request, ask, reply)

    def _models(self, connection: Connection, request: Request) -> None:
        rows = [self._model_row(self._config.model, None)]
        rows += [self._model_row(name, self._config.model) for name in self._config.adapters]
        self._answer(connection, request, 200, {"object": "list", "data": rows})

    def _model_row(self, name: str, parent: str | None) -> dict[str, Any]:
        limit = self._config.profile.context_tokens
        row: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang" if self._sglang else "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": limit if parent is None or not self._sglang else None,
        }
        if not self._sglang:
            row["permission"] = [
                {
                    "id": f"modelperm-{uuid.uuid5(uuid.NAMESPACE_URL, name).hex[:16]}",
                    "object": "model_permission",
                    "created": self._created,
                    "allow_create_engine": False,
                    "allow_sampling": True,
                    "allow_logprobs": True,
                    "allow_search_indices": False,
                    "allow_view": True,
                    "allow_fine_tuning": False,
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ]
        return row

    def _health(self, connection: Connection, request: Request) -> None:
        self._count(request, "2xx")
        connection.respond(200, b"", None)

    def _version(self, connection: Connection, request: Request) -> None:
        self._answer(connection, request, 200, {"version": "0.32.0"})

    def _load(self, connection: Connection, request: Request) -> None:
        in_flight = self._engine.observed.in_flight if self._config.track_load else 0
        self._answer(connection, request, 200, {"server_load": in_flight})

    def _metrics(self, connection: Connection, request: Request) -> None:
        engine = self._engine
        if "metrics_missing" in engine.faults:
            self._answer(connection, request, 404, {"detail": "Not Found"})
            return
        engine.refresh()
        connection.respond(
            200, exposition.vllm(engine.config, engine.engine, engine.observed), exposition.CONTENT_TYPE
        )

    def _faults(self, connection: Connection, request: Request) -> None:
        """GET what is on; POST {"kind": ..., ...} turns a fault on, DELETE turns all off."""
        engine = self._engine
        if request.method == "DELETE":
            engine.heal()
        elif request.method == "POST":
            try:
                fault = from_mapping(self._body(request))
            except ValueError as failure:
                raise Refused(400, str(failure), "BadRequestError") from None
            if fault.kind == "crash":
                engine.crash()
                return
            engine.inject(fault)
        self._answer(connection, request, 200, {"on": engine.faults.kinds()})

    def _body(self, request: Request) -> dict[str, Any]:
        return self._engine.reader.body(request.body, request.headers.get(b"content-type", JSON))

    def _refuse_key(self, connection: Connection, request: Request) -> bool:
        key = self._config.api_key
        if key is None or not request.path.startswith(_GUARDED):
            return False
        if request.headers.get(b"authorization") == b"Bearer " + key.encode():
            return False
        connection.respond(401, b'{"error":"Unauthorized"}', vary=False, headers=self._request_id(request))
        return True

    def _refuse(self, connection: Connection, request: Request, refused: Refused) -> None:
        error = {
            "message": refused.message,
            "type": refused.kind,
            "param": refused.param,
            "code": refused.status,
        }
        value = {"object": "error", **error} if self._sglang else {"error": error}
        self._answer(connection, request, refused.status, value)

    def _answer(
        self, connection: Connection, request: Request, status: int, value: object, headers: bytes = b""
    ) -> None:
        self._count(request, f"{status // 100}xx")
        connection.respond(status, orjson.dumps(value), headers=headers + self._request_id(request))

    def _count(self, request: Request, status: str) -> None:
        known = request.path in self._table
        self._engine.observed.http[(request.path if known else "none", request.method, status)] += 1

    def _id(self, request: Request) -> str:
        given = request.headers.get(b"x-request-id")
        if self._sglang:
            return uuid.uuid4().hex
        return given.decode("latin-1") if given else uuid.uuid4().hex[:16]

    def _request_id(self, request: Request) -> bytes:
        if not self._config.request_id_headers:
            return b""
        return b"x-request-id: %b\r\n" % (request.headers.get(b"x-request-id") or uuid.uuid4().hex.encode())
