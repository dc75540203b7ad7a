"""Replies to Anthropic's `/v1/messages`, as vLLM 0.32 writes them (see captures): named events and no
`[DONE]`."""

from __future__ import annotations

from typing import Any

import orjson

from stickyroute.simulator.replies import Usage, named_event

_REASONS = {"length": "max_tokens", "stop": "end_turn", "abort": "end_turn"}


class Messages:
    """One message; `prompt_tokens` is known before the first token and opens the stream."""

    def __init__(self, request_id: str, model: str, prompt_tokens: int) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._reason = "length"

    def tell_tokens(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        """This kind of reply has no place for them."""

    def greeting(self) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def opening(self, index: int) -> bytes:
        start = {
            "type": "message_start",
            "message": {
                "id": self._id,
                "type": "message",
                "role": "assistant",
                "content": [],
                "model": self._model,
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": self._prompt_tokens, "output_tokens": 0},
            },
        }
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": index}
        return named_event("message_start", start) + named_event("content_block_start", block)

    def token(self, index: int, text: str) -> bytes:
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}, "index": index}
        return named_event("content_block_delta", delta)

    def last(self, index: int, text: str, reason: str) -> bytes:
        self._reason = reason
        token = self.token(index, text) if text else b""
        return token + named_event("content_block_stop", {"type": "content_block_stop", "index": index})

    def closing(self, usage: Usage) -> bytes:
        delta = {
            "type": "message_delta",
            "delta": {"stop_reason": _REASONS[self._reason], "stop_sequence": None},
            "usage": _usage(usage),
        }
        return named_event("message_delta", delta) + named_event("message_stop", {"type": "message_stop"})

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": text} for text in texts],
                "model": self._model,
                "stop_reason": _REASONS[reasons[0]],
                "usage": _usage(usage),
            }
        )


def _usage(usage: Usage) -> dict[str, Any]:
    counts = {"input_tokens": usage.prompt, "output_tokens": usage.completion}
    if usage.cached is not None:  # Anthropic counts them beside the input, and so does vLLM
        counts["input_tokens"] = max(0, usage.prompt - usage.cached - usage.created)
        counts["cache_creation_input_tokens"] = usage.created
        counts["cache_read_input_tokens"] = usage.cached
    return counts
