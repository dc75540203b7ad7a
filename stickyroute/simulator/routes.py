"""The HTTP surface of one engine: which path does what, in vLLM's dialect and in SGLang's.

Owns paths, status codes and small bodies. Generation itself is the server's; bodies are read by `asks`.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import orjson

from stickyroute.simulator.answers import Answers
from stickyroute.simulator.asks import Ask, Refused
from stickyroute.simulator.replies import (
    DONE,
    Reply,
    VllmChat,
    VllmChatCounting,
    VllmCompletion,
    WholeReply,
    event,
)
from stickyroute.simulator.replies_embeddings import Embeddings
from stickyroute.simulator.replies_messages import Messages
from stickyroute.simulator.replies_responses import Responses
from stickyroute.simulator.replies_sglang import SglangChat, SglangCompletion
from stickyroute.simulator.routes_info import FAULTS_PATH, Handler, InfoRoutes
from stickyroute.simulator.wire import END_OF_CHUNKS, Connection, Request

if TYPE_CHECKING:
    from stickyroute.simulator.server import RunningEngine

_BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
_QUEUE_FULL = "The request queue is full."
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # what vLLM's --api-key covers


class Routes:
    """Answers every request of one engine."""

    def __init__(self, engine: RunningEngine) -> None:
        self._engine = engine
        self._config = engine.config
        self._sglang = engine.config.dialect == "sglang"
        known: set[str] = set()
        self._answers = Answers(engine, known)
        self._table: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completion},
            "/v1/responses": {"POST": self._responses},
            "/v1/messages": {"POST": self._messages},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/embeddings": {"POST": self._embeddings},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
        }
        if self._sglang:
            self._table |= {
                "/v1/tokenize": {"POST": self._tokenize},
                "/v1/detokenize": {"POST": self._detokenize},
            }
        self._table |= InfoRoutes(engine, self._answers).table
        known.update(self._table)

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer, or hand over to the engine."""
        engine = self._engine
        connection.behind = self._answers.request_id(request)
        methods = self._table.get(request.path)
        handler = methods.get(request.method) if methods is not None else None
        if request.path != FAULTS_PATH:
            if self._refuse_key(connection, request):
                return
            if request.method == "POST" and engine.faults.take("hang_before_headers") is not None:
                return  # read, and never answered
            if engine.faults.take("garbage") is not None:
                connection.write(b"\x00\x17\xfe\xedgarbage\r\n\r\n")
                connection.close()
                return
        if methods is None:
            self._answers.answer(connection, request, 404, {"detail": "Not Found"})
            return
        if handler is None:
            allowed = b"allow: %b\r\n" % ", ".join(methods).encode()
            self._answers.answer(connection, request, 405, {"detail": "Method Not Allowed"}, allowed)
            return
        try:
            handler(connection, request)
        except Refused as refused:
            self._answers.refuse(connection, request, refused)

    def load_header(self, request: Request) -> bytes:
        """The ORCA report of a whole chat or plain completion of vLLM, when the request asks for one."""
        kind = request.headers.get(b"endpoint-load-metrics-format", b"").upper()
        if self._sglang or kind not in (b"TEXT", b"JSON"):
            return b""
        engine = self._engine.engine
        named = {"kv_cache_usage_perc": engine.cache.usage, "num_requests_waiting": float(engine.waiting)}
        if kind == b"TEXT":
            report = ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
        else:
            report = orjson.dumps({"named_metrics": named}).decode()
        return b"endpoint-load-metrics: %b %b\r\n" % (kind, report.encode())

    def _chat(self, connection: Connection, request: Request) -> None:
        ask = self._engine.reader.chat(self._answers.body(request))
        about = (self._id(request), int(time.time()), ask.model, ask.usage_asked)
        reply: Reply
        if self._sglang:
            reply = SglangChat(*about)
        elif ask.usage_always:
            reply = VllmChatCounting(*about, len(ask.prompts[0]))
        else:
            reply = VllmChat(*about)
        self._stream(connection, request, ask, reply)

    def _completion(self, connection: Connection, request: Request) -> None:
        ask = self._engine.reader.completion(self._answers.body(request))
        kind = SglangCompletion if self._sglang else VllmCompletion
        self._stream(
            connection, request, ask, kind(self._id(request), int(time.time()), ask.model, ask.usage_asked)
        )

    def _responses(self, connection: Connection, request: Request) -> None:
        body = self._answers.body(request)
        ask = self._engine.reader.responses(body)
        limit = body.get("max_output_tokens")
        reply = Responses(uuid.uuid4().hex[:16], int(time.time()), ask.model, limit)
        self._stream(connection, request, ask, reply)

    def _messages(self, connection: Connection, request: Request) -> None:
        try:
            ask = self._engine.reader.messages(self._answers.body(request))
            reply = Messages(uuid.uuid4().hex[:16], ask.model, len(ask.prompts[0]))
            self._stream(connection, request, ask, reply)
        except Refused as refused:
            kind = "overloaded_error" if refused.status == 503 and self._sglang else refused.kind
            error = {"type": "error", "error": {"type": kind, "message": refused.message}}
            self._answers.answer(connection, request, refused.status, error)

    def _embeddings(self, connection: Connection, request: Request) -> None:
        body = self._answers.body(request)
        ask = self._engine.reader.embedding(body)
        encoding = str(body.get("encoding_format", "float"))
        reply = Embeddings(uuid.uuid4().hex[:16], int(time.time()), ask.model, ask.prompts, encoding)
        self._admit(connection, request, ask, reply, None)

    def _stream(self, connection: Connection, request: Request, ask: Ask, reply: Reply) -> None:
        self._admit(connection, request, ask, reply, reply if ask.stream else None)

    def _admit(
        self, connection: Connection, request: Request, ask: Ask, reply: WholeReply, stream: Reply | None
    ) -> None:
        engine = self._engine
        engine.check_fit(ask)
        if "engine_error" in engine.faults:
            raise Refused(500, "EngineCore encountered an issue.", "InternalServerError")
        if "draining" in engine.faults:
            raise Refused(500, "cannot schedule new futures after shutdown", "InternalServerError")
        if engine.busy():
            engine.observed.rejected += 1
            if not self._sglang:
                raise Refused(503, _BUSY, "Service Unavailable")
            if stream is None:
                raise Refused(503, _QUEUE_FULL, "SERVICE_UNAVAILABLE")
            # SGLang finds out inside the stream, when its 200 is already on the way.
            connection.start_stream()
            connection.write(
                event({"error": self._answers.error(503, _QUEUE_FULL, "SERVICE_UNAVAILABLE", None)})
            )
            connection.write(DONE + END_OF_CHUNKS)
            connection.finished()
            return
        self._answers.count(request, "2xx")
        engine.generate(connection, request, ask, reply, stream)

    def _count_tokens(self, connection: Connection, request: Request) -> None:
        body = self._answers.body(request)
        self._engine.reader.model(body)
        count = len(self._engine.reader.message_prompt(body))
        value = {"input_tokens": count, "context_management": {"original_input_tokens": count}}
        self._answers.answer(connection, request, 200, value)

    def _tokenize(self, connection: Connection, request: Request) -> None:
        body = self._answers.body(request)
        tokens = self._engine.reader.tokenize(body)
        texts = None
        if body.get("return_token_strs"):
            texts = [self._engine.tokenizer.decode([token]) for token in tokens]
        limit = self._config.profile.context_tokens
        value = {"count": len(tokens), "max_model_len": limit, "tokens": tokens.tolist(), "token_strs": texts}
        self._answers.answer(connection, request, 200, value)

    def _detokenize(self, connection: Connection, request: Request) -> None:
        text = self._engine.tokenizer.decode(self._answers.body(request).get("tokens", []))
        self._answers.answer(connection, request, 200, {"text" if self._sglang else "prompt": text})

    def _refuse_key(self, connection: Connection, request: Request) -> bool:
        key = self._config.api_key
        if key is None or not request.path.startswith(_GUARDED):
            return False
        if request.headers.get(b"authorization") == b"Bearer " + key.encode():
            return False
        connection.respond(401, b'{"error":"Unauthorized"}', vary=False)
        return True

    def _id(self, request: Request) -> str:
        given = request.headers.get(b"x-request-id")
        if self._sglang:
            return uuid.uuid4().hex
        return given.decode("latin-1") if given else uuid.uuid4().hex[:16]
