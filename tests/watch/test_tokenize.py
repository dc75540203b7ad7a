"""Questions for token ids: who is asked, what is dropped, and an engine that cannot answer is left alone."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.openai.routes import Shape
from stickyroute.routing.exact import Resident, Stored, chain, scope
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from stickyroute.routing.learned import Learned
from stickyroute.routing.prefix import Prefixes
from stickyroute.watch import tokenize
from stickyroute.watch.tokenize import TokenizeWatch
from tests.watch.engines import Answer, engine, fixed

PREFIXES = Prefixes(64, 1 << 20)
TEXT = "some words that are sent again and again " * 50
TOKENS = list(range(500))
PATIENCE_S = 20.0


def keys_of(text: str) -> RequestKeys:
    data = text.encode()
    blocks = PREFIXES.chain(data, 1)
    return RequestKeys(1, "prefix", blocks, PREFIXES.ends[: len(blocks)], len(data))


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def tokens(request: web.Request) -> Any:
    return web.json_response({"tokens": TOKENS})


class Asked:
    """A fleet of one backend, the watch, and what it learned."""

    def __init__(self, port: int, *, ask: bool = True, known_blocks: bool = True) -> None:
        spec = BackendSpec("gpu-0", "http", "127.0.0.1", port, api_key="secret")
        self.fleet = Fleet([spec], vnodes=16)
        self.fleet.record_models(0, [{"id": "m"}, {"id": "law", "parent": "m"}])
        self.learned = Learned(self.fleet.loads.index, limit_blocks=1000)
        self.resident = Resident([0], self.learned, limit_blocks=1000, silence_s=1.0)
        if known_blocks:
            self.resident.apply(0, Stored([1], None, array("I", [7] * 16), 16, 0))
        self.watch = TokenizeWatch(self.fleet, self.learned, self.resident, ask=ask)

    def offer(self, text: str, model: str | None = "m", **more: Any) -> None:
        self.watch.offer(0, keys_of(text), Shape.CHAT, model, chat(text, **more))

    def is_tied(self, root: int) -> bool:
        """Whether the engine storing these tokens in that scope tells the index of TEXT."""
        before = self.learned.corrections
        names = chain(array("I", TOKENS), 16, root)
        self.resident.apply(0, Stored(names, None, array("I", TOKENS[: len(names) * 16]), 16, root))
        return self.learned.corrections > before


@asynccontextmanager
async def asking(asked: Asked) -> AsyncIterator[Asked]:
    asked.watch.start()
    try:
        yield asked
    finally:
        await asked.watch.stop()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.002)


async def answer(request: web.Request) -> web.StreamResponse:
    return web.json_response({"tokens": TOKENS})


async def test_a_prompt_is_asked_about_with_the_backends_key_and_once() -> None:
    bodies: list[Any] = []

    async def listen(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await answer(request)

    async with (
        engine(listen, method="POST", path="/tokenize") as running,
        asking(Asked(running.port)) as asked,
    ):
        asked.offer(TEXT, temperature=1)
        asked.offer(TEXT)
        await until(lambda: asked.watch.learned)
        asked.offer(TEXT)
        asked.offer(TEXT + "and a little more")
        assert bodies == [{**chat(TEXT), "return_token_strs": True}]
        assert running.asked[0].headers["Authorization"] == "Bearer secret"
        assert asked.is_tied(scope("", ""))


@pytest.mark.parametrize(
    ("model", "more", "root"),
    [("law", {}, scope("law", "")), ("m", {"cache_salt": "s"}, scope("", "s")), (None, {}, scope("", ""))],
    ids=["adapter", "salt", "no model"],
)
async def test_adapter_and_salt_are_the_scope(model: str | None, more: dict[str, Any], root: int) -> None:
    async with (
        engine(answer, method="POST", path="/tokenize") as running,
        asking(Asked(running.port)) as asked,
    ):
        asked.offer(TEXT, model, **more)
        await until(lambda: asked.watch.learned)
        assert asked.is_tied(root)


async def test_nobody_is_asked_about_what_cannot_be_matched() -> None:
    async with (
        engine(answer, method="POST", path="/tokenize") as running,
        asking(Asked(running.port)) as asked,
    ):
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        asked.watch.offer(0, keys_of(TEXT), Shape.CHAT, "m", {"messages": [image]})
        asked.watch.offer(0, NO_KEYS, Shape.CHAT, "m", chat(TEXT))
        asked.watch.offer(0, keys_of(TEXT), Shape.CHAT, "m", None)
        asked.offer("? " + TEXT, "unheard of")
        asked.offer("short")
        asked.offer("! " + TEXT)
        await until(lambda: asked.watch.learned)
        assert len(running.asked) == 1


async def test_before_the_first_event_nobody_is_asked() -> None:
    async with (
        engine(answer, method="POST", path="/tokenize") as running,
        asking(Asked(running.port, known_blocks=False)) as asked,
    ):
        asked.offer(TEXT)
        asked.resident.apply(0, Stored([1], None, array("I", [7] * 16), 16, 0))
        asked.offer("! " + TEXT)
        await until(lambda: asked.watch.learned)
        assert len(running.asked) == 1


async def test_prompts_of_token_ids_need_no_question() -> None:
    async with (
        engine(answer, method="POST", path="/tokenize") as running,
        asking(Asked(running.port, ask=False)) as asked,
    ):
        asked.offer(TEXT)
        body = {"model": "m", "prompt": TOKENS}
        asked.watch.offer(0, keys_of("! " + TEXT), Shape.COMPLETIONS, "m", body)
        await until(lambda: asked.watch.learned)
        assert asked.is_tied(scope("", ""))
        assert running.asked == []


async def test_the_tokens_of_a_long_prompt_are_not_spelled() -> None:
    bodies: list[Any] = []

    async def listen(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await answer(request)

    text = "x" * (tokenize.SPELLED_BYTES + 1)
    async with (
        engine(listen, method="POST", path="/tokenize") as running,
        asking(Asked(running.port)) as asked,
    ):
        asked.offer(text)
        await until(lambda: asked.watch.learned)
        assert bodies == [chat(text)]


async def test_what_waits_is_bounded() -> None:
    asked = Asked(1)  # not started: nobody takes anything out
    for number in range(100):
        asked.offer(f"{number} {TEXT}")
    asked.offer("x" * (tokenize.PROMPT_BYTES + 100))
    assert asked.watch.dropped == 100 - tokenize.WAITING + 1


@pytest.mark.parametrize(
    "wrong",
    [fixed("Not Found", 404), fixed("no JSON"), fixed('{"tokens": "x"}'), fixed('{"error": 1}', 503)],
    ids=["404", "no JSON", "no tokens", "503"],
)
async def test_an_engine_that_cannot_answer_is_left_alone(
    wrong: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        engine(wrong, method="POST", path="/tokenize") as running,
        asking(Asked(running.port)) as asked,
    ):
        for number in range(10):
            asked.offer(f"{number} {TEXT}")
            await until(lambda: not asked.watch._ends)
        assert len(running.asked) == tokenize.FAILURES
        assert asked.watch.learned == 0
    assert [record.name for record in caplog.records] == ["stickyroute.watch.tokenize"]


async def test_an_engine_that_is_gone_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "REST_S", 0.0)
    async with engine(answer, method="POST", path="/tokenize") as running:
        port = running.port
    async with asking(Asked(port)) as asked:
        for number in range(5):
            asked.offer(f"{number} {TEXT}")
        await until(lambda: not asked.watch._ends)
        async with engine(answer, method="POST", path="/tokenize", port=port):
            asked.offer(TEXT)
            await until(lambda: asked.watch.learned)
