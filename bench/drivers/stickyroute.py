"""stickyroute as it is checked out here or elsewhere, run by this interpreter: its default policy, keyed on the
body's `user`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.drivers.base import Driver

REPOSITORY = Path(__file__).resolve().parents[2]


def _default_policy() -> str:
    """The product's, read and not imported."""
    found = re.search(
        r'^POLICY: Final = "([^"]+)"', (REPOSITORY / "stickyroute/defaults.py").read_text(), re.M
    )
    return found.group(1) if found else "?"


ON, ASKING, OFF = "watching", "asking", "blind"
"""Everything that watches requests on; that, and streams asked for a usage that their clients did not want; all off."""


@dataclass(slots=True)
class Stickyroute(Driver):
    """Defaults but for where it listens, its backends and the affinity source. With `watching`, all that watches
    requests is ON, ASKING or OFF; traces, which need a collector, are off in all. `checkout` is the folder whose
    package runs, such as one with compiled modules (`make compiled`)."""

    watching: str = field(default="")
    checkout: Path = field(default=REPOSITORY)

    name = "stickyroute"
    default_policy = _default_policy()

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        package = REPOSITORY / "stickyroute"
        if not (package / "app.py").is_file() or not (package / "__main__.py").is_file():
            return None
        version = re.search(r'__version__ = "([^"]+)"', (package / "__init__.py").read_text())
        return cls(sys.executable, version.group(1) if version else "?")

    @property
    def label(self) -> str:
        watching = f", {self.watching}" if self.watching else ""
        compiled = " compiled" if any(self.checkout.glob("stickyroute/routing/*.so")) else ""
        return f"{self.name} {self.version}{compiled}, {self.policy or self.default_policy}{watching}"

    @property
    def key(self) -> str:
        policy = f"{self.name}:{self.policy}" if self.policy else self.name
        if self.checkout != REPOSITORY:
            policy += f"@{self.checkout}"
        return f"{policy}+{self.watching}" if self.watching else policy

    def _watched(self, folder: Path) -> dict[str, Any]:
        if self.watching in (ON, ASKING):
            return {
                "access_log": "json",
                "access_log_path": str(folder / "access.log"),
                "usage": {"read": True, "ask": self.watching == ASKING},
                "doctor": {"enabled": True},
                "shadow": "sticky",
            }
        if self.watching == OFF:
            return {
                "access_log": "off",
                "usage": {"read": False},
                "doctor": {"enabled": False},
                "decisions": 1,
            }
        return {}

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        settings = {
            "listen": f"127.0.0.1:{port}",
            "admin_listen": "127.0.0.1:0",
            "policy": self.policy or self.default_policy,
            "affinity": {"sources": ["body:user"]},
            "backends": [{"name": f"b{number}", "url": url} for number, url in enumerate(backends)],
            **self._watched(folder),
        }
        config = folder / "stickyroute.yaml"
        config.write_text(json.dumps(settings, indent=1))  # JSON is YAML
        return [self.program, "-m", "stickyroute", "serve", "--config", str(config)]

    def folder_to_run_in(self, folder: Path) -> Path:
        return self.checkout
