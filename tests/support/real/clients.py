"""The `openai` and `anthropic` packages, each in four ways: blocking or not, streamed or not.

Each way gives the same `Said`, so one test can hold for all four.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.lazily import lazily
from tests.support.real.engines import MODEL

anthropic = lazily("anthropic")
openai = lazily("openai")

KEY = "not-looked-at"


@dataclass(frozen=True, slots=True)
class Said:
    """What an engine answered and where. `cached_tokens` of `prompt_tokens` came from its prefix cache."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish: str | None
    backend: str
    reason: str
    request_id: str


def broken_stream() -> tuple[type[Exception], ...]:
    """What the clients raise when a connection breaks; inside a stream it is the transport's own error."""
    try:
        from httpx2 import TransportError  # beneath the clients of 2026
    except ImportError:
        from httpx import TransportError  # beneath older ones
    return openai.APIConnectionError, anthropic.APIConnectionError, TransportError


class Way(Protocol):
    """One way to ask for a chat completion."""

    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        """Ask the server at `url`; greedy, as that user."""


def _said(
    headers: Mapping[str, str], text: str, finish: str | None, prompt: int, cached: int, out: int
) -> Said:
    where = [
        headers.get(f"x-{name}", "") for name in ("stickyroute-backend", "stickyroute-reason", "request-id")
    ]
    return Said(text, prompt, cached, out, finish, *where)


def openai_client(url: str, **options: Any) -> openai.OpenAI:
    """No retries of its own: each test sees what the proxy did."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60, **options)


def async_openai_client(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60, **options)


def anthropic_client(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60, **options)


def async_anthropic_client(url: str, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, timeout=60, **options)


def _chat(prompt: str, user: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": MODEL, "messages": messages, "user": user, "max_tokens": max_tokens, "temperature": 0}


def _chat_streamed(prompt: str, user: str, max_tokens: int) -> dict[str, Any]:
    usage_too = {"stream": True, "stream_options": {"include_usage": True}}
    return _chat(prompt, user, max_tokens) | usage_too


def _of_completion(headers: Mapping[str, str], completion: Any) -> Said:
    (choice,) = completion.choices
    return _of_openai(headers, choice.message.content, choice.finish_reason, completion.usage)


def _of_chunks(headers: Mapping[str, str], chunks: list[Any]) -> Said:
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    (finish,) = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    (usage,) = [c.usage for c in chunks if c.usage]
    return _of_openai(headers, text, finish, usage)


def _of_openai(headers: Mapping[str, str], text: str, finish: str, usage: Any) -> Said:
    cached = usage.prompt_tokens_details.cached_tokens
    return _said(headers, text, finish, usage.prompt_tokens, cached, usage.completion_tokens)


class OpenAISync:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        with openai_client(url) as client:
            raw = client.chat.completions.with_raw_response.create(**_chat(prompt, user, max_tokens))
            return _of_completion(raw.headers, raw.parse())


class OpenAISyncStream:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        with openai_client(url) as client:
            raw = client.chat.completions.with_raw_response.create(**_chat_streamed(prompt, user, max_tokens))
            return _of_chunks(raw.headers, list(raw.parse()))


class OpenAIAsync:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        async def ask() -> Said:
            async with async_openai_client(url) as client:
                raw = await client.chat.completions.with_raw_response.create(
                    **_chat(prompt, user, max_tokens)
                )
                return _of_completion(raw.headers, raw.parse())

        return asyncio.run(ask())


class OpenAIAsyncStream:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        async def ask() -> Said:
            async with async_openai_client(url) as client:
                body = _chat_streamed(prompt, user, max_tokens)
                raw = await client.chat.completions.with_raw_response.create(**body)
                return _of_chunks(raw.headers, [chunk async for chunk in raw.parse()])

        return asyncio.run(ask())


def _message(prompt: str, user: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    who = {"user_id": user}
    return {"model": MODEL, "messages": messages, "metadata": who, "max_tokens": max_tokens, "temperature": 0}


def _body_of(message: dict[str, Any]) -> dict[str, Any]:
    """As arguments of a client; those that it does not know go into the body by another door."""
    return message | {"extra_body": {"temperature": message.pop("temperature")}}


def _of_message(headers: Mapping[str, str], message: Any) -> Said:
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    prompt = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    text = "".join(block.text for block in message.content)
    return _said(headers, text, message.stop_reason, prompt, cached, usage.output_tokens)


class AnthropicSync:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        with anthropic_client(url) as client:
            raw = client.messages.with_raw_response.create(**_body_of(_message(prompt, user, max_tokens)))
            return _of_message(raw.headers, raw.parse())


class AnthropicSyncStream:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        with (
            anthropic_client(url) as client,
            client.messages.stream(**_body_of(_message(prompt, user, max_tokens))) as stream,
        ):
            return _of_message(stream.response.headers, stream.get_final_message())


class AnthropicAsync:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        async def ask() -> Said:
            async with async_anthropic_client(url) as client:
                body = _body_of(_message(prompt, user, max_tokens))
                raw = await client.messages.with_raw_response.create(**body)
                return _of_message(raw.headers, await raw.parse())

        return asyncio.run(ask())


class AnthropicAsyncStream:
    def ask(self, url: str, prompt: str, *, user: str, max_tokens: int = 8) -> Said:
        async def ask() -> Said:
            body = _body_of(_message(prompt, user, max_tokens))
            async with async_anthropic_client(url) as client, client.messages.stream(**body) as stream:
                return _of_message(stream.response.headers, await stream.get_final_message())

        return asyncio.run(ask())


OPENAI_WAYS: list[Way] = [OpenAISync(), OpenAISyncStream(), OpenAIAsync(), OpenAIAsyncStream()]
ANTHROPIC_WAYS: list[Way] = [AnthropicSync(), AnthropicSyncStream(), AnthropicAsync(), AnthropicAsyncStream()]
WAYS = OPENAI_WAYS + ANTHROPIC_WAYS


def way_id(way: Way) -> str:
    """For pytest's names of parameters."""
    return type(way).__name__
