"""Real engines as processes of a test: started, asked directly (without the proxy), killed.

Owns the processes and their ports. Knows nothing of stickyroute.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.run_proxy import Samples

ROOT = Path(__file__).parents[3]
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def fetch(url: str, path: str, body: dict[str, Any] | None = None, **headers: str) -> Reply:
    """One request on a connection of its own: a POST of JSON where there is a body, else a GET."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            given = {"Content-Type": "application/json", **headers}
            connection.request("POST", path, json.dumps(body), given)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def until(true: Callable[[], object], what: str, timeout_s: float = 30) -> None:
    """Look again and again until `true` holds; another process offers nothing to wait on."""
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)


def refuses(url: str) -> bool:
    """Whether nobody takes connections there."""
    try:
        fetch(url, "/health")
    except ConnectionRefusedError:
        return True
    return False


class Engine:
    """One engine process, known by its URL."""

    def __init__(self, name: str, url: str, process: subprocess.Popen[Any]) -> None:
        self.name, self.url, self.process = name, url, process

    def backend(self) -> str:
        """As `stickyroute serve --backend` takes it."""
        return f"{self.name}={self.url}"

    def fetch(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Reply:
        return fetch(self.url, path, body, **headers)

    def metrics(self) -> Samples:
        return Samples(self.fetch("/metrics").body.decode())

    def kill(self) -> None:
        """SIGKILL: the kernel closes its sockets, nothing is said to anybody."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.send_signal(signal.SIGTERM)


class LlamaServer(Engine):
    """llama.cpp. Its gauge and counters have no labels."""

    @property
    def running(self) -> int:
        """Requests in a slot or waiting for one."""
        samples = self.metrics()
        names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
        return int(sum(samples.sum(name) for name in names))

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens it took from its cache so far."""
        return int(self.metrics().sum("llamacpp:prompt_tokens_cached_total"))

    @property
    def steps(self) -> int:
        """Forward passes so far: one for each generated token of a lone request."""
        return int(self.metrics().sum("llamacpp:n_decode_total"))


def build_tiny(folder: Path) -> tuple[Path, Path]:
    """The tiny model in `folder`: the Hugging Face folder and the GGUF file."""
    # They load numpy: every worker of the suite reads this file, one of them builds a model.
    from tests.support.real.tiny_gguf import write_tiny_gguf
    from tests.support.real.tiny_model import write_tiny_model

    hugging_face, gguf = folder / "tiny", folder / "tiny.gguf"
    write_tiny_model(hugging_face)
    write_tiny_gguf(hugging_face, gguf)
    return hugging_face, gguf


@contextmanager
def llama_servers(gguf: Path, names: Sequence[str], log: Path) -> Iterator[list[LlamaServer]]:
    """Servers of these names on free ports, started side by side; gone when the block ends."""
    with ExitStack() as stack:
        out = stack.enter_context(log.open("ab"))
        started = [_start_llama(gguf, out) for _ in names]
        for process in started:
            stack.callback(_end, process)
        yield [_serving(name, p, log) for name, p in zip(names, started, strict=True)]


@contextmanager
def llama_server_again(gguf: Path, gone: LlamaServer, log: Path) -> Iterator[LlamaServer]:
    """A new process with the name and the port of one that was killed."""
    with log.open("ab") as out:
        process = _start_llama(gguf, out, port=int(gone.url.rpartition(":")[2]))
        try:
            yield _serving(gone.name, process, log)
        finally:
            _end(process)


def _start_llama(gguf: Path, log: IO[bytes], port: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.real.llama_server", str(gguf), f"--port={port}"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)


def _serving(name: str, process: subprocess.Popen[bytes], log: Path) -> LlamaServer:
    assert process.stdout is not None
    words = process.stdout.readline().decode().split()
    assert words[:1] == ["listening"], f"{name} did not start:\n{log.read_text(errors='replace')}"
    return LlamaServer(name, words[1], process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
