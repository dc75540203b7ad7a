"""Addresses and encryption: TLS on both sides, IPv6, and TCP_NODELAY."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from stickyroute.errors import ConfigError
from tests.support.fake_backend import events, fakes, held, stream
from tests.support.raw_client import CHAT, RawClient, Truncated, chat, request
from tests.support.run_proxy import run_proxy


@dataclass
class Certificates:
    """One authority, and a certificate of it for 127.0.0.1, ::1 and localhost."""

    ca: Path
    cert: Path
    key: Path
    server: ssl.SSLContext
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "::1", "localhost")
    ca, cert, key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(ca)
    issued.private_key_pem.write_to_path(key)
    for blob in issued.cert_chain_pems:
        blob.write_to_path(cert, append=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(server)
    client = ssl.create_default_context(cafile=str(ca))
    return Certificates(ca, cert, key, server, client)


async def test_tls_on_the_listener(certificates: Certificates) -> None:
    tls = {"cert": certificates.cert, "key": certificates.key}
    async with fakes() as fake, run_proxy([fake], tls=tls) as proxy:
        fake.on(CHAT, stream(events(5)))
        async with await proxy.client(tls=certificates.client) as client:
            assert client.transport.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
            for _ in range(2):
                answer = await client.ask(request(chat("x" * 100_000, stream=True)))
                assert answer.body == b"".join(events(5))
        assert {call.get("x-forwarded-proto") for call in fake.requests} == {"https"}


async def test_a_client_that_leaves_over_tls_closes_its_upstream(certificates: Certificates) -> None:
    tls = {"cert": certificates.cert, "key": certificates.key}
    async with fakes() as fake, run_proxy([fake], tls=tls) as proxy:
        fake.on(CHAT, stream(events(1), then="hang"))
        client = await proxy.client(tls=certificates.client)
        client.send(request(chat(stream=True)))
        async with asyncio.timeout(5):
            await client.body(await client.head(), stop_after=1)
            client.transport.abort()
            await fake.requests[0].gone.wait()
        await proxy.settled()


async def test_an_upstream_that_dies_is_visible_over_tls(certificates: Certificates) -> None:
    tls = {"cert": certificates.cert, "key": certificates.key}
    async with fakes() as fake, run_proxy([fake], tls=tls) as proxy:
        fake.on(CHAT, stream(events(1)[:1], then="reset"))
        for minor in (1, 0):
            async with await proxy.client(tls=certificates.client) as client:
                client.send(request(chat(stream=True), minor=minor))
                with pytest.raises(Truncated):
                    await client.response(minor=minor)
        await proxy.settled()


async def test_plain_http_to_a_tls_port_and_noise_do_no_harm(certificates: Certificates) -> None:
    tls = {"cert": certificates.cert, "key": certificates.key}
    async with fakes() as fake, run_proxy([fake], tls=tls) as proxy:
        for noise in (request(), b"\x16\x03\x01\x00\x05hello", b"\x00" * 1000):
            async with await proxy.client() as client:
                client.send(noise)
                await client.rest()
        async with await proxy.client(tls=certificates.client) as client:
            assert (await client.ask(request())).status == 200
        assert len(fake.requests) == 1


async def test_tls_to_a_backend_with_its_own_authority(certificates: Certificates) -> None:
    async with (
        fakes(tls=certificates.server) as fake,
        run_proxy([fake.settings(ca=certificates.ca)]) as proxy,
    ):
        fake.on(CHAT, stream(events(20)))
        for _ in range(2):
            assert (await proxy.ask(chat("x" * 300_000, stream=True))).body == b"".join(events(20))
        assert len({call.connection for call in fake.requests}) == 1  # kept alive like any other
        assert fake.requests[0].get("host") == fake.authority


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_close_delimited_reply_over_tls(certificates: Certificates, how: str) -> None:
    async with (
        fakes(tls=certificates.server) as fake,
        run_proxy([fake.settings(ca=certificates.ca)]) as proxy,
    ):
        fake.on(CHAT, stream([b"x" * 1000] * 3, framing="close", then=how))
        if how == "end":
            assert (await proxy.ask()).body == b"x" * 3000
        else:
            with pytest.raises(Truncated):
                await proxy.ask()
        await proxy.settled()


async def test_a_backend_whose_certificate_nobody_vouches_for_is_not_used(certificates: Certificates) -> None:
    async with fakes("a", tls=certificates.server) as doubtful, fakes("b") as good:
        backends = [doubtful.settings(models=["m"]), good.settings(models=["m"])]
        async with run_proxy(backends, policy="round_robin") as proxy:
            assert {(await proxy.ask()).backend for _ in range(4)} == {"b"}
            assert doubtful.requests == []
        async with run_proxy([doubtful.settings(models=["m"])]) as proxy:
            assert (await proxy.ask()).status in (502, 503)


async def test_a_backend_s_certificate_is_not_checked_when_told_so(certificates: Certificates) -> None:
    async with (
        fakes(tls=certificates.server) as fake,
        run_proxy([fake.settings(tls_verify=False)]) as proxy,
    ):
        assert (await proxy.ask()).status == 200


async def test_a_certificate_that_cannot_be_read_is_said_at_start(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    async with fakes() as fake:
        with pytest.raises(ConfigError, match=r"junk\.pem"):
            async with run_proxy([fake], tls={"cert": junk, "key": junk}):
                pass
        https = {"name": "a", "url": f"https://127.0.0.1:{fake.port}", "ca": junk}
        with pytest.raises(ConfigError, match=r"junk\.pem"):
            async with run_proxy([https]):
                pass


async def test_ipv6_on_both_sides() -> None:
    async with fakes(host="::1") as fake, run_proxy([fake], listen="[::1]:0") as proxy:
        async with await RawClient.connect(proxy.port, "::1") as client:
            assert (await client.ask(request(host="[::1]:8080"))).status == 200
        seen = fake.requests[0]
        assert seen.get("host") == f"[::1]:{fake.port}"
        assert seen.get("x-forwarded-for") == "::1"
        assert seen.get("x-forwarded-host") == "[::1]:8080"


def connected(port: int) -> list[tuple[int, int]]:
    """(far port, TCP_NODELAY) of each connected socket of this process that has `port` at this end."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with sock:
            try:
                if sock.family == socket.AF_INET and sock.getsockname()[1] == port:
                    found.append(
                        (sock.getpeername()[1], sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                    )
            except OSError:
                continue
    return found


async def test_tcp_nodelay_towards_clients_and_backends() -> None:
    gate = asyncio.Event()
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, held(gate))
        client.send(request())
        call = await fake.arrived()
        client_port = client.transport.get_extra_info("sockname")[1]
        assert (client_port, 1) in connected(proxy.port)
        upstream_port = call.connection.transport.get_extra_info("peername")[1]
        assert connected(upstream_port) == [(fake.port, 1)]
        gate.set()
        await client.response()
