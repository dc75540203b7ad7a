"""nginx as an SSE-safe reverse proxy with a consistent hash on the session header: the byte mover to
compare with.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from bench.drivers.base import Driver

CONFIG = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    keepalive_requests 1000000;
    upstream fleet {{
        hash $http_x_session_id consistent;
{servers}
        keepalive 512;
        keepalive_requests 1000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://fleet;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


class Nginx(Driver):
    """One worker process, proxy_buffering off so that an event is passed on at once, kept-alive upstreams."""

    name = "nginx"
    default_policy = "hash on session header"

    @classmethod
    def find(cls, venvs: list[str]) -> Driver | None:
        program = shutil.which("nginx")
        if program is None:
            return None
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
        version = re.search(r"nginx/([\d.]+)", said)
        return cls(program, version.group(1) if version else "?")

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        servers = "\n".join(f"        server {url.removeprefix('http://')};" for url in backends)
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port, servers=servers))
        return [self.program, "-p", str(folder), "-c", str(config)]
