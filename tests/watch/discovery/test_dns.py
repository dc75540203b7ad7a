"""Discovery by DNS, against a server of our own."""

from __future__ import annotations

import pytest

from stickyroute.settings import DiscoverySettings
from stickyroute.watch.discovery import dns, places
from stickyroute.watch.discovery.dns import DnsSource
from tests.support.fake_dns import FakeDns, fake_dns
from tests.watch.discovery.listener import running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "LEAST_S", 0.02)
    monkeypatch.setattr(dns, "UNTOLD_S", 0.02)
    monkeypatch.setattr(places, "_FIRST_PAUSE_S", 0.01)


def source(server: FakeDns, **entry: object) -> DnsSource:
    server.ttl_s = 0
    return DnsSource(
        DiscoverySettings(kind="dns", host="vllm.test", resolver=server.address, port=8000, **entry)
    )


async def test_addresses_are_backends_and_a_host_with_two_kinds_of_them_is_one() -> None:
    async with fake_dns() as server:
        server.records = {("vllm.test", "A"): ["10.0.0.2", "10.0.0.1"], ("vllm.test", "AAAA"): ["fd00::1"]}
        async with running(source(server)) as heard:
            await heard.tells("10.0.0.1:8000=10.0.0.1:8000", "10.0.0.2:8000=10.0.0.2:8000")
        async with running(source(server, record="AAAA")) as heard:
            await heard.tells("[fd00::1]:8000=fd00::1:8000")
        del server.records["vllm.test", "A"]
        async with running(source(server)) as heard:
            await heard.tells("[fd00::1]:8000=fd00::1:8000")


async def test_an_answer_is_asked_for_again_when_its_time_is_over() -> None:
    async with fake_dns() as server:
        server.records = {("vllm.test", "A"): ["10.0.0.1"]}
        async with running(source(server, record="A")) as heard:
            await heard.tells("10.0.0.1:8000=10.0.0.1:8000")
            server.records = {("vllm.test", "A"): ["10.0.0.7"]}
            await heard.tells("10.0.0.7:8000=10.0.0.7:8000")


async def test_the_targets_of_srv_records_keep_their_names_when_their_addresses_change() -> None:
    async with fake_dns() as server:
        server.records = {
            ("vllm.test", "SRV"): [
                "0 1 8000 vllm-0.test.",
                "0 1 8001 vllm-1.test.",
                "0 1 8000 unknown.test.",
                "10 1 8000 spare.test.",
            ],
            ("vllm-0.test", "A"): ["10.0.0.1"],
            ("vllm-1.test", "A"): ["10.0.0.2"],
            ("spare.test", "A"): ["10.0.0.3"],
        }
        async with running(source(server, record="SRV")) as heard:
            await heard.tells("vllm-0.test:8000=10.0.0.1:8000", "vllm-1.test:8001=10.0.0.2:8001")
            server.records["vllm-0.test", "A"] = ["10.0.0.9"]
            await heard.tells("vllm-0.test:8000=10.0.0.9:8000", "vllm-1.test:8001=10.0.0.2:8001")


async def test_an_answer_that_is_too_long_for_a_datagram_is_fetched_whole() -> None:
    names = [f"vllm-{i:03}.vllm.llm.svc.cluster.local" for i in range(20)]
    async with fake_dns() as server:
        server.records = {("vllm.test", "SRV"): [f"0 1 8000 {name}." for name in names]}
        server.records |= {(name, "A"): [f"10.0.0.{i}"] for i, name in enumerate(names)}
        async with running(source(server, record="SRV")) as heard:
            await heard.tells(*(f"{name}:8000=10.0.0.{i}:8000" for i, name in enumerate(names)))


async def test_addresses_that_come_with_the_targets_are_not_asked_for() -> None:
    async with fake_dns() as server:
        server.glue = True
        server.records = {
            ("vllm.test", "SRV"): ["0 1 8000 vllm-0.test.", "0 1 8000 vllm-1.test."],
            ("vllm-0.test", "A"): ["10.0.0.1"],
            ("vllm-1.test", "A"): ["10.0.0.3", "10.0.0.2"],
        }
        async with running(source(server, record="SRV")) as heard:
            await heard.tells("vllm-0.test:8000=10.0.0.1:8000", "vllm-1.test:8000=10.0.0.2:8000")
        assert set(server.asked) == {("vllm.test", "SRV")}


async def test_a_certificate_is_for_a_name_so_https_targets_stay_names() -> None:
    async with fake_dns() as server:
        server.records = {("vllm.test", "SRV"): ["0 1 8000 vllm-0.test."]}
        async with running(source(server, record="SRV", scheme="https")) as heard:
            await heard.tells("vllm-0.test:8000=vllm-0.test:8000")


async def test_a_server_that_fails_is_no_answer_and_a_name_that_is_gone_an_empty_one() -> None:
    async with fake_dns() as server:
        server.records = {("vllm.test", "A"): ["10.0.0.1"]}
        async with running(source(server, record="A")) as heard:
            await heard.tells("10.0.0.1:8000=10.0.0.1:8000")
            server.broken = True
            await heard.until(lambda: heard.failures)
            assert all(heard.answers)
            assert heard.failures[0] == "lookup failed: no server answers for A of vllm.test"
            server.broken = False
            server.records = {}
            await heard.tells()


async def test_a_backend_that_fails_is_looked_up_again_before_its_time() -> None:
    async with fake_dns() as server:
        server.records = {("vllm.test", "A"): ["10.0.0.1"]}
        asking = source(server, record="A")
        server.ttl_s = 300
        async with running(asking) as heard:
            await heard.tells("10.0.0.1:8000=10.0.0.1:8000")
            server.records = {("vllm.test", "A"): ["10.0.0.7"]}
            asking.again()
            await heard.tells("10.0.0.7:8000=10.0.0.7:8000")
            assert server.asked["vllm.test", "A"] == 2


async def test_the_system_is_asked_where_no_server_is_named() -> None:
    asking = DnsSource(DiscoverySettings(kind="dns", host="localhost", port=8000))
    async with running(asking) as heard:
        await heard.until(lambda: heard.answers)
        assert heard.last == ["127.0.0.1:8000=127.0.0.1:8000"]
