"""Replies to `/v1/responses`, as vLLM 0.32 writes them (see captures): named, numbered events and no
`[DONE]`."""

from __future__ import annotations

from typing import Any

import orjson

from stickyroute.simulator.replies import Usage, named_event


class Responses:
    """One response of one message. `limit` is max_output_tokens as the client gave it."""

    def __init__(self, request_id: str, created: int, model: str, limit: int | None) -> None:
        self._id = f"resp_{request_id}"
        self._item_id = f"msg_{request_id}"
        self._created = created
        self._model = model
        self._limit = limit
        self._sequence = 0
        self._texts: list[str] = []
        self._reason = "length"

    def tell_tokens(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        """This kind of reply has no place for them."""

    def greeting(self) -> bytes:
        """Two events that say nothing but that the request was taken, before any prefill."""
        running = self._response("in_progress", [], None)
        return self._event("response.created", {"response": running}) + self._event(
            "response.in_progress", {"response": running}
        )

    def opening(self, index: int) -> bytes:
        item: dict[str, Any] = {
            "id": self._item_id,
            "content": [],
            "role": "assistant",
            "status": "in_progress",
            "type": "message",
            "phase": None,
        }
        part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._event("response.output_item.added", {"item": item, "output_index": index}) + self._event(
            "response.content_part.added",
            {"content_index": 0, "item_id": self._item_id, "output_index": index, "part": part},
        )

    def token(self, index: int, text: str) -> bytes:
        self._texts.append(text)
        return self._event(
            "response.output_text.delta",
            {
                "content_index": 0,
                "delta": text,
                "item_id": self._item_id,
                "logprobs": [],
                "output_index": index,
            },
        )

    def last(self, index: int, text: str, reason: str) -> bytes:
        self._reason = reason
        token = self.token(index, text) if text else b""
        whole = "".join(self._texts)
        where = {"content_index": 0, "item_id": self._item_id}
        return (
            token
            + self._event(
                "response.output_text.done",
                {**where, "logprobs": [], "output_index": index},
                {"text": whole},
            )
            + self._event(
                "response.content_part.done", {**where, "output_index": index, "part": _part(whole)}
            )
            + self._event("response.output_item.done", {"item": self._item(whole), "output_index": index})
        )

    def closing(self, usage: Usage) -> bytes:
        whole = "".join(self._texts)
        response = self._response(_status(self._reason), [self._item(whole)], usage)
        return self._event("response.completed", {"response": response})

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        self._reason = reasons[0]
        return orjson.dumps(self._response(_status(reasons[0]), [self._item(texts[0])], usage))

    def _event(self, name: str, value: dict[str, Any], behind: dict[str, Any] | None = None) -> bytes:
        numbered = {**value, "sequence_number": self._sequence, **(behind or {}), "type": name}
        self._sequence += 1
        return named_event(name, numbered)

    def _item(self, text: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": [_part(text)],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        }

    def _response(self, status: str, output: list[Any], usage: Usage | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": None,
            "model": self._model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 0.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._limit,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": _usage(usage) if usage is not None else None,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _status(reason: str) -> str:
    return "incomplete" if reason == "length" else "completed"


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached or 0,
            "cache_write_tokens": usage.created,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt + usage.completion,
    }
