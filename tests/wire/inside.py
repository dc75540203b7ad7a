"""What only a test in the proxy's own process can look at, and clients that hardly take anything."""

from __future__ import annotations

import asyncio
from typing import Any

from stickyroute.http.pool import BackendPool
from stickyroute.live.watches import Watches
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


def pools_of(proxy: RunningProxy) -> list[BackendPool]:
    """Its connections to each backend."""
    assert proxy.app._targets is not None
    return [target.pool for target in proxy.app._targets.by_slot]


def watches_of(proxy: RunningProxy) -> Watches:
    """What looks at its backends."""
    assert proxy.app._watches is not None
    return proxy.app._watches


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.005)
