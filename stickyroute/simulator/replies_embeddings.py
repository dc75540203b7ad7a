"""Replies to `/v1/embeddings`: vectors that mean nothing, but are the same for the same text on every
engine."""

from __future__ import annotations

import base64
import hashlib
from array import array
from collections.abc import Sequence

import orjson

from stickyroute.simulator.replies import Usage

_DIMENSIONS = 16


class Embeddings:
    """`encoding` is the request's encoding_format: "float" or "base64"."""

    def __init__(
        self, request_id: str, created: int, model: str, prompts: Sequence[array[int]], encoding: str
    ) -> None:
        self._id = f"embd-{request_id}"
        self._created = created
        self._model = model
        self._vectors = [_vector(prompt) for prompt in prompts]
        self._encoding = encoding

    def tell_tokens(self, prompts: list[list[int]], answers: list[list[int]]) -> None:
        """This kind of reply has no place for them."""

    def body(self, texts: list[str], reasons: list[str], usage: Usage) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "object": "list",
                "created": self._created,
                "model": self._model,
                "data": [
                    {"index": index, "object": "embedding", "embedding": self._encoded(vector)}
                    for index, vector in enumerate(self._vectors)
                ],
                "usage": {
                    "prompt_tokens": usage.prompt,
                    "total_tokens": usage.prompt,
                    "completion_tokens": 0,
                    "prompt_tokens_details": None,
                },
            }
        )

    def _encoded(self, vector: array[float]) -> object:
        if self._encoding == "base64":
            return base64.b64encode(vector.tobytes()).decode()
        return vector.tolist()


def _vector(prompt: array[int]) -> array[float]:
    digest = hashlib.shake_128(prompt.tobytes()).digest(_DIMENSIONS)
    return array("f", [(byte - 127.5) / 127.5 for byte in digest])
