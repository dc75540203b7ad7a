"""Routes that tell about an engine or steer it: models, health, load, metrics, caches, faults.

Owns paths and small bodies. `/sim/faults` is ours, everything else is the real engines'.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from stickyroute.simulator import exposition, exposition_sglang
from stickyroute.simulator.answers import Answers
from stickyroute.simulator.asks import Refused
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.faults import Fault, from_mapping
from stickyroute.simulator.observed import Observed
from stickyroute.simulator.wire import Connection, Request

if TYPE_CHECKING:
    from stickyroute.simulator.server import RunningEngine

FAULTS_PATH: Final = "/sim/faults"

Handler = Callable[[Connection, Request], None]


class InfoRoutes:
    """The handlers for one engine, by path and method in `table`."""

    def __init__(self, engine: RunningEngine, answers: Answers) -> None:
        self._engine = engine
        self._config = engine.config
        self._answers = answers
        self._sglang = engine.config.dialect == "sglang"
        self._created = int(time.time())
        self._exposition = exposition_sglang.sglang if self._sglang else exposition.vllm
        self.table: dict[str, dict[str, Handler]] = {
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._metrics},
            FAULTS_PATH: {"GET": self._faults, "POST": self._faults, "DELETE": self._faults},
        }
        self.table |= self._of_sglang() if self._sglang else self._of_vllm()

    def _of_vllm(self) -> dict[str, dict[str, Handler]]:
        return {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/reset_prefix_cache": {"POST": self._flush},
            "/kv_event_sources": {"GET": self._kv_event_sources},
        }

    def _of_sglang(self) -> dict[str, dict[str, Handler]]:
        return {
            "/health": {"GET": self._health_generate},
            "/health_generate": {"GET": self._health_generate},
            "/ready": {"GET": self._health},
            "/ping": {"GET": self._health},
            "/model_info": {"GET": self._model_info},
            "/get_model_info": {"GET": self._model_info},
            "/server_info": {"GET": self._server_info},
            "/get_server_info": {"GET": self._server_info},
            "/v1/loads": {"GET": self._loads},
            "/flush_cache": {"GET": self._flush, "POST": self._flush},
        }

    def _models(self, connection: Connection, request: Request) -> None:
        rows = [self._model_row(self._config.model, None)]
        rows += [self._model_row(name, self._config.model) for name in self._config.adapters]
        self._answers.answer(connection, request, 200, {"object": "list", "data": rows})

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
        status = 503 if "engine_error" in self._engine.faults else 200
        self._answers.count(request, f"{status // 100}xx")
        connection.respond(status, b"", None)

    def _health_generate(self, connection: Connection, request: Request) -> None:
        """SGLang generates a token, looks once a second whether it is there, and gives up after twenty."""
        asyncio.get_running_loop().call_later(1.0, self._health_checked, connection, request, 1)

    def _health_checked(self, connection: Connection, request: Request, seconds: int) -> None:
        if connection.lost:
            return
        if "dead" not in self._engine.faults:
            self._health(connection, request)
        elif seconds >= 20:
            self._answers.count(request, "5xx")
            connection.respond(503, b"", None)
        else:
            asyncio.get_running_loop().call_later(1.0, self._health_checked, connection, request, seconds + 1)

    def _flush(self, connection: Connection, request: Request) -> None:
        self._engine.inject(Fault("lost_cache"))
        self._answers.count(request, "2xx")
        connection.respond(200, b"Cache flushed.\n" if self._sglang else b"", b"text/plain; charset=utf-8")

    def _model_info(self, connection: Connection, request: Request) -> None:
        value = {
            "model_path": self._config.model,
            "tokenizer_path": self._config.model,
            "is_generation": True,
            "served_model_name": self._config.model,
            "weight_version": "default",
        }
        self._answers.answer(connection, request, 200, value)

    def _server_info(self, connection: Connection, request: Request) -> None:
        profile = self._config.profile
        value = {
            "model_path": self._config.model,
            "served_model_name": self._config.model,
            "page_size": self._engine.engine.cache.block_size,
            "max_total_num_tokens": self._engine.engine.cache.capacity_tokens,
            "max_running_requests": profile.sequences,
            "internal_states": [{"last_gen_throughput": 0.0}],
            "version": "0.5.23",
        }
        self._answers.answer(connection, request, 200, value)

    def _loads(self, connection: Connection, request: Request) -> None:
        self._engine.refresh()
        engine = self._engine.engine
        load = {
            "dp_rank": 0,
            "num_running_reqs": engine.running,
            "num_waiting_reqs": engine.waiting,
            "num_waiting_uncached_tokens": engine.waiting_uncached_tokens,
            "num_used_tokens": engine.cache.used_tokens,
            "num_total_tokens": engine.cache.used_tokens,
            "max_total_num_tokens": engine.cache.capacity_tokens,
            "max_running_requests": engine.profile.sequences,
            "token_usage": round(engine.cache.usage, 4),
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": round(engine.running / engine.profile.sequences, 4),
        }
        value = {
            "timestamp": time.time(),
            "version": "0.5.23",
            "accelerator": self._config.profile.name,
            "num_accelerators": 1,
            "loads": [load],
        }
        self._answers.answer(connection, request, 200, value)

    def _kv_event_sources(self, connection: Connection, request: Request) -> None:
        sources = {}
        events = self._engine.kv_events
        if events is not None:
            sources["0"] = {
                "endpoint": events.endpoint,
                "replay_endpoint": events.replay_endpoint,
                "topic": self._config.kv_topic,
            }
        self._answers.answer(connection, request, 200, sources)

    def _version(self, connection: Connection, request: Request) -> None:
        self._answers.answer(connection, request, 200, {"version": "0.32.0"})

    def _load(self, connection: Connection, request: Request) -> None:
        in_flight = self._engine.observed.in_flight if self._config.track_load else 0
        self._answers.answer(connection, request, 200, {"server_load": in_flight})

    def _metrics(self, connection: Connection, request: Request) -> None:
        engine = self._engine
        if "metrics_missing" in engine.faults:
            self._answers.answer(connection, request, 404, {"detail": "Not Found"})
            return
        engine.refresh()
        if "metrics_lying" in engine.faults:
            idle = Engine(self._config.profile)
            text = self._exposition(
                engine.config, idle, Observed(self._config.dialect, engine.observed.started_unix_s)
            )
        else:
            text = self._exposition(engine.config, engine.engine, engine.observed)
        connection.respond(200, text, exposition.CONTENT_TYPE)

    def _faults(self, connection: Connection, request: Request) -> None:
        """GET what is on; POST {"kind": ..., ...} turns a fault on, DELETE turns all off."""
        engine = self._engine
        if request.method == "DELETE":
            engine.heal()
        elif request.method == "POST":
            try:
                fault = from_mapping(self._answers.body(request))
            except ValueError as failure:
                raise Refused(400, str(failure), "BadRequestError") from None
            if fault.kind == "crash":
                engine.crash()
                return
            engine.inject(fault)
        self._answers.answer(connection, request, 200, {"on": engine.faults.kinds()})
