"""sglang-router, SGLang's model gateway; cache_aware unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from bench.drivers.base import Driver, distribution_version, free_port


class SglangRouter(Driver):
    """Started as its package's module, since its console script shares a name with smg's."""

    name = "sglang-router"
    default_policy = "cache_aware"

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        for venv in venvs:
            version = distribution_version(venv, "sglang-router")
            if version is not None:
                return cls(f"{venv}/bin/python", version)
        return None

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        listen = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warn"]
        policy = ["--policy", self.policy or self.default_policy]
        module = ["-m", "sglang_router.launch_router"]
        return [self.program, *module, *listen, *metrics, *policy, "--worker-urls", *backends]
