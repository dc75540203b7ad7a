"""The admin port from outside: where it is, the token, one question and its answer.

Owns the address, the credentials and what a person is told when nobody answers. The token is read from a flag, a
file or STICKYROUTE_ADMIN_TOKEN, and is never printed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from stickyroute import defaults
from stickyroute.errors import ConfigError
from stickyroute.settings.addresses import Address, bracketed, split_host_port

__all__ = ["Admin", "Refused", "open_admin"]

TIMEOUT_S = 10.0
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


class Refused(Exception):
    """The proxy answered and did not do it; `status` is the HTTP status, the text is for a person."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def open_admin(flags: argparse.Namespace) -> Admin:
    """The port that the flags and the environment name. Raises ConfigError for what is no address or no file."""
    token = getattr(flags, "token", None)
    file = getattr(flags, "token_file", None)
    if token is None and file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--token-file: cannot read {file}: {getattr(error, 'strerror', 'not text')}"
            ) from None
    if token is None:
        token = os.environ.get("STICKYROUTE_ADMIN_TOKEN") or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("the admin token must be printable ASCII")
    return Admin(flags.admin if flags.admin is not None else _default_url(os.environ), token)


def _default_url(environment: Mapping[str, str]) -> str:
    listen = environment.get("STICKYROUTE_ADMIN_LISTEN", defaults.ADMIN_LISTEN)
    try:
        host, port = split_host_port(listen)
    except ValueError as error:
        raise ConfigError(f"STICKYROUTE_ADMIN_LISTEN {error}") from None
    return f"http://{Address(_WILDCARDS.get(host, host), port)}"


class Admin:
    """A connection that is opened when first used, and again when it was lost. `url` may have a path prefix."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if (
            parts.scheme not in ("http", "https")
            or not host
            or parts.username
            or parts.query
            or parts.fragment
        ):
            raise ConfigError("--admin: write http://HOST:PORT, such as http://127.0.0.1:9090")
        self._https = parts.scheme == "https"
        self._host = host
        self._port = port or (443 if self._https else 80)
        self._prefix = parts.path.rstrip("/")
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self.url = f"{parts.scheme}://{bracketed(host)}:{self._port}{self._prefix}"

    def get(self, path: str) -> Any:
        """The JSON at a path. Raises Refused for an error status, ConfigError when nobody answers in our way."""
        return self._ask("GET", path)

    def post(self, path: str, body: bytes = b"{}") -> Any:
        """The same for a change, or for what is asked with a JSON body."""
        return self._ask("POST", path, body)

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        kept = self._connection is not None
        try:
            status, answer = self._send(method, path, body, headers)
        except (ConnectionError, http.client.RemoteDisconnected):
            self.close()
            if not kept:
                raise self._silent("nobody listens there") from None
            # The port closed a connection that lay idle; what we ask may be asked twice.
            try:
                status, answer = self._send(method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                raise self._silent(_why(error)) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._silent(_why(error)) from None
        return self._read(status, answer)

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            if self._https:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=TIMEOUT_S, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        self._connection.request(method, self._prefix + path, body, headers)
        reply = self._connection.getresponse()
        return reply.status, reply.read()

    def _read(self, status: int, body: bytes) -> Any:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if 200 <= status < 300 and answer is not None:
            return answer
        message = None
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            message = answer["error"].get("message")
        if not isinstance(message, str):
            raise ConfigError(
                f"{self.url} answers, but not as stickyroute's admin port does (status {status})"
            )
        if status == 401 and self._token is None:
            message += " Set STICKYROUTE_ADMIN_TOKEN or give --token-file."
        raise Refused(status, message)

    def _silent(self, why: str) -> ConfigError:
        return ConfigError(f"no answer from {self.url}: {why}; --admin says where the admin port is")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"silent for {TIMEOUT_S:.0f} s"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "what it says is not HTTP"
