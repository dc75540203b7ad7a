"""The allow-list: what gets through, what never does, and what an operator may add."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.openai.routes import Route, RouteTable, Shape

TABLE = RouteTable()

FORWARDED = [
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses", "POST /v1/messages"),
    *("POST /v1/embeddings", "POST /v1/messages/count_tokens", "POST /v1/chat/completions/batch"),
    *("POST /v2/embed", "POST /pooling", "POST /classify", "PUT /classify", "POST /v1/classify"),
    *("POST /score", "POST /v1/score", "POST /rerank", "POST /v1/rerank", "PUT /v1/rerank"),
    *("POST /v2/rerank", "POST /v1/audio/transcriptions", "POST /v1/audio/translations"),
    *("POST /generative_scoring", "POST /v1/systemone", "POST /v1/decisions", "POST /cohere/v2/chat"),
    *("POST /invocations", "POST /vertex_generate", "POST /generate", "PUT /generate", "POST /encode"),
    *("PUT /encode", "POST /api/chat", "POST /api/generate", "POST /inference/v1/generate"),
    *("POST /v1/chat/completions/render", "POST /v1/completions/render", "POST /v1/responses/render"),
    *("POST /v1/messages/render", "POST /v1/chat/completions/derender", "POST /v1/completions/derender"),
    *("GET /v1/responses/resp_1", "POST /v1/responses/resp_1/cancel", "GET /open_session"),
    *("POST /open_session", "GET /close_session", "POST /close_session", "POST /v1/files"),
    *("GET /v1/files/f-1", "DELETE /v1/files/f-1", "GET /v1/files/f-1/content", "POST /v1/batches"),
    *("GET /v1/batches/b_1", "POST /v1/batches/b_1/cancel", "POST /tokenize", "POST /v1/tokenize"),
    *("POST /detokenize", "POST /v1/detokenize", "POST /parse_function_call", "POST /separate_reasoning"),
    *("POST /api/show", "GET /api/tags", "GET /version", "GET /tokenizer_info", "GET /model_info"),
    *("GET /get_model_info", "GET /health_generate", "GET /", "GET /v1/realtime"),
]

# What changes or shows one engine, in both engines and their older releases.
ADMINISTRATION = """
/v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter /unload_lora_adapter
/load_lora_adapter_from_tensors /start_profile /stop_profile /scale_elastic_ep /is_scaling_elastic_ep
/fault_tolerance/x /inference/v1/abort_requests /abort_requests /abort_request /reset_prefix_cache
/reset_mm_cache /reset_encoder_cache /collective_rpc /server_info /get_server_info /sleep /wake_up
/is_sleeping
/release_kv_cache_memory /pause /resume /is_paused /update_weights /init_weight_transfer_engine
/start_weight_update /finish_weight_update /update_weight_version /weight_info /weight_checker /get_world_size
/flush_cache /v1/loads /get_load /load /metrics /set_internal_state /pause_generation /continue_generation
/update_weights_from_disk /update_weights_from_tensor /update_weights_from_distributed
/init_weights_update_group /begin_weight_update /end_weight_update /destroy_weights_update_group
/get_weights_by_name /weights_checker /release_memory_occupation /resume_memory_occupation
/hicache/storage-backend /hicache/storage-backend/status /configure_logging /freeze_gc /slow_down
/set_trace_level /dumper/start /start_expert_distribution_record /stop_expert_distribution_record
/dump_expert_distribution_record /add_external_corpus /pd_role_switch /generate_from_file
/docs /openapi.json /kv_event_sources /redoc /debug /admin
""".split()

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"]


def match(line: str, table: RouteTable = TABLE) -> Route | None:
    method, _, path = line.partition(" ")
    return table.match(method.encode(), path.encode())


def test_inference_utility_and_stateful_routes_of_both_engines_get_through() -> None:
    assert [line for line in FORWARDED if match(line) is None] == []


def test_routes_that_administer_or_show_one_engine_are_unknown_under_every_method() -> None:
    lines = [f"{method} {path}" for path in ADMINISTRATION for method in METHODS]
    assert [line for line in lines if match(line) is not None] == []
    assert [path for path in ADMINISTRATION if TABLE.allowed(path.encode())] == []


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("POST /v1/chat/completions", Shape.CHAT),
        ("POST /v1/completions", Shape.COMPLETIONS),
        ("POST /v1/responses", Shape.RESPONSES),
        ("POST /v1/messages", Shape.MESSAGES),
        ("POST /v1/embeddings", Shape.EMBEDDINGS),
        ("POST /v1/audio/transcriptions", Shape.OPAQUE),
        ("GET /v1/models", Shape.MODELS),
        ("GET /v1/models/llama", Shape.MODEL),
        ("GET /v1/models/org/llama-8B", Shape.MODEL),
        ("GET /health", Shape.HEALTH),
        ("GET /ping", Shape.HEALTH),
        ("POST /ping", Shape.HEALTH),
        ("GET /ready", Shape.HEALTH),
    ],
)
def test_shapes(line: str, shape: Shape) -> None:
    route = match(line)
    assert route is not None
    assert route.shape is shape


def test_head_works_where_get_does() -> None:
    for line in (*FORWARDED, "GET /health", "GET /v1/models", "GET /v1/models/llama"):
        if line.startswith("GET ") and line != "GET /v1/realtime":
            assert match(line.replace("GET", "HEAD", 1)) == match(line)


def test_the_realtime_route_is_the_only_websocket() -> None:
    sockets = [line for line in FORWARDED if (route := match(line)) and route.websocket]
    assert sockets == ["GET /v1/realtime"]
    assert TABLE.allowed(b"/v1/realtime") == ("GET",)


def test_a_template_is_the_same_for_every_id() -> None:
    assert match("GET /v1/responses/resp_1") == match("GET /v1/responses/resp_2")
    assert match("GET /v1/responses/resp_1") == Route(Shape.OPAQUE, "/v1/responses/{id}")
    assert match("POST /v1/responses/x/cancel") == Route(Shape.OPAQUE, "/v1/responses/{id}/cancel")
    assert match("HEAD /v1/models/a/b") == Route(Shape.MODEL, "/v1/models/{id}")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions", "/V1/chat/completions"),
        *("/v1/chat%2fcompletions", "/v1/chat/completions%00", "v1/chat/completions", "", "*"),
        *("/v1/responses/", "/v1/responses/a/b", "/v1/responses/a%2Fcancel", "/v1/responses/%2e%2e"),
        *("/v1/responses/.", "/v1/responses/..", "/v1/responses/../cancel", "/v1/responses/a\\b"),
        *("/v1/responses/a b", "/v1/responses/a;b", "/v1/responses/a\n", "/v1/responses/" + "x" * 257),
        *("/v1/models/", "/v1/modelsx", "/base/v1/chat/completions", "/v1/responses/x/../../flush_cache"),
        "/v1/responses/\xe9",
    ],
)
def test_anything_but_the_exact_path_is_unknown(path: str) -> None:
    raw = path.encode("latin-1")
    assert [TABLE.match(method.encode(), raw) for method in METHODS] == [None] * len(METHODS)
    assert TABLE.allowed(raw) == ()


def test_allowed_names_the_methods_of_a_path() -> None:
    assert TABLE.allowed(b"/v1/chat/completions") == ("POST",)
    assert TABLE.allowed(b"/v1/models") == ("GET", "HEAD")
    assert TABLE.allowed(b"/v1/models/llama") == ("GET", "HEAD")
    assert TABLE.allowed(b"/v1/files/x") == ("DELETE", "GET", "HEAD")
    assert TABLE.allowed(b"/generate") == ("POST", "PUT")
    assert match("GET /v1/chat/completions") is None
    assert match("post /v1/chat/completions") is None


@given(method=st.binary(max_size=8), path=st.binary(max_size=60))
def test_a_route_matches_exactly_where_its_method_is_allowed(method: bytes, path: bytes) -> None:
    allowed = [name.encode() for name in TABLE.allowed(path)]
    assert (TABLE.match(method, path) is not None) == (method in allowed)


def test_extra_routes() -> None:
    table = RouteTable(["POST /v1/foo", "GET /v1/foo", "DELETE /v1/foo/{id}/bar/{id}", "POST /sleep"])
    assert match("POST /v1/foo", table) == Route(Shape.OPAQUE, "/v1/foo")
    assert match("HEAD /v1/foo", table) == Route(Shape.OPAQUE, "/v1/foo")
    assert match("DELETE /v1/foo/1/bar/2", table) == Route(Shape.OPAQUE, "/v1/foo/{id}/bar/{id}")
    assert match("DELETE /v1/foo/1/bar/", table) is None
    assert match("POST /sleep", table) is not None, "an operator may expose what they like, by name"
    assert match("POST /v1/foo") is None, "another table is not touched"


def test_an_extra_route_that_is_built_in_changes_nothing() -> None:
    table = RouteTable(["POST /v1/chat/completions", "GET /health"])
    assert match("POST /v1/chat/completions", table) == Route(Shape.CHAT, "/v1/chat/completions")
    assert match("GET /health", table) == Route(Shape.HEALTH, "/health")


MALFORMED = [
    *("", "POST", "/v1/foo", "post /v1/foo", "POST v1/foo", "POST /v1/foo?x=1", "POST /v1/foo#x"),
    *("POST /v1/foo bar", "POST /v1/{name}", "POST /v1/a{id}", "POST /v1/{id}b", "POST /v1/{id"),
    *("POST /v1/../flush_cache", "POST /v1/./x", "POST //x", "POST /a//b", "POST /a%2Fb", "POST /é"),
    "POST http://elsewhere/x",
]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_extra_route_is_refused_with_what_to_write(line: str) -> None:
    with pytest.raises(ValueError, match=r"write|whole segment"):
        RouteTable([line])
