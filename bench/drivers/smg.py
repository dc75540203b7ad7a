"""smg, the gateway split off SGLang's; cache_aware unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from bench.drivers.base import Driver, distribution_version, free_port


class Smg(Driver):
    """Rate limiting off, warnings only, as its own benchmark notes advise."""

    name = "smg"
    default_policy = "cache_aware"

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        for venv in venvs:
            version = distribution_version(venv, "smg")
            if version is not None:
                return cls(f"{venv}/bin/smg", version)
        return None

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        policy = ["--policy", self.policy or self.default_policy, "--max-concurrent-requests", "0"]
        listen = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warn"]
        return [self.program, "launch", *listen, *metrics, *policy, "--worker-urls", *backends]
