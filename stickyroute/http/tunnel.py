"""Two transports joined after a 101: bytes both ways, with backpressure, until either side ends.

No limit ends a silent tunnel; a side that does not take what it is sent is cut after `client_write_s`. It must
be: while the other side is not read, nobody would notice that it left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from stickyroute.http.listener import ClientConnection
    from stickyroute.http.relay import Relay
    from stickyroute.http.upstream import UpstreamConnection


class _Half:
    """What arrives on the near side goes out on the far one. An `asyncio.Protocol` by its methods."""

    __slots__ = ("_far", "_near", "_stalled", "_tunnel")

    def __init__(self, tunnel: Tunnel, near: asyncio.Transport, far: asyncio.Transport) -> None:
        self._tunnel = tunnel
        self._near = near
        self._far = far
        self._stalled: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._tunnel.relay.bytes_out += len(data)
        self._far.write(data)

    def pause_writing(self) -> None:
        self._stalled = self._tunnel.cut_later(self._near)
        if not self._far.is_closing():
            self._far.pause_reading()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if not self._far.is_closing():
            self._far.resume_reading()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._far.close()
        if self._far.get_write_buffer_size():
            self._tunnel.cut_later(self._far)
        self._tunnel.closed()


class Tunnel:
    """A pair of joined transports; tells its relay once when the pair is gone."""

    __slots__ = ("_open", "relay")

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self._open = True

    @classmethod
    def join(cls, client: ClientConnection, upstream: UpstreamConnection, relay: Relay) -> None:
        """Take both transports away from their HTTP protocols and splice them."""
        tunnel = cls(relay)
        client_side, early_from_client = client.hand_over()
        upstream_side, early_from_upstream = upstream.hand_over()
        client_side.set_protocol(cast("asyncio.BaseProtocol", _Half(tunnel, client_side, upstream_side)))
        upstream_side.set_protocol(cast("asyncio.BaseProtocol", _Half(tunnel, upstream_side, client_side)))
        if early_from_client:
            upstream_side.write(early_from_client)
        if early_from_upstream:
            client_side.write(early_from_upstream)
        client.on_tunnel(client_side.abort)
        if client_side.is_closing() or upstream_side.is_closing():
            client_side.close()
            upstream_side.close()
            tunnel.closed()
        else:
            client_side.resume_reading()

    def cut_later(self, side: asyncio.Transport) -> asyncio.TimerHandle:
        """Drop a side at the limit for taking bytes, unless the timer is cancelled before."""
        limit_s = self.relay.client.limits.client_write_s
        return asyncio.get_running_loop().call_later(limit_s, side.abort)

    def closed(self) -> None:
        """One side is gone; the other is closing."""
        if self._open:
            self._open = False
            self.relay.client.tunnel_over()
            self.relay.tunnel_closed()
