"""vllm-router, the vLLM project's; consistent_hash (on the session header) unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from bench.drivers.base import Driver, distribution_version, free_port


class VllmRouter(Driver):
    """Warnings only: consistent_hash writes three lines a request at the default level."""

    name = "vllm-router"
    default_policy = "consistent_hash"

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        for venv in venvs:
            version = distribution_version(venv, "vllm-router")
            if version is not None:
                return cls(f"{venv}/bin/vllm-router", version)
        return None

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        listen = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
        policy = ["--policy", self.policy or self.default_policy]
        return [self.program, *listen, *metrics, *policy, "--worker-urls", *backends]
