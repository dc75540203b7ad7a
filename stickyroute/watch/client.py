"""How the watchers ask a backend: the HTTP client's set-up, and one question as a value.

Owns connections, credentials and TLS towards backends, for questions of our own. Must not know what is asked
or what an answer means.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import aiohttp
from yarl import URL

from stickyroute import __version__
from stickyroute.fleet import BackendSpec
from stickyroute.watch.tls import backend_tls

__all__ = ["Asking", "open_session", "read_bounded"]


class Asking:
    """Questions to `path` of one backend. Raises ConfigError for an unreadable CA file."""

    def __init__(self, spec: BackendSpec, path: str) -> None:
        self._url = URL(spec.url + path, encoded=True)
        self._headers = {"Authorization": f"Bearer {spec.api_key}"} if spec.api_key else {}
        # True lets aiohttp apply its default checks, which plain http ignores.
        self._tls = backend_tls(spec) if spec.scheme == "https" else True

    def get(self, session: aiohttp.ClientSession) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Ask; use as `async with`."""
        return session.get(self._url, headers=self._headers, ssl=self._tls, allow_redirects=False)

    def post(
        self, session: aiohttp.ClientSession, body: bytes
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Ask with JSON; use as `async with`."""
        headers = {**self._headers, "Content-Type": "application/json"}
        return session.post(self._url, data=body, headers=headers, ssl=self._tls, allow_redirects=False)


def open_session(timeout_s: float) -> aiohttp.ClientSession:
    """A client on the running loop; `timeout_s` bounds one question, connecting included."""
    # Engines close idle connections after 5 s, about as often as we ask: a fresh connection each time is
    # never stale.
    connector = aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=5)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"stickyroute/{__version__}", "Accept-Encoding": "identity"},
    )


async def read_bounded(reply: aiohttp.ClientResponse, limit_bytes: int) -> bytes | None:
    """The body, or None when it is longer than `limit_bytes`."""
    body = bytearray()
    async for chunk in reply.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > limit_bytes:
            return None
    return bytes(body)
