"""A DNS server on 127.0.0.1 that answers what a test told it: over UDP, over TCP where that is too long.

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
        self.glue = False
        """Whether answers to SRV carry the targets' addresses, as those of CoreDNS do."""
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
        reply = self._answer(data)
        if reply is None:
            return
        wire = reply.to_wire()
        if len(wire) > 512:
            reply.answer.clear()
            reply.flags |= dns.flags.TC
            wire = reply.to_wire()
        assert self._transport is not None
        self._transport.sendto(wire, addr)

    async def over_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; each message after its length."""
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                reply = self._answer(await reader.readexactly(size))
                if reply is not None:
                    wire = reply.to_wire()
                    writer.write(len(wire).to_bytes(2, "big") + wire)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, data: bytes) -> dns.message.Message | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        if self.silent:
            return None
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        values = self.records.get((name, kind), [])
        if self.broken:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif values:
            reply.answer.append(dns.rrset.from_text_list(question.name, self.ttl_s, "IN", kind, values))
            for target in values if kind == "SRV" and self.glue else ():
                host = target.split()[-1]
                known = self.records.get((host.rstrip("."), "A"), [])
                if known:
                    reply.additional.append(dns.rrset.from_text_list(host, self.ttl_s, "IN", "A", known))
        elif not any(known == name for known, _ in self.records):
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply


@asynccontextmanager
async def fake_dns() -> AsyncIterator[FakeDns]:
    """A running server; `address` is its HOST:PORT."""
    server = FakeDns()
    # TCP first: of its ports the system knows which are free for both.
    tcp = await asyncio.start_server(server.over_tcp, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: server, local_addr=("127.0.0.1", port)
    )
    try:
        yield server
    finally:
        tcp.close()
        transport.close()
