"""A DNS server on 127.0.0.1 that answers what a test told it, over UDP.

Owns the answers and counts the questions. Knows nothing of who asks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class FakeDns(asyncio.DatagramProtocol):
    """`records` maps (name, kind) to values; `broken` answers SERVFAIL, `silent` nothing."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 1
        self.broken = False
        self.silent = False
        self.asked: Counter[tuple[str, str]] = Counter()
        self.address = ""
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's is none by class
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        if self.silent:
            return
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        values = self.records.get((name, kind), [])
        if self.broken:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif values:
            reply.answer.append(dns.rrset.from_text_list(question.name, self.ttl_s, "IN", kind, values))
        elif not any(known == name for known, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        assert self._transport is not None
        self._transport.sendto(reply.to_wire(), addr)


@asynccontextmanager
async def fake_dns() -> AsyncIterator[FakeDns]:
    """A running server; `address` is its HOST:PORT."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        FakeDns, local_addr=("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        transport.close()
