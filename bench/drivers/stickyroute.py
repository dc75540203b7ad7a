"""stickyroute as it is checked out here, run by this interpreter: its default policy, keyed on the body's
`user`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from bench.drivers.base import Driver

REPOSITORY = Path(__file__).resolve().parents[2]


def _default_policy() -> str:
    """The product's, read and not imported."""
    found = re.search(
        r'^POLICY: Final = "([^"]+)"', (REPOSITORY / "stickyroute/defaults.py").read_text(), re.M
    )
    return found.group(1) if found else "?"


class Stickyroute(Driver):
    """Defaults but for where it listens, its backends and the affinity source."""

    name = "stickyroute"
    default_policy = _default_policy()

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        package = REPOSITORY / "stickyroute"
        if not (package / "app.py").is_file() or not (package / "__main__.py").is_file():
            return None
        version = re.search(r'__version__ = "([^"]+)"', (package / "__init__.py").read_text())
        return cls(sys.executable, version.group(1) if version else "?")

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        settings = {
            "listen": f"127.0.0.1:{port}",
            "admin_listen": "127.0.0.1:0",
            "policy": self.policy or self.default_policy,
            "affinity": {"sources": ["body:user"]},
            "backends": [{"name": f"b{number}", "url": url} for number, url in enumerate(backends)],
        }
        config = folder / "stickyroute.yaml"
        config.write_text(json.dumps(settings, indent=1))  # JSON is YAML
        return [self.program, "-m", "stickyroute", "serve", "--config", str(config)]

    def folder_to_run_in(self, folder: Path) -> Path:
        return REPOSITORY
