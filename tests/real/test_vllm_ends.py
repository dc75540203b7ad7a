"""How real vLLM servers end, seen through stickyroute: `make test-real`, not part of CI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import VLLM_NAMES, serve
from tests.real.test_llama_clients import prompt_of
from tests.support.real import clients
from tests.support.real.clients import OpenAISync, openai_client
from tests.support.real.engines import MODEL
from tests.support.real.vllm import vllm_servers

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
LONG = 3_000  # tokens: several seconds of work


def test_servers_that_end_in_the_midst_of_a_stream(
    venv: Path, model: tuple[Path, Path], tmp_path: Path
) -> None:
    """First the engine core of one is killed, then the other is told to stop."""
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "end"}], "max_tokens": LONG}
    ask = OpenAISync().ask
    with (
        vllm_servers(venv, model[0], VLLM_NAMES, tmp_path) as engines,
        serve(engines) as served,
        openai_client(served.url) as client,
    ):
        raw = client.chat.completions.with_raw_response.create(**asked, user="ann", stream=True)
        victim = served.engine(raw.headers["x-stickyroute-backend"])
        (survivor,) = [engine for engine in engines if engine is not victim]
        stream = iter(raw.parse())
        next(stream)
        victim.kill_core()
        with pytest.raises(clients.openai.APIError, match="EngineCore"):
            for _ in stream:
                pass
        victim.process.wait(60)
        said = ask(served.url, prompt_of("ann"), user="ann")
        assert (said.backend, said.reason) == (survivor.name, "failover")

        chunks = iter(client.chat.completions.create(**asked, user="ann", stream=True))
        next(chunks)
        survivor.terminate()
        ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert ends[-1] == "abort", "vLLM's own word for it, as it came"
        survivor.process.wait(60)
        with pytest.raises(clients.openai.InternalServerError) as nobody:
            client.chat.completions.create(**asked)
        assert nobody.value.status_code == 503
