"""What only a test in the proxy's own process can look at, and clients that hardly take anything."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.raw_client import RawClient
from tests.support.run_proxy import RunningProxy

KIB = 1024


async def small_window(proxy: RunningProxy) -> RawClient:
    """A client that takes next to nothing before it reads."""
    client = await proxy.client(rcvbuf=4 * KIB)
    client.stop_reading()
    return client


def connection_of(proxy: RunningProxy) -> Any:
    """The one client connection there is, as the proxy sees it."""
    assert proxy.app._server is not None
    (connection,) = proxy.app._server.connections
    return connection


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)
