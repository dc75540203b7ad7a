"""The question for a prompt's token ids, and its answer: vLLM's and SGLang's `/tokenize`.

Owns which requests can be asked about: chats of text and prompts of text; prompts that are token ids need no
question. What the route cannot render as the engine would (images, documents, other APIs) is not asked about.
Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from stickyroute.openai.routes import Shape

__all__ = ["cache_salt", "question", "read_answer", "token_ids"]

_CHAT_FIELDS = (
    "model",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
# They change the rendered prompt, and /tokenize does not know them.
_UNKNOWN = ("documents", "functions", "reasoning_effort", "mm_processor_kwargs", "media_io_kwargs")
_PROMPT_FIELDS = ("model", "prompt", "add_special_tokens")


def token_ids(shape: Shape, body: Mapping[str, Any]) -> array[int] | None:
    """The ids of a prompt that is token ids; None for every other."""
    prompt = body.get("prompt") if shape is Shape.COMPLETIONS else None
    if not isinstance(prompt, list):
        return None
    try:
        return array("I", prompt)
    except (TypeError, OverflowError):
        return None


def question(shape: Shape, body: Mapping[str, Any], spelled: bool = True) -> bytes | None:
    """What to POST to `/tokenize`; None where the answer would not be what the engine caches.

    `spelled` asks for the text of each token too, which vLLM tells and SGLang does not.
    """
    fields: tuple[str, ...] = _CHAT_FIELDS
    if shape is Shape.CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(map(_is_text, messages)):
            return None
        if any(body.get(name) is not None for name in _UNKNOWN):
            return None
    elif shape is Shape.COMPLETIONS and isinstance(body.get("prompt"), str):
        fields = _PROMPT_FIELDS
    else:
        return None
    asked = {name: body[name] for name in fields if body.get(name) is not None}
    if spelled:
        asked["return_token_strs"] = True
    try:
        return orjson.dumps(asked)
    except orjson.JSONEncodeError:  # nested too deep to be written
        return None


def read_answer(answer: bytes) -> tuple[array[int], Sequence[str] | None] | None:
    """The token ids, and how the engine spells each where it told; None if this is no such answer."""
    try:
        value = orjson.loads(answer)
        ids = value["tokens"]
        if not isinstance(ids, list):
            return None
        tokens = array("I", ids)
    except (ValueError, TypeError, KeyError, OverflowError):  # orjson.JSONDecodeError is a ValueError
        return None
    texts = value.get("token_strs")
    if not isinstance(texts, list) or not all(type(text) is str for text in texts):
        texts = None
    return tokens, texts


def cache_salt(body: Mapping[str, Any]) -> str:
    """What keeps the request's cache entries apart besides its adapter; empty for most."""
    salt = body.get("cache_salt")
    return salt if isinstance(salt, str) else ""


def _is_text(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)
