"""Requests of every kind, and the prompt that is read out of each."""

from __future__ import annotations

from typing import Any

from stickyroute.openai.prompt import normalize
from stickyroute.openai.routes import Shape

LIMIT = 1024
LONG = 1 << 22


def text(shape: Shape, body: dict[str, Any], limit: int = LONG) -> bytes:
    """The normalized prompt; whether the size of the body is known makes no difference to it."""
    made = normalize(shape, body, limit).text
    if limit == LONG:
        assert normalize(shape, body, limit, 1000).text == made
    return made


def chat(*messages: Any, **more: Any) -> bytes:
    return text(Shape.CHAT, {"model": "m", "messages": list(messages), **more})


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def completion(prompt: Any, limit: int = LONG) -> bytes:
    return text(Shape.COMPLETIONS, {"prompt": prompt}, limit)


def billed(number: int) -> str:
    """Claude Code's billing header: different on every request, at the very front, dropped by vLLM."""
    return f"x-anthropic-billing-header: cc_version=1; cch={number:05d};"


def nested(levels: int) -> Any:
    """Lists in lists, as deep as JSON may be (1024 for the parser) or less."""
    made: Any = []
    for _ in range(levels - 1):
        made = [made]
    return made
