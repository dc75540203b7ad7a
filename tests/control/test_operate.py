"""Drain, undrain, disable and enable over a real socket: what changes, what is told, and for whom."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest

from tests.support.admin_port import BEARER, TOKEN, admin_port


async def test_a_drain_and_back() -> None:
    async with admin_port("a", "b") as port:
        lease = port.fleet.lease(0)
        assert lease is not None
        status, answer = await port.ask("POST", "/backends/a/drain")
        assert status == 200
        assert (answer["was"], answer["operator"], answer["available"]) == ("active", "draining", False)
        assert answer["told"] == "a is draining: 1 request runs there."
        assert "warning" not in answer
        lease.release()
        status, answer = await port.ask("GET", "/backends/a")
        assert (status, answer["operator"], answer["in_flight"]) == (200, "draining", 0)
        status, answer = await port.ask("POST", "/backends/a/undrain")
        assert (answer["was"], answer["operator"], answer["available"]) == ("draining", "active", True)


@pytest.mark.parametrize(
    ("action", "operator"),
    [("drain", "draining"), ("undrain", "active"), ("disable", "disabled"), ("enable", "active")],
)
async def test_each_word_twice_is_as_good_as_once(action: str, operator: str) -> None:
    async with admin_port("a", "b") as port:
        await port.ask("POST", f"/backends/a/{action}")
        status, answer = await port.ask("POST", f"/backends/a/{action}")
        assert (status, answer["was"], answer["operator"]) == (200, operator, operator)
        assert answer["told"] == f"a is {operator} already."
        assert [port.fleet.state(backend.slot).operator for backend in port.fleet.backends] == [
            operator,
            "active",
        ]


async def test_one_word_undoes_the_other() -> None:
    async with admin_port("a", "b") as port:
        for action, operator in (("disable", "disabled"), ("drain", "draining"), ("enable", "active")):
            assert (await port.ask("POST", f"/backends/a/{action}"))[1]["operator"] == operator


async def test_the_last_one_is_warned_of() -> None:
    async with admin_port("a", "b") as port:
        await port.ask("POST", "/backends/a/drain")
        _, answer = await port.ask("POST", "/backends/b/disable")
        assert "No other backend is available" in answer["warning"]
        assert answer["warning"] in answer["told"]
        assert (await port.ask("GET", "/readyz"))[0] == 503


async def test_an_unknown_name_is_told_the_known_ones() -> None:
    async with admin_port("gpu-2", "gpu-1") as port:
        for method, path in (("GET", "/backends/gpu-3"), ("POST", "/backends/gpu-3/drain")):
            status, answer = await port.ask(method, path)
            assert (status, answer["error"]["code"]) == (404, "unknown_backend")
            assert answer["error"]["message"] == "There is no such backend. There are: gpu-1, gpu-2."


async def test_of_many_names_only_some_are_told() -> None:
    async with admin_port(*(f"gpu-{number:03}" for number in range(50))) as port:
        message = (await port.ask("GET", "/backends/x"))[1]["error"]["message"]
        assert message.endswith("gpu-019 and 30 more.")


@pytest.mark.parametrize(
    "name",
    ["10.0.0.1:8000/base/path", "a%2Fb", "<img/src=x>", "drain", "a/drain", "ü".encode().decode("latin-1")],
)
async def test_names_with_anything_in_them(name: str) -> None:
    async with admin_port(name, "b") as port:
        assert (await port.ask("POST", f"/backends/{quote(name, safe='')}/drain"))[1]["name"] == name
        assert (await port.ask("GET", f"/backends/{quote(name, safe='')}"))[1]["operator"] == "draining"


async def test_slashes_may_stay_as_they_are() -> None:
    async with admin_port("10.0.0.1:8000/base", "b") as port:
        assert (await port.ask("POST", "/backends/10.0.0.1:8000/base/drain"))[1]["operator"] == "draining"


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_only_a_post_changes(method: str) -> None:
    async with admin_port("a", "b") as port:
        status, _ = await port.ask(method, "/backends/a/drain")
        assert status in (404, 405)
        assert port.fleet.state(0).operator == "active"


async def test_an_unknown_word_is_a_404_or_405() -> None:
    async with admin_port("a", "b") as port:
        assert (await port.ask("POST", "/backends/a/explode"))[0] in (404, 405)
        assert (await port.ask("POST", "/backends/a"))[0] == 405


async def test_a_change_needs_the_token_and_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stickyroute.control")
    async with admin_port("a", "b", admin_token=TOKEN) as port:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert (await port.ask("POST", "/backends/a/drain", headers=headers))[0] == 401
        assert port.fleet.state(0).operator == "active"
        assert (await port.ask("POST", "/backends/a/drain", headers=BEARER))[0] == 200
        assert (await port.ask("GET", "/backends/a"))[0] == 200
    audited = [message for message in caplog.messages if message.startswith("audit")]
    assert audited == ["audit: drain a: active -> draining, 0 in flight, by 127.0.0.1, with the admin token"]


async def test_the_fleet_shows_the_states() -> None:
    async with admin_port("a", "b") as port:
        await port.ask("POST", "/backends/b/disable")
        a, b = (await port.ask("GET", "/fleet"))[1]["backends"]
        assert (a["operator"], a["health"], a["available"]) == ("active", "unknown", True)
        assert (b["operator"], b["available"]) == ("disabled", False)
