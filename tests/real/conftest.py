"""Real engines for the tests of this folder, each tier started once; the model is built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from tests.cli.commands import Running
from tests.support.real.engines import (
    Engine,
    LlamaServer,
    build_tiny,
    fetch,
    llama_server_again,
    llama_servers,
    until,
)
from tests.support.real.vllm import vllm_venv
from tests.support.run_proxy import Samples

LISTENING = r"listening on .*? \(port (\d+)\), admin on .* \(port (\d+)\)"
NAMES = ("llama-a", "llama-b", "llama-c")  # the ring goes by names: users have the same homes in every run
VLLM_NAMES = ("vllm-a", "vllm-b")
E = TypeVar("E", bound=Engine)


@dataclass(frozen=True, slots=True)
class Served(Generic[E]):
    """stickyroute and the engines behind it."""

    url: str
    admin_url: str
    engines: Sequence[E]
    process: Running

    def engine(self, name: str) -> E:
        """The one of that name, as replies tell it."""
        return next(engine for engine in self.engines if engine.name == name)

    def metrics(self) -> Samples:
        return Samples(fetch(self.admin_url, "/metrics").body.decode())

    @property
    def available(self) -> int:
        """How many engines the proxy can reach, as it believes."""
        return int(self.metrics().sum("stickyroute_backend_available"))

    @property
    def in_flight(self) -> int:
        """Requests the proxy counts as running, on all engines."""
        return int(self.metrics().sum("stickyroute_backend_in_flight"))


@contextmanager
def serve(engines: Sequence[E], *arguments: str) -> Iterator[Served[E]]:
    """`stickyroute serve` in front of the engines, as an operator starts it."""
    backends = [f"--backend={engine.backend()}" for engine in engines]
    local = ["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--response-headers"]
    with Running(["serve", *backends, *local, *arguments]) as process:
        public, admin = process.said(LISTENING).groups()
        yield Served(f"http://127.0.0.1:{public}", f"http://127.0.0.1:{admin}", engines, process)
    assert not any("Traceback" in line for line in process.lines), "\n".join(process.lines)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny model: the Hugging Face folder and the GGUF file."""
    return build_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def fleet(
    model: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served[LlamaServer]]:
    """Three llama.cpp servers behind one proxy, for tests that leave them alive."""
    log = tmp_path_factory.mktemp("llama") / "log"
    with llama_servers(model[1], NAMES, log) as engines, serve(engines) as served:
        yield served


@pytest.fixture(scope="module")
def _mortals(
    model: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served[LlamaServer], Callable[[], None]]]:
    """A fleet for tests that kill, and what brings its dead back. On the ring it is known who belongs where."""
    log = tmp_path_factory.mktemp("mortals") / "log"
    with (
        ExitStack() as revived,
        llama_servers(model[1], NAMES, log) as engines,
        serve(engines, "--policy=bounded_ring") as served,
    ):

        def revive() -> None:
            for slot, engine in enumerate(engines):
                if engine.process.poll() is not None:
                    engines[slot] = revived.enter_context(llama_server_again(model[1], engine, log))

        yield served, revive


@pytest.fixture
def mortal_fleet(_mortals: tuple[Served[LlamaServer], Callable[[], None]]) -> Served[LlamaServer]:
    """The same, for one test that kills some of them: all are up at its start, as far as the proxy knows too."""
    served, revive = _mortals
    revive()
    until(lambda: served.available == len(NAMES), "the proxy uses the whole fleet")
    return served


@pytest.fixture(scope="session")
def venv() -> Path:
    """Where vLLM is installed; takes minutes the first time."""
    return vllm_venv()
