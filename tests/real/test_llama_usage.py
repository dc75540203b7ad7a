"""`usage.ask` in front of a real llama.cpp server: counted here, unseen by the client."""

from __future__ import annotations

import json
from typing import Any

from tests.real.conftest import Served
from tests.support.raw_client import request
from tests.support.real.engines import MODEL, LlamaServer
from tests.support.run_proxy import run_proxy


def events(body: bytes) -> list[Any]:
    assert body.endswith(b"data: [DONE]\n\n")
    return [json.loads(event[6:]) for event in body.split(b"\n\n")[:-2]]


async def test_a_stream_is_what_its_client_asked_for_and_its_tokens_are_known(
    fleet: Served[LlamaServer],
) -> None:
    asked = {"model": MODEL, "stream": True, "max_tokens": 8, "temperature": 0, "cache_prompt": True}
    asked["messages"] = [{"role": "user", "content": "Usage is counted here and not shown there. " * 20}]
    told = {**asked, "stream_options": {"include_usage": True}}
    backend = {"name": "llama", "url": fleet.engines[0].url}
    async with run_proxy([backend], usage={"ask": True}, access_log="off") as proxy:
        async with await proxy.client() as client:
            plain = events((await client.ask(request(json.dumps(asked).encode()))).body)
            whole = events((await client.ask(request(json.dumps(told).encode()))).body)
        samples = await proxy.metrics()
    usage = whole.pop()["usage"]
    assert [event["choices"] for event in plain] == [event["choices"] for event in whole]
    assert all(event["choices"] for event in plain)
    assert samples.sum("stickyroute_prompt_tokens_total") == 2 * usage["prompt_tokens"]
    assert samples.sum("stickyroute_answer_tokens_total") == 2 * usage["completion_tokens"]
    assert (
        samples.sum("stickyroute_cached_tokens_total") >= usage["prompt_tokens_details"]["cached_tokens"] > 0
    )
    assert samples.sum("stickyroute_inter_token_seconds_count") == 2
