"""Replies to chat and plain completions, byte for byte as vLLM 0.32 and SGLang 0.5.23 write them (see
captures).

Owns the JSON and the events. Knows neither sockets nor time: the server asks for the bytes of an opening, of
each token, of the end. Every method that returns stream bytes returns them framed, one event a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from stickyroute.simulator.wire import chunk

FINGERPRINT: Final = "vllm-0.32.0-b53fe642"
DONE: Final = chunk(b"data: [DONE]\n\n")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished request. `cached` is None when the engine's flag doesn't report it."""

    prompt: int
    completion: int
    cached: int | None
    created: int = 0


class WholeReply(Protocol):
    """How a request is answered that doesn't stream."""

    def tell_tokens(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        """The client asked for token ids: of every choice, those of its prompt and of its answer."""

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        """The whole reply."""


class Reply(WholeReply, Protocol):
    """How one kind of request is answered, streaming or not."""

    def greeting(self) -> bytes:
        """Stream: what is said right after the head, before anything is computed."""

    def opening(self, index: int) -> bytes:
        """Stream: what precedes the first token of choice `index`."""

    def token(self, index: int, text: str) -> bytes:
        """Stream: one token that isn't the last."""

    def last(self, index: int, text: str, reason: str) -> bytes:
        """Stream: the last token of a choice and why it ends. With reason `abort`, the text is empty."""

    def closing(self, usage: Usage) -> bytes:
        """Stream: after the last choice, up to but not including the end of the chunked body."""


def event(value: object) -> bytes:
    """One unnamed event in a chunk of its own."""
    return chunk(b"data: " + orjson.dumps(value) + b"\n\n")


def named_event(name: str, value: object) -> bytes:
    """One named event in a chunk of its own."""
    return chunk(b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(value)))


def _escaped(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]


class _TokenIds:
    """vLLM's return_token_ids, for whole replies. Nothing is known until `tell_tokens`."""

    _prompts: Sequence[list[int] | None] = ()
    _answers: Sequence[list[int] | None] = ()

    def tell_tokens(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        self._prompts, self._answers = prompts, answers

    def _prompt_ids(self, index: int) -> list[int] | None:
        return self._prompts[index] if self._prompts else None

    def _answer_ids(self, index: int) -> list[int] | None:
        return self._answers[index] if self._answers else None


class VllmChat(_TokenIds):
    """`/v1/chat/completions` of vLLM. `usage_asked` is stream_options.include_usage."""

    def __init__(self, request_id: str, created: int, model: str, usage_asked: bool) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._created = created
        self._model = model
        self._usage_asked = usage_asked
        # What every event shares, so that a token costs two joins.
        self._head = (
            b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":"%b","choices":['
            % (
                _escaped(self._id),
                created,
                _escaped(model),
            )
        )
        self._before = [self._head + b'{"index":0,"delta":{"content":"']

    def greeting(self) -> bytes:
        """vLLM's first event comes with the first token."""
        return b""

    def opening(self, index: int) -> bytes:
        while len(self._before) <= index:
            self._before.append(self._head + b'{"index":%d,"delta":{"content":"' % len(self._before))
        return chunk(
            self._head + b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n' % index
        )

    def token(self, index: int, text: str) -> bytes:
        return chunk(
            self._before[index]
            + text.encode()
            + b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        )

    def last(self, index: int, text: str, reason: str) -> bytes:
        delta = b'{"content":"%b"}' % text.encode() if text else b"{}"
        end = b"}\n\n" if self._usage_asked else b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()
        return chunk(
            self._head + b'{"index":%d,"delta":%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,'
            b'"token_ids":null}]%b' % (index, delta, reason.encode(), end)
        )

    def closing(self, usage: Usage) -> bytes:
        if not self._usage_asked:
            return DONE
        return (
            event(
                {
                    "id": self._id,
                    "object": "chat.completion.chunk",
                    "created": self._created,
                    "model": self._model,
                    "choices": [],
                    "usage": _vllm_usage(usage, whole=False),
                    "system_fingerprint": FINGERPRINT,
                }
            )
            + DONE
        )

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "choices": [
                    {
                        "index": index,
                        "message": {
                            "role": "assistant",
                            "content": text,
                            "refusal": None,
                            "annotations": None,
                            "audio": None,
                            "function_call": None,
                            "reasoning": None,
                        },
                        "logprobs": None,
                        "finish_reason": reason,
                        "stop_reason": None,
                        "token_ids": self._answer_ids(index),
                        "routed_experts": None,
                    }
                    for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
                ],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": _vllm_usage(usage, whole=True),
                "prompt_logprobs": None,
                "prompt_token_ids": self._prompt_ids(0),
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )


