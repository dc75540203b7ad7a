"""Backends from DNS: addresses of a name, or the targets of its SRV records.

Owns what is asked, and how long an answer holds: as long as its TTL says, within bounds, and no longer than it
takes to see that one of those found cannot be reached. With `record: address` and no server named, the system is
asked in its own way (hosts file, search list, no TTL); else dnspython asks a server.

A name that does not exist, or has no such record, is an empty answer; a server that fails is none.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError
from stickyroute.settings import DiscoverySettings, split_host_port
from stickyroute.watch.discovery.places import Listener, Place, backoff_s

__all__ = ["DnsSource"]

LEAST_S = 1.0
"""An answer is used for so long, whatever its TTL says, and as long again if a backend of it fails."""
MOST_S = 300.0
UNTOLD_S = 10.0
"""How long an answer of the system holds, which tells no TTL."""
LOOKUP_S = 5.0
"""Seconds for one lookup, further tries of the resolver included."""
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

_Answer = tuple[Sequence[Place], float]


class _Failed(Exception):
    """The lookup gave no answer; the text says why."""


class DnsSource:
    """The addresses or targets of `entry.host`. Raises ConfigError where dnspython is needed and missing."""

    def __init__(self, entry: DiscoverySettings) -> None:
        self._host = entry.host or ""
        self._record = entry.record
        self._port = entry.port if isinstance(entry.port, int) else 443 if entry.scheme == "https" else 80
        # A certificate names the host: its address would not do.
        self._by_name = entry.scheme == "https" and entry.tls_verify
        self._resolver = None
        if entry.record != "address" or entry.resolver is not None:
            self._resolver = _resolver(entry.resolver)
        self._again = asyncio.Event()
        self._patience_s = LEAST_S

    def again(self) -> None:
        """Look again, if the last answer is not younger than a second; later each time nothing changes."""
        self._again.set()

    async def run(self, listener: Listener) -> None:
        failures = 0
        before: Sequence[Place] | None = None
        while True:
            self._again.clear()
            asked_s = monotonic()
            try:
                places, holds_s = await self._look_up()
            except _Failed as error:
                failures += 1
                listener.failed(f"lookup failed: {error}")
                holds_s = backoff_s(failures)
            else:
                failures = 0
                if places != before:
                    before, self._patience_s = places, LEAST_S
                listener.found(places)
                holds_s = min(MOST_S, max(LEAST_S, holds_s))
            await self._hold(asked_s, holds_s)

    async def _hold(self, asked_s: float, holds_s: float) -> None:
        """Until the answer has had its time, or one of those in it cannot be reached."""
        try:
            async with asyncio.timeout(holds_s):
                await self._again.wait()
        except TimeoutError:
            self._patience_s = LEAST_S
            return
        # A backend that stays down for hours is no reason to ask every second.
        await asyncio.sleep(max(0.0, asked_s + min(holds_s, self._patience_s) - monotonic()))
        self._patience_s = min(MOST_S, self._patience_s * 2)

    async def _look_up(self) -> _Answer:
        if self._resolver is None:
            return await self._ask_system()
        if self._record == "SRV":
            return await self._targets(self._resolver)
        kinds = ("A", "AAAA") if self._record == "address" else (self._record,)
        found, holds_s = await self._addresses(self._resolver, self._host, kinds)
        return [self._at(address) for address in found], holds_s

    def _at(self, address: str) -> Place:
        bracketed = f"[{address}]" if ":" in address else address
        return Place(f"{bracketed}:{self._port}", address, self._port)

    async def _ask_system(self) -> _Answer:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOKUP_S):
                rows = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_NAME:
                return (), UNTOLD_S
            raise _Failed(error.strerror or str(error)) from None
        except TimeoutError:
            raise _Failed("no answer in time") from None
        except (OSError, UnicodeError) as error:
            raise _Failed(str(error)) from None
        found = {str(row[4][0]) for row in rows if row[0] == socket.AF_INET}
        found = found or {str(row[4][0]) for row in rows}
        return [self._at(address) for address in sorted(found)], UNTOLD_S

    async def _targets(self, resolver: Any) -> _Answer:
        answer = await _ask(resolver, self._host, "SRV")
        holds_s = answer.holds_s
        first = min((row.priority for row in answer.rows), default=0)
        targets = sorted(
            {(str(row.target).rstrip("."), int(row.port)) for row in answer.rows if row.priority == first}
        )
        if self._by_name:
            return [Place(f"{name}:{port}", name, port) for name, port in targets], holds_s
        names = sorted({name for name, _ in targets} - answer.glue.keys())
        asked = await asyncio.gather(
            *(self._addresses(resolver, name, ("A", "AAAA")) for name in names), return_exceptions=True
        )
        address_of = {name: address for name, (address, _) in answer.glue.items()}
        holds_s = min([holds_s, *(ttl_s for _, ttl_s in answer.glue.values())])
        for name, found in zip(names, asked, strict=True):
            if isinstance(found, BaseException):
                raise found
            addresses, address_holds_s = found
            if addresses:
                address_of[name] = addresses[0]
                holds_s = min(holds_s, address_holds_s)
        return [
            Place(f"{name}:{port}", address_of[name], port) for name, port in targets if name in address_of
        ], holds_s

    async def _addresses(self, resolver: Any, host: str, kinds: Sequence[str]) -> tuple[Sequence[str], float]:
        """The addresses of the first of `kinds` that has any, and how long they hold.

        Not of all: a host with two kinds of address is one backend, not two.
        """
        holds_s = UNTOLD_S
        for kind in kinds:
            answer = await _ask(resolver, host, kind)
            holds_s = answer.holds_s
            if answer.rows:
                return sorted(str(row.address) for row in answer.rows), holds_s
        return (), holds_s


class _Reply(NamedTuple):
    """The rows of one answer, how long they hold, and addresses that came with it: name -> (address, its TTL)."""

    rows: Sequence[Any] = ()
    holds_s: float = UNTOLD_S
    glue: Mapping[str, tuple[str, float]] = {}


async def _ask(resolver: Any, host: str, kind: str) -> _Reply:
    """One question; no rows for a name that has none, or is none."""
    from dns.exception import DNSException, Timeout
    from dns.resolver import NXDOMAIN, NoNameservers

    try:
        answer = await resolver.resolve(host, kind, lifetime=LOOKUP_S, raise_on_no_answer=False, search=True)
    except NXDOMAIN:
        return _Reply()
    except Timeout:
        raise _Failed("no answer in time") from None
    except NoNameservers:
        raise _Failed(f"no server answers for {kind} of {host}") from None
    except (DNSException, OSError) as error:
        raise _Failed(str(error) or type(error).__name__) from None
    if answer.rrset is None:
        return _Reply()
    glue: dict[str, tuple[str, float]] = {}
    for rows in answer.response.additional if kind == "SRV" else ():
        addresses = sorted(row.address for row in rows if hasattr(row, "address"))
        if addresses:
            glue.setdefault(str(rows.name).rstrip("."), (str(addresses[0]), float(rows.ttl)))
    return _Reply(tuple(answer), float(answer.rrset.ttl), glue)


def _resolver(server: str | None) -> Any:
    try:
        import dns.asyncresolver
        import dns.resolver
    except ImportError:
        raise ConfigError(
            "discovery: DNS records and servers of your own need dnspython: pip install 'stickyroute[dns]'"
        ) from None
    try:
        resolver = dns.asyncresolver.Resolver(configure=server is None)
    except dns.resolver.NoResolverConfiguration:
        raise ConfigError("discovery: the system names no DNS server; set resolver: HOST:PORT") from None
    if server is not None:
        host, port = split_host_port(server)
        resolver.nameservers = [host]
        resolver.port = port
    return resolver
