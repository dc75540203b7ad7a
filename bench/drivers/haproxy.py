"""haproxy with a consistent hash on the session header: the other byte mover to compare with."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from bench.drivers.base import Driver

CONFIG = """\
global
    nbthread 1
    maxconn 9000
defaults
    mode http
    option http-keep-alive
    option http-no-delay
    option forwardfor
    http-reuse always
    timeout connect 2s
    timeout client 600s
    timeout server 600s
frontend public
    bind 127.0.0.1:{port}
    default_backend fleet
backend fleet
    balance hdr(x-session-id)
    hash-type consistent
{bound}{servers}
"""
BOUNDED = "bounded hash on session header"


class Haproxy(Driver):
    """One thread, idle upstream connections reusable; http-no-delay, else it corks each token for 200 ms."""

    name = "haproxy"
    default_policy = "hash on session header"  # or BOUNDED: at most a quarter over the mean

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        program = shutil.which("haproxy")
        if program is None:
            return None
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"version ([\d.]+)", said)
        return cls(program, version.group(1) if version else "?")

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        servers = "\n".join(
            f"    server b{number} {url.removeprefix('http://')}" for number, url in enumerate(backends)
        )
        config = folder / "haproxy.cfg"
        bound = "    hash-balance-factor 125\n" if self.policy == BOUNDED else ""
        config.write_text(CONFIG.format(port=port, servers=servers, bound=bound))
        return [self.program, "-db", "-f", str(config)]