class VllmChatCounting(VllmChat):
    """The same with stream_options.continuous_usage_stats: every event tells the counts so far."""

    def __init__(
        self, request_id: str, created: int, model: str, usage_asked: bool, prompt_tokens: int
    ) -> None:
        super().__init__(request_id, created, model, usage_asked)
        self._prompt_tokens = prompt_tokens
        self._tokens = 0

    def opening(self, index: int) -> bytes:
        return self._event(
            {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            },
            {"prompt_token_ids": None, "prompt_text": None},
        )

    def token(self, index: int, text: str) -> bytes:
        self._tokens += 1
        delta = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
        return self._event({**delta, "token_ids": None}, {})

    def last(self, index: int, text: str, reason: str) -> bytes:
        self._tokens += bool(text)
        choice = {
            "index": index,
            "delta": {"content": text} if text else {},
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": None,
        }
        return self._event(choice, {} if self._usage_asked else {"system_fingerprint": FINGERPRINT})

    def _event(self, choice: dict[str, Any], behind: dict[str, Any]) -> bytes:
        usage = {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + self._tokens,
            "completion_tokens": self._tokens,
            "completion_tokens_details": None,
        }
        head = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }
        return event({**head, "choices": [choice], "usage": usage, **behind})


class VllmCompletion(_TokenIds):
    """`/v1/completions` of vLLM."""

    def __init__(self, request_id: str, created: int, model: str, usage_asked: bool) -> None:
        self._id = f"cmpl-{request_id}"
        self._created = created
        self._model = model
        self._usage_asked = usage_asked
        self._head = b'data: {"id":"%b","object":"text_completion","created":%d,"model":"%b","choices":[' % (
            _escaped(self._id),
            created,
            _escaped(model),
        )

    def greeting(self) -> bytes:
        """Nothing before the first token."""
        return b""

    def opening(self, index: int) -> bytes:
        return b""

    def token(self, index: int, text: str) -> bytes:
        return chunk(
            self._head + b'{"index":%d,"text":"%b","logprobs":null,"finish_reason":null,"stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]}\n\n' % (index, text.encode())
        )

    def last(self, index: int, text: str, reason: str) -> bytes:
        end = b"}\n\n" if self._usage_asked else b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()
        return chunk(
            self._head + b'{"index":%d,"text":"%b","logprobs":null,"finish_reason":"%b","stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]%b' % (index, text.encode(), reason.encode(), end)
        )

    def closing(self, usage: Usage) -> bytes:
        if not self._usage_asked:
            return DONE
        head = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model}
        return (
            event(
                {**head, "choices": [], "usage": _vllm_usage(usage, False), "system_fingerprint": FINGERPRINT}
            )
            + DONE
        )

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "object": "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": [
                    {
                        "index": index,
                        "text": text,
                        "logprobs": None,
                        "finish_reason": reason,
                        "stop_reason": None,
                        "token_ids": self._answer_ids(index),
                        "prompt_logprobs": None,
                        "prompt_token_ids": self._prompt_ids(index),
                    }
                    for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
                ],
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": _vllm_usage(usage, whole=True),
                "kv_transfer_params": None,
            }
        )


def _vllm_usage(usage: Usage, whole: bool) -> dict[str, Any]:
    details: dict[str, Any] | None = None
    if usage.cached is not None:
        details = {"cached_tokens": usage.cached, "created_cache_tokens": usage.created}
        if whole:
            details["multimodal_tokens"] = None
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
        "prompt_tokens_details": details,
    }
    if whole:
        counts["completion_tokens_details"] = None
    elif details is None:
        del counts["prompt_tokens_details"]
    return counts
