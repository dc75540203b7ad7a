"""What the proxy learns of a real vLLM's replies and metrics under policy sticky. Part of `make test-real`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_client import CHAT, request
from tests.support.real.engines import MODEL, build_tiny
from tests.support.real.vllm import BLOCK_TOKENS, BLOCKS, VllmServer, vllm_servers, vllm_venv
from tests.support.run_proxy import RunningProxy, run_proxy

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

TEXT = "so it goes, " * 200
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("vllm-sticky")
    model, _ = build_tiny(folder)
    with vllm_servers(vllm_venv(), Path(model), ["vllm-sticky"], folder) as (server,):
        yield server


def entry(server: VllmServer) -> dict[str, Any]:
    return {"name": server.name, "url": server.url}


async def counted(proxy: RunningProxy) -> list[float]:
    """Prompt tokens, cached ones and expected ones so far, once nothing is in flight."""
    await proxy.settled()
    samples = await proxy.metrics()
    return [samples.sum(f"stickyroute_{n}_tokens_total") for n in ("prompt", "cached", "expected_cached")]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": f"1 {TEXT}"}],
                "stream_options": {"include_usage": True},
            },
        ),
        ("/v1/completions", {"prompt": f"2 {TEXT}", "stream_options": {"include_usage": True}}),
        ("/v1/messages", {"messages": [{"role": "user", "content": f"3 {TEXT}"}]}),
        ("/v1/responses", {"input": f"4 {TEXT}", "max_output_tokens": 40}),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_api_tells_what_the_engine_counts(
    server: VllmServer, path: str, asked: dict[str, Any], stream: bool
) -> None:
    fields = {"model": MODEL, "max_tokens": 40, "temperature": 0, **asked, "stream": stream}
    if path == "/v1/responses":
        del fields["max_tokens"]
    if not stream:
        fields.pop("stream_options", None)
    async with run_proxy([entry(server)], policy="sticky") as proxy:
        for _ in range(2):
            hits = server.hits
            before = await counted(proxy)
            async with await proxy.client() as client:
                client.send(request(json.dumps(fields).encode(), path=path))
                answer = await client.response(timeout_s=PATIENCE_S)
            assert answer.status == 200, answer.body
            prompt, cached, _ = (now - then for now, then in zip(await counted(proxy), before, strict=True))
            assert cached == server.hits - hits
            assert prompt > 500
        assert cached >= prompt - 2 * BLOCK_TOKENS  # the second time all but the last block was there
        assert sum(proxy.app.fleet.loads.backlog_tokens) == 0.0


async def test_what_is_expected_of_a_conversation_is_what_is_found(server: VllmServer) -> None:
    talk = [{"role": "user", "content": f"Once: {TEXT}"}]
    async with run_proxy([entry(server)], policy="sticky") as proxy:
        off: list[float] = []
        for turn in range(12):
            before = await counted(proxy)
            body = {"model": MODEL, "messages": talk, "max_tokens": 20, "temperature": 0}
            answer = await proxy.ask(json.dumps(body).encode())
            assert answer.status == 200, answer.body
            _, cached, expected = (now - then for now, then in zip(await counted(proxy), before, strict=True))
            off.append(abs(cached - expected))
            talk += [answer.json["choices"][0]["message"], {"role": "user", "content": f"And {turn}?"}]
        assert off[0] == 0.0
        assert sorted(off[1:])[len(off) // 2] <= 2 * BLOCK_TOKENS, off


async def test_its_metrics_are_read(server: VllmServer) -> None:
    async with run_proxy([entry(server)], policy="sticky", scrape={"interval_s": 0.2}) as proxy:
        async with asyncio.timeout(PATIENCE_S):
            while (known := proxy.app.fleet.sample(0)) is None:
                await asyncio.sleep(0.01)
        sample, _ = known
        assert sample.dialect == "vllm"
        assert (sample.blocks, sample.block_size_tokens) == (BLOCKS, BLOCK_TOKENS)
        assert proxy.app.fleet.loads.capacity_tokens[0] == BLOCKS * BLOCK_TOKENS
