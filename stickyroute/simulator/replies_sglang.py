"""Replies to chat and plain completions as SGLang 0.5.23 writes them (see captures; completions: its
source)."""

from __future__ import annotations

from typing import Any

import orjson

from stickyroute.simulator.replies import DONE, Usage, event

_METADATA = {"weight_version": "default"}


class _Sglang:
    def __init__(self, request_id: str, created: int, model: str, usage_asked: bool, kind: str) -> None:
        self._usage_asked = usage_asked
        self._head: dict[str, Any] = {"id": request_id, "object": kind, "created": created, "model": model}

    def tell_tokens(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        """This kind of reply has no place for them."""

    def greeting(self) -> bytes:
        """Nothing: SGLang sends its head with the first token."""
        return b""

    def closing(self, usage: Usage) -> bytes:
        """The usage event, if asked for, and the end mark."""
        if not self._usage_asked:
            return DONE
        return event({**self._head, "choices": [], "usage": _usage(usage)}) + DONE

    def _event(self, choice: dict[str, Any]) -> bytes:
        return event({**self._head, "choices": [choice]})


class SglangChat(_Sglang):
    """`/v1/chat/completions` of SGLang: an event of its own ends each choice."""

    def __init__(self, request_id: str, created: int, model: str, usage_asked: bool) -> None:
        super().__init__(request_id, created, model, usage_asked, "chat.completion.chunk")

    def opening(self, index: int) -> bytes:
        return self._delta(index, {"reasoning_content": None, "role": "assistant", "content": ""})

    def token(self, index: int, text: str) -> bytes:
        return self._delta(index, {"reasoning_content": None, "content": text})

    def last(self, index: int, text: str, reason: str) -> bytes:
        token = self.token(index, text) if text else b""
        return token + self._delta(index, {"reasoning_content": None}, reason)

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        return orjson.dumps(
            {
                **self._head,
                "object": "chat.completion",
                "choices": [
                    {
                        "index": index,
                        "message": {"role": "assistant", "content": text, "reasoning_content": None},
                        "logprobs": None,
                        "finish_reason": reason,
                        "matched_stop": None,
                    }
                    for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
                ],
                "usage": _usage(usage),
                "metadata": {
                    **_METADATA,
                    "weight_versions": [{"version": "default", "start": 0, "end": usage.completion}],
                },
            }
        )

    def _delta(self, index: int, delta: dict[str, Any], reason: str | None = None) -> bytes:
        return self._event(
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": None}
        )


class SglangCompletion(_Sglang):
    """`/v1/completions` of SGLang."""

    def __init__(self, request_id: str, created: int, model: str, usage_asked: bool) -> None:
        super().__init__(request_id, created, model, usage_asked, "text_completion")

    def opening(self, index: int) -> bytes:
        return b""

    def token(self, index: int, text: str) -> bytes:
        return self._event(_choice(index, text, None))

    def last(self, index: int, text: str, reason: str) -> bytes:
        return self._event(_choice(index, text, reason))

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        choices = [
            _choice(index, text, reason)
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return orjson.dumps({**self._head, "choices": choices, "usage": _usage(usage), "metadata": _METADATA})


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "matched_stop": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
        "prompt_tokens_details": None if usage.cached is None else {"cached_tokens": usage.cached},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }
