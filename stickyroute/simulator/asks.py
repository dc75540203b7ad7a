"""A request body -> what the engine is asked to compute, or the error the real engine would answer.

Owns validation and its messages, copied from captures. Knows no connection and no time.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.keys import namespace
from stickyroute.simulator.tokens import (
    ByteTokenizer,
    FileTokenizer,
    chat_segments,
    content_segments,
)

_VALIDATION = "Bad Request"


class Refused(Exception):
    """The engine answers with an error: HTTP `status`, `message`, the error's `kind`, and the `param` at
    fault."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


@dataclass(frozen=True, slots=True)
class Ask:
    """`prompts` are token buffers; each is answered `n` times with `output_tokens` tokens, ending for
    `reason` ("length" when the client set the limit, else "stop"). `root` is the cache namespace of model,
    adapter and salt."""

    model: str
    prompts: list[array[int]]
    root: int
    adapter: str | None
    salt: str | None
    n: int
    output_tokens: int
    reason: str
    stream: bool
    usage_asked: bool
    usage_always: bool
    token_ids: bool


class Reader:
    """Reads bodies for one engine."""

    def __init__(self, config: EngineConfig, tokenizer: ByteTokenizer | FileTokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._names = (config.model, *config.adapters)

    def body(self, data: bytes, content_type: bytes) -> dict[str, Any]:
        """The JSON object of a request."""
        if content_type.split(b";")[0].strip().lower() != b"application/json":
            raise Refused(
                400,
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                _VALIDATION,
            )
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as failure:
            raise self._malformed(data, str(failure)) from None
        if not isinstance(value, dict):
            raise Refused(
                400, "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body'}", _VALIDATION
            )
        return value

    def chat(self, body: Mapping[str, Any]) -> Ask:
        messages = self._required(body, "messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise self._invalid(body, "messages", "list_type", "Input should be a valid list")
        model = self.model(body)
        prompt = self._tokenizer.encode(chat_segments(messages, body.get("tools")))
        return self._ask(body, model, [prompt], "max_completion_tokens", "max_tokens")

    def completion(self, body: Mapping[str, Any]) -> Ask:
        prompt = self._required(body, "prompt")
        model = self.model(body)
        return self._ask(body, model, self._prompts(prompt), "max_tokens", default_tokens=16)

    def embedding(self, body: Mapping[str, Any]) -> Ask:
        text = self._required(body, "input")
        model = self.model(body)
        return self._ask(body, model, self._prompts(text), output_tokens=0)

    def responses(self, body: Mapping[str, Any]) -> Ask:
        asked = self._required(body, "input")
        model = self.model(body)
        messages: list[Mapping[str, Any]] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        if isinstance(asked, str):
            messages.append({"role": "user", "content": asked})
        else:
            messages += [
                item if item.get("type", "message") == "message" else {"role": "tool", "content": [item]}
                for item in asked
                if isinstance(item, dict)
            ]
        prompt = self._tokenizer.encode(chat_segments(messages, body.get("tools")))
        return self._ask(body, model, [prompt], "max_output_tokens")

    def messages(self, body: Mapping[str, Any]) -> Ask:
        self._required(body, "messages")
        self._required(body, "max_tokens")
        return self._ask(body, self.model(body), [self.message_prompt(body)], "max_tokens")

    def message_prompt(self, body: Mapping[str, Any]) -> array[int]:
        """The prompt of an Anthropic request. vLLM drops the billing line that Claude Code puts in front."""
        system = body.get("system")
        parts = [system] if isinstance(system, str) else system or []
        kept = [
            part
            for part in parts
            if not str(part.get("text", "") if isinstance(part, dict) else part).startswith(
                "x-anthropic-billing-header"
            )
        ]
        messages = [{"role": "system", "content": kept}] if kept else []
        return self._tokenizer.encode(chat_segments([*messages, *body["messages"]], body.get("tools")))

    def tokenize(self, body: Mapping[str, Any]) -> array[int]:
        """What /tokenize returns: a chat rendered, or a plain prompt."""
        if "messages" in body:
            segments = chat_segments(body["messages"], body.get("tools"))
            return self._tokenizer.encode(
                segments if body.get("add_generation_prompt", True) else segments[:-1]
            )
        return self._tokenizer.encode(content_segments(self._required(body, "prompt")))

    def model(self, body: Mapping[str, Any]) -> str:
        """The model a request names; vLLM takes an omitted one as its own, SGLang takes any."""
        name = body.get("model")
        if name is None or name == "":
            return self._config.model
        if name not in self._names and self._config.dialect == "vllm":
            raise Refused(
                404,
                f"The model `{name}` does not exist. Valid aliases: {', '.join(self._names)}.",
                "NotFoundError",
                "model",
            )
        return str(name)

    def _prompts(self, prompt: object) -> list[array[int]]:
        """A string, a list of strings, token ids, or a list of lists of token ids."""
        encode = self._tokenizer.encode
        if isinstance(prompt, str):
            return [encode([prompt])]
        if isinstance(prompt, list) and prompt:
            try:
                if isinstance(prompt[0], int):
                    return [array("I", prompt)]
                return [encode([one]) if isinstance(one, str) else array("I", one) for one in prompt]
            except (TypeError, OverflowError):
                pass
        raise Refused(
            400, "Either prompt or prompt_embeds must be provided and non-empty.", "BadRequestError"
        )

    def _ask(
        self,
        body: Mapping[str, Any],
        model: str,
        prompts: list[array[int]],
        *limit_fields: str,
        default_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> Ask:
        config = self._config
        temperature = body.get("temperature")
        if isinstance(temperature, int | float) and temperature < 0:
            raise Refused(
                400,
                f"temperature must be non-negative, got {float(temperature)}. "
                f"(parameter=temperature, value={float(temperature)})",
                "BadRequestError",
                "temperature",
            )
        reason = "stop"
        if output_tokens is None:
            output_tokens = default_tokens or config.answer_tokens
            if default_tokens is not None:
                reason = "length"
            for field in limit_fields:
                value = body.get(field)
                if isinstance(value, int) and not isinstance(value, bool):
                    output_tokens, reason = value, "length"
                    break
            else:
                room = config.profile.context_tokens - max(map(len, prompts))
                output_tokens = max(1, min(output_tokens, room))
            if output_tokens < 1:
                raise Refused(
                    400,
                    f"max_tokens must be at least 1, got {output_tokens}. "
                    f"(parameter=max_tokens, value={output_tokens})",
                    "BadRequestError",
                    "max_tokens",
                )
        for prompt in prompts:
            self._check_length(len(prompt), output_tokens)
        options = body.get("stream_options")
        if not isinstance(options, dict):
            options = {}
        usage_asked = options.get("include_usage") is True
        n = body.get("n")
        salt = str(body["cache_salt"]) if body.get("cache_salt") else None
        adapter = model if model in config.adapters else None
        return Ask(
            model=model,
            prompts=prompts,
            root=namespace(config.model, adapter or "", salt or ""),
            adapter=adapter,
            salt=salt,
            n=n if isinstance(n, int) and n > 0 else 1,
            output_tokens=output_tokens,
            reason=reason,
            stream=body.get("stream") is True,
            usage_asked=usage_asked,
            token_ids=body.get("return_token_ids") is True,
            usage_always=usage_asked and options.get("continuous_usage_stats") is True,
        )

    def _check_length(self, prompt: int, output: int) -> None:
        limit = self._config.profile.context_tokens
        if self._config.dialect == "sglang":
            if prompt >= limit - 6:
                raise Refused(
                    400,
                    f"Input length ({prompt} tokens) exceeds the maximum allowed length ({limit - 6} "
                    f"tokens). "
                    "Use a shorter input or enable --allow-auto-truncate.",
                    "BadRequestError",
                )
            if prompt + output > limit:
                raise Refused(
                    400,
                    f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
                    f"You "
                    f"requested a total of {prompt + output} tokens: {prompt} tokens from the input "
                    f"messages and "
                    f"{output} tokens for the completion. Please reduce the number of tokens in the input "
                    "messages or the completion to fit within the limit.",
                    "BadRequestError",
                )
            return
        if output > limit:
            raise Refused(
                400,
                f"max_tokens={output} cannot be greater than max_model_len={limit}. Please request fewer "
                f"output "
                f"tokens. (parameter=max_tokens, value={output})",
                "BadRequestError",
                "max_tokens",
            )
        if prompt > limit:
            raise Refused(
                400,
                f"This model's maximum context length is {limit} tokens. However, your prompt contains at "
                f"least "
                f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. Please "
                f"reduce "
                f"the length of the input prompt. (parameter=input_tokens, value={limit + 1})",
                "BadRequestError",
                "input_tokens",
            )
        if prompt + output > limit:
            raise Refused(
                400,
                f"This model's maximum context length is {limit} tokens. However, you requested {output} "
                f"output "
                f"tokens and your prompt contains at least {limit - output + 1} input tokens, for a total "
                f"of at "
                f"least {limit + 1} tokens. Please reduce the length of the input prompt or the number of "
                f"requested output tokens. (parameter=input_tokens, value={limit - output + 1})",
                "BadRequestError",
                "input_tokens",
            )

    def _required(self, body: Mapping[str, Any], field: str) -> Any:
        if body.get(field) is None:
            raise self._invalid(body, field, "missing", "Field required")
        return body[field]

    def _invalid(self, body: Mapping[str, Any], field: str, kind: str, message: str) -> Refused:
        if self._config.dialect == "sglang":
            detail = f"{{'type': '{kind}', 'loc': ('body', '{field}'), 'msg': '{message}'}}"
            return Refused(400, f"1 validation error:\n  {detail}", _VALIDATION)
        given = f"<dict of {len(body)} items>"
        detail = f"{{'type': '{kind}', 'loc': 'body.{field}', 'msg': '{message}', 'input': '{given}'}}"
        return Refused(400, f"1 validation error:\n  {detail}", _VALIDATION, f"body.{field}")

    def _malformed(self, data: bytes, reason: str) -> Refused:
        position = 0
        try:
            json.loads(data)
        except json.JSONDecodeError as failure:
            position, why = failure.pos, failure.msg
        except UnicodeDecodeError:
            why = "invalid utf-8"
        else:
            why = reason  # the standard library reads more than orjson: NaN, for one
        if self._config.dialect == "sglang":
            detail = (
                f"{{'type': 'json_invalid', 'loc': ('body', {position}), 'msg': 'JSON decode error', "
                f"'input': {{}}, 'ctx': {{'error': '{reason.split(':')[0]}'}}}}"
            )
            return Refused(400, f"1 validation error:\n  {detail}", _VALIDATION)
        detail = (
            f"{{'type': 'json_invalid', 'loc': 'body.{position}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': '{why}'}}}}"
        )
        return Refused(400, f"1 validation error:\n  {detail}", _VALIDATION, f"body.{position}")
