"""What engines say of their failures, as recorded or as their sources have it, told from what they always say."""

from __future__ import annotations

import pytest

from stickyroute.openai.failures import ABORTED, BUSY, DEAD, FAILED, GOOD, MORE, of_body, of_end, of_opening

CORE_DIED = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", '
    b'"type": "InternalServerError", "param": null, "code": 500}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ROLE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
)
TOKEN = ROLE.replace(b'"role":"assistant","content":""', b'"content":" assign"')
CUT = ROLE.replace(b'{"role":"assistant","content":""}', b"{}").replace(
    b"null}]}", b'"abort","stop_reason":null}]}'
)
FULL = (
    b'data: {"error":{"object":"error","message":"The request queue is full.",'
    b'"type":"SERVICE_UNAVAILABLE","param":null,"code":503}}\n\n'
)
NATIVE = (
    b'data: {"text":"","meta_info":{"id":"1",'
    b'"finish_reason":{"type":"abort","message":"full","status_code":503}}}\n\n'
)


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        (ROLE, GOOD),
        (ROLE[:40], GOOD),
        (TOKEN, GOOD),
        (b": keep-alive\n\n", GOOD),
        (b"", GOOD),
        (b"no event at all", GOOD),
        (FULL, BUSY),
        (FULL + DONE, BUSY),
        (FULL.replace(b'"SERVICE_UNAVAILABLE"', b'"503"').replace(b":503}", b":null}"), BUSY),
        (CUT, BUSY),  # SGLang 0.5.3 to 0.5.9, and vLLM that stops before the first token
        (ROLE + CUT + DONE, BUSY),
        (NATIVE, BUSY),
        (TOKEN + CUT, GOOD),  # text went out
        (CORE_DIED + DONE, DEAD),
        (b'data: {"object":"error","message":"EngineDeadError","type":"x","code":500}\n\n', DEAD),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"m"}}\n\n', BUSY),
        (b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n', FAILED),
        (b'data: {"error":{"message":"too long","code":400}}\n\n', GOOD),  # the client's fault
        (b'data: {"error":"odd"}\n\n', FAILED),
        (b'data: {"error"\n\n', GOOD),  # broken: passed on
        (FULL[:60], MORE),
        (b"data: {", MORE),
        (b"ev", MORE),
        (b"event: mess", GOOD),
    ],
)
def test_the_beginning_of_a_stream(piece: bytes, said: str) -> None:
    assert of_opening(piece, last=False) == (said if piece else MORE)


@pytest.mark.parametrize("error", [b"%b", b'{"message": %b, "code": %b, "type": %b}'])
def test_an_error_as_deep_as_json_may_be_is_one(error: bytes) -> None:
    deep = b"[" * 1020 + b"]" * 1020
    piece = b'data: {"error": ' + error.replace(b"%b", deep) + b"}\n\n"
    assert (of_opening(piece, False), of_opening(piece, True)) == (FAILED, FAILED)


def test_what_ends_before_it_is_known_is_passed_on() -> None:
    assert of_opening(b"data: {", last=True) == GOOD
    assert of_opening(FULL[:60], last=True) == GOOD
    assert of_opening(FULL[:60] + b" " * 9000, last=False) == GOOD


@pytest.mark.parametrize("cut", range(1, len(FULL)))
def test_an_error_event_is_known_wherever_it_is_cut(cut: int) -> None:
    first = of_opening(FULL[:cut], last=False)
    assert first == MORE or cut >= FULL.index(b"\n\n")
    assert of_opening(FULL, last=False) == BUSY


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (TOKEN + DONE, GOOD),
        (b"d6\r\n" + TOKEN + b"\r\na9\r\n" + CORE_DIED + b"\r\n", DEAD),
        (CORE_DIED + DONE, DEAD),
        (CORE_DIED.replace(b"EngineCore", b"Detokenizer"), FAILED),
        (b"10a\r\n" + CUT + b"\r\n", ABORTED),
        (NATIVE, ABORTED),
        (b'event: x\ndata: {"type":"response.failed","response":{}}\n\n', FAILED),
        (b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"abort\\""}}]}\n\n', GOOD),
        (b'data: {"choices":[{"delta":{"content":"say data: {\\"error\\": 1}"}}]}\n\n', GOOD),
        (b"", GOOD),
    ],
)
def test_the_end_of_a_stream(tail: bytes, said: str) -> None:
    assert of_end(tail) == said


def test_a_500_of_an_engine_that_drains_or_is_dead_is_told_from_others() -> None:
    draining = b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}'
    assert of_body(draining) == DEAD
    assert of_body(b'{"error":{"message":"EngineCore encountered an issue."}}') == DEAD
    assert of_body(b'{"error":{"message":"list index out of range"}}') == FAILED
