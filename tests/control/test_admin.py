"""The admin port over a real socket: what it shows, when it says ready, and that it changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from stickyroute import __version__
from stickyroute.clock import monotonic
from stickyroute.control import Deps, build_admin
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.metrics import Metrics
from stickyroute.settings import Settings

ENGINE_KEY = "engine-key-that-nobody-may-see"
GATEWAY_KEY = "gateway-key-that-nobody-may-see"


@dataclass
class Admin:
    """A running admin port and what stands behind it."""

    fleet: Fleet
    metrics: Metrics
    url: str
    session: aiohttp.ClientSession
    stopping: asyncio.Event

    async def get(self, path: str, **more: Any) -> tuple[int, Any]:
        """Status and JSON body."""
        async with self.session.get(self.url + path, **more) as reply:
            assert reply.content_type == "application/json"
            return reply.status, orjson.loads(await reply.read())


def spec(name: str, base_path: str, weight: int, models: tuple[str, ...] | None) -> BackendSpec:
    return BackendSpec(
        name=name,
        scheme="http",
        host="127.0.0.1",
        port=8000,
        base_path=base_path,
        weight=weight,
        api_key=ENGINE_KEY,
        ca=None,
        tls_verify=True,
        models=models,
        max_in_flight=None,
    )


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    settings = Settings(
        backends=[{"name": "a", "url": "http://127.0.0.1:1", "api_key": ENGINE_KEY}],
        api_keys=[{"name": "somebody", "key": GATEWAY_KEY}],
        policy="bounded_ring",
    )
    fleet = Fleet(
        [spec("a", "/base", weight=3, models=("m1",)), spec("b", "", weight=1, models=None)], vnodes=160
    )
    metrics = Metrics(fleet, __version__)
    stopping = asyncio.Event()
    deps = Deps(fleet=fleet, metrics=metrics, settings=lambda: settings, is_stopping=stopping.is_set)
    runner = web.AppRunner(build_admin(deps), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Admin(fleet, metrics, f"http://127.0.0.1:{runner.addresses[0][1]}", session, stopping)
    await runner.cleanup()


def refuse(fleet: Fleet, *slots: int) -> None:
    for slot in slots:
        fleet.record_refused(slot, 100.0, 0.5)


async def test_healthz_is_200_whatever_the_fleet_is_like(admin: Admin) -> None:
    refuse(admin.fleet, 0, 1)
    assert await admin.get("/healthz") == (200, {"status": "ok"})


async def test_readyz_is_200_while_one_backend_at_least_is_available(admin: Admin) -> None:
    assert await admin.get("/readyz") == (200, {"status": "ready", "backends": 2, "available": 2})
    refuse(admin.fleet, 0)
    assert await admin.get("/readyz") == (200, {"status": "ready", "backends": 2, "available": 1})
    refuse(admin.fleet, 1)
    assert await admin.get("/readyz") == (
        503,
        {"status": "no backend available", "backends": 2, "available": 0},
    )
    admin.fleet.record_reachable(1)
    assert (await admin.get("/readyz"))[0] == 200


async def test_readyz_is_503_from_the_moment_a_stop_begins(admin: Admin) -> None:
    admin.stopping.set()
    assert await admin.get("/readyz") == (503, {"status": "stopping", "backends": 2, "available": 2})
    assert (await admin.get("/healthz"))[0] == 200


async def test_fleet_shows_each_backend(admin: Admin) -> None:
    lease = admin.fleet.lease(0)
    assert lease is not None
    refuse(admin.fleet, 1)
    status, shown = await admin.get("/fleet")
    assert status == 200
    assert shown["version"] == __version__
    assert shown["policy"] == "bounded_ring"
    assert shown["uptime_s"] >= 0
    a, b = shown["backends"]
    assert (a["name"], a["url"], a["weight"], a["models"]) == ("a", "http://127.0.0.1:8000/base", 3, ["m1"])
    assert (a["available"], a["in_flight"]) == (True, 1)
    assert (b["name"], b["available"], b["in_flight"], b["models"]) == ("b", False, 0, None)
    lease.release()
    assert (await admin.get("/fleet"))[1]["backends"][0]["in_flight"] == 0


async def test_fleet_shows_when_a_backend_is_tried_again(admin: Admin) -> None:
    admin.fleet.record_refused(1, monotonic() + 1000, 0.0)
    for _ in range(2):
        admin.fleet.record_refused(1, monotonic() + 2000, 0.0)
    a, b = (await admin.get("/fleet"))[1]["backends"]
    assert (a["failures"], a["retry_in_s"]) == (0, None)
    assert b["failures"] == 2
    assert 1900 < b["retry_in_s"] < 2001
    admin.fleet.record_reachable(1)
    assert (await admin.get("/fleet"))[1]["backends"][1]["retry_in_s"] is None


async def test_fleet_shows_the_ring_and_what_each_backend_has_of_it(admin: Admin) -> None:
    """Weights 3 and 1: about three quarters and a quarter."""
    shown = (await admin.get("/fleet"))[1]
    assert shown["ring_fingerprint"]
    assert shown["members_generation"] == admin.fleet.generation
    assert "generation" not in shown, "that is the configuration's"
    a, b = (backend["ring_share"] for backend in shown["backends"])
    assert a + b == pytest.approx(1)
    assert 0.65 < a < 0.85


async def test_metrics_as_prometheus_text(admin: Admin) -> None:
    admin.metrics.record("m1", "a", "/v1/chat/completions", 200, "home", 0.1, 1.0, 10, 20)
    async with admin.session.get(admin.url + "/metrics") as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith("text/plain; version=")
        families = {family.name: family for family in parse_text(await reply.text())}
    assert families["stickyroute_requests"].samples[0].value == 1
    assert "process_cpu_seconds" in families


async def test_metrics_as_openmetrics_when_asked(admin: Admin) -> None:
    admin.metrics.record("m1", "a", "/v1/chat/completions", 200, "home", 0.1, 1.0, 10, 20)
    accept = {"Accept": "application/openmetrics-text; version=1.0.0, text/plain; version=0.0.4; q=0.5"}
    async with admin.session.get(admin.url + "/metrics", headers=accept) as reply:
        assert reply.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        text = await reply.text()
    assert text.count("# EOF\n") == 1
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families["stickyroute_requests"].samples[0].value == 1


async def test_scrapes_while_requests_end_stay_whole(admin: Admin) -> None:
    """New series appear between the families of a scrape; every scrape still parses."""
    url = admin.url + "/metrics"

    async def scrape() -> str:
        async with admin.session.get(url) as reply:
            return await reply.text()

    scrapes = [asyncio.create_task(scrape()) for _ in range(20)]
    for number in range(200):
        admin.metrics.record("m1", "ab"[number % 2], f"/r{number}", 200, f"reason {number}", 0.1, 1.0, 10, 20)
        await asyncio.sleep(0)
    for text in await asyncio.gather(*scrapes):
        assert "stickyroute_requests" in {family.name for family in parse_text(text)}


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/static/nope",
        "/static/../admin.py",
        "/fleet/a",
        "/docs",
        "/debug",
        "/metrics/../etc",
        "/v1/models",
    ],
)
async def test_an_unknown_route_is_a_404_in_json(admin: Admin, path: str) -> None:
    status, answer = await admin.get(path)
    assert status == 404
    assert answer["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/fleet"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(admin: Admin, method: str, path: str) -> None:
    before = admin.fleet.snapshot()
    body = b'{"url": "http://127.0.0.1:9/"}'
    async with admin.session.request(method, admin.url + path, data=body) as reply:
        assert reply.status == 405
        assert reply.headers["Allow"] == "GET, HEAD"
        assert orjson.loads(await reply.read())["error"]["code"] == "method_not_allowed"
    assert admin.fleet.snapshot() == before


async def test_head_is_answered_without_a_body(admin: Admin) -> None:
    async with admin.session.head(admin.url + "/healthz") as reply:
        assert reply.status == 200
        assert await reply.read() == b""


async def test_no_page_shows_a_secret(admin: Admin) -> None:
    refuse(admin.fleet, 0)
    for path in ("/healthz", "/readyz", "/metrics", "/fleet", "/nope"):
        async with admin.session.get(admin.url + path) as reply:
            shown = await reply.text() + str(reply.headers)
        assert "that-nobody-may-see" not in shown
