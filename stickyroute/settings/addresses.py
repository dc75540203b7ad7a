"""Where to listen and where a backend is: HOST:PORT and base URLs, read strictly.

Owns both grammars. Resolves no name and opens no socket. Messages never repeat the text they complain about,
since a URL may hold a password.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A TCP address to listen on. `host` has no brackets; `port` 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it takes connections on every interface."""
        return self.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound


class BackendUrl(NamedTuple):
    """A backend's base URL in parts. `base_path` is empty or starts with a slash and doesn't end in one."""

    scheme: str
    host: str
    port: int
    base_path: str

    @property
    def authority(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address; the port is always there."""
        return f"{bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"


def bracketed(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def split_host_port(text: str) -> Address:
    """HOST:PORT with a host name, an IPv4 address or a bracketed IPv6 address.

    Raises ValueError that says what to write.
    """
    if text.startswith(("unix:", "/", "./")):
        raise ValueError("unix sockets are not supported; write HOST:PORT, such as 127.0.0.1:8080")
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError("has no port; write HOST:PORT, such as 0.0.0.0:8080")
    if not host:
        raise ValueError("has no host; write 0.0.0.0:PORT or '[::]:PORT' to listen on every interface")
    return Address(_host(host), _port(port, lowest=0))


def parse_backend_url(text: str) -> BackendUrl:
    """An http or https base URL with an optional path prefix. Raises ValueError that says what to write."""
    if text.startswith(("unix:", "/", "./")):
        raise ValueError("unix sockets are not supported; write http://HOST:PORT")
    if "://" not in text:
        raise ValueError("has no scheme; write http://HOST:PORT or https://HOST:PORT")
    if any(not 0x21 <= ord(char) <= 0x7E for char in text):
        raise ValueError("has a space or a character outside ASCII")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("is not a URL; an IPv6 address stands in brackets: http://[::1]:8000") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("must start with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("holds a user name or password; use api_key for the engine's key")
    if "?" in text or "#" in text:
        raise ValueError("has a query or fragment; write the base URL alone")
    base_path = parts.path.rstrip("/")
    if base_path.endswith("/v1"):
        raise ValueError("ends in /v1, which the paths of requests already start with; leave it out")
    if not _BASE_PATH.fullmatch(base_path) or ".." in base_path.split("/"):
        raise ValueError("has a path that cannot be a prefix of request paths")
    host, port = _split_authority(parts.netloc)
    return BackendUrl(
        scheme=parts.scheme,
        host=_host(host),
        port=_DEFAULT_PORTS[parts.scheme] if port is None else _port(port, lowest=1),
        base_path=base_path,
    )


def _split_authority(netloc: str) -> tuple[str, str | None]:
    if netloc.startswith("["):
        inside, bracket, rest = netloc.partition("]")
        host = inside + bracket
        if rest and not rest.startswith(":"):
            raise ValueError("has something between the IPv6 address and the port")
        return host, rest[1:] if rest else None
    host, colon, port = netloc.partition(":")
    if ":" in port:
        raise ValueError("holds an IPv6 address without brackets; write http://[ADDRESS]:PORT")
    return host, port if colon else None


def _host(text: str) -> str:
    if text.startswith("[") and text.endswith("]"):
        inside = text[1:-1]
        try:
            ipaddress.IPv6Address(inside)
        except ValueError:
            raise ValueError("has brackets around something that is not an IPv6 address") from None
        return inside.lower()
    if ":" in text:
        raise ValueError("holds an IPv6 address without brackets; write [ADDRESS]:PORT")
    if not _HOST_NAME.fullmatch(text):
        raise ValueError("has no valid host name or address")
    return text.lower()


def _port(text: str, *, lowest: int) -> int:
    if not (text.isascii() and text.isdigit()) or not lowest <= int(text[:6]) <= 65535 or len(text) > 5:
        raise ValueError(f"has a port that is not a number from {lowest} to 65535")
    return int(text)
