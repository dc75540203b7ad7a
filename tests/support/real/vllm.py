"""Real vLLM servers on this machine's CPU, out of a venv of their own.

Owns the venv, the command line and the processes. A server takes about 25 s of CPU to start and 1.4 GB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cli.commands import ROOT, free_port
from tests.support.leash import leashed
from tests.support.real.engines import MODEL, Engine

INSTALL = Path(__file__).with_name("install_vllm.sh")
GIVEN_VENV = os.environ.get("STICKYROUTE_VLLM_VENV")  # read now: during tests no variable of ours is set
START_S = 600  # 25 s on an idle machine
BLOCK_TOKENS = 32
BLOCKS = 140  # a prefix cache of 4,480 tokens, so that eviction is within a test's reach
MAX_MODEL_TOKENS = 4096
QUEUED = 4  # requests that may wait; past it the server answers 503
RUNNING = 16


class VllmServer(Engine):
    """One `vllm serve` with its engine core, a process of its own below it."""

    @property
    def running(self) -> int:
        """`vllm:num_requests_running`."""
        return int(self.metrics().sum("vllm:num_requests_running"))

    @property
    def waiting(self) -> int:
        """`vllm:num_requests_waiting`."""
        return int(self.metrics().sum("vllm:num_requests_waiting"))

    @property
    def completed(self) -> int:
        """Requests that came to their last token so far. (vLLM counts no abort of a client that left.)"""
        return int(self.metrics().sum("vllm:request_success_total", finished_reason="length"))

    @property
    def hits(self) -> int:
        """Prompt tokens taken from the prefix cache so far."""
        return int(self.metrics().sum("vllm:prefix_cache_hits_total"))

    @property
    def core_pid(self) -> int:
        """The engine core: it computes, the server's own process only talks."""
        own = self.process.pid
        for child in Path(f"/proc/{own}/task/{own}/children").read_text().split():
            if "VLLM::Engine" in Path(f"/proc/{child}/comm").read_text():
                return int(child)
        raise AssertionError(f"{self.name} has no engine core")

    def kill_core(self) -> None:
        """SIGKILL the engine core, as the kernel does when memory runs out."""
        os.kill(self.core_pid, signal.SIGKILL)


def vllm_venv() -> Path:
    """The venv to use: $STICKYROUTE_VLLM_VENV, else .cache/venv-vllm; installed when nothing is there."""
    venv = Path(GIVEN_VENV) if GIVEN_VENV else ROOT / ".cache" / "venv-vllm"
    if not (venv / ("bin/vllm" if GIVEN_VENV else ".complete")).exists():
        subprocess.run(["bash", str(INSTALL), str(venv)], check=True)
    return venv


@contextmanager
def vllm_servers(
    venv: Path, model: Path, names: Sequence[str], folder: Path, *arguments: str
) -> Iterator[list[VllmServer]]:
    """Servers of these names on free ports, started side by side; gone when the block or this process ends.

    `arguments` go to each `vllm serve`. Their logs are in `folder`.
    """
    with ExitStack() as stack:
        started = [_start(venv, model, folder / name, arguments, stack) for name in names]
        servers = [VllmServer(name, url, p) for name, (url, p) in zip(names, started, strict=True)]
        for server in servers:
            _wait(server, folder / server.name)
        yield servers


def _start(
    venv: Path, model: Path, folder: Path, arguments: Sequence[str], stack: ExitStack
) -> tuple[str, subprocess.Popen[Any]]:
    folder.mkdir(parents=True)
    port = free_port()
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    cpu = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    local = {"OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    places = {"TMPDIR": str(folder), "VLLM_CACHE_ROOT": str(folder / "cache")}
    command = [
        str(venv / "bin" / "vllm"), "serve", str(model), "--served-model-name", MODEL,
        "--host=127.0.0.1", f"--port={port}", "--dtype=float32", f"--max-model-len={MAX_MODEL_TOKENS}",
        f"--max-num-seqs={RUNNING}", "--enforce-eager", f"--block-size={BLOCK_TOKENS}",
        f"--num-gpu-blocks-override={BLOCKS}", "--enable-prefix-caching", "--enable-prompt-tokens-details",
        *arguments,
    ]  # fmt: skip
    log = stack.enter_context((folder / "log").open("wb"))
    environment = {**os.environ, **quiet, **cpu, **local, **places}
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    stack.enter_context(leashed(process))
    return f"http://127.0.0.1:{port}", process


def _wait(server: VllmServer, folder: Path) -> None:
    end_s = time.monotonic() + START_S
    while True:
        log = (folder / "log").read_text(errors="replace")
        assert server.process.poll() is None, f"{server.name} ended:\n{log[-4000:]}"
        assert time.monotonic() < end_s, f"{server.name} did not start:\n{log[-4000:]}"
        try:
            if server.fetch("/health").status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
