"""Who may do what on the admin port: tokens, loopback, and pages of other sites."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from aiohttp import web

from stickyroute.control import admin
from stickyroute.control.auth import audit, demand
from tests.support.admin_port import BEARER, TOKEN, admin_port

OPEN = "0.0.0.0:9090"


class Feature:
    """A feature with a change and a page of prompts."""

    def __init__(self) -> None:
        self.changes = 0

    def add_routes(self, app: web.Application, deps: Any) -> None:
        app.router.add_post("/change/{what}", self.change)
        app.router.add_get("/prompts", self.prompts)

    async def change(self, request: web.Request) -> web.Response:
        self.changes += 1
        audit(request, "changed it")
        return web.json_response({})

    async def prompts(self, request: web.Request) -> web.Response:
        demand(request)
        return web.json_response({})


@pytest.fixture
def feature(monkeypatch: pytest.MonkeyPatch) -> Feature:
    made = Feature()
    monkeypatch.setattr(admin, "FEATURES", (made,))
    return made


async def test_on_loopback_without_a_token_anybody_may_change(feature: Feature) -> None:
    async with admin_port() as port:
        assert (await port.ask("POST", "/change/it"))[0] == 200
        assert (await port.ask("GET", "/prompts"))[0] == 200
    assert feature.changes == 1


async def test_with_a_token_set_a_change_needs_it(feature: Feature) -> None:
    async with admin_port(admin_token=TOKEN) as port:
        assert await port.code("POST", "/change/it") == (401, "no_admin_token")
        assert await port.code("GET", "/prompts") == (401, "no_admin_token")
        assert (await port.ask("GET", "/fleet"))[0] == 200
        assert feature.changes == 0
        assert (await port.ask("POST", "/change/it", headers=BEARER))[0] == 200
        assert (await port.ask("GET", "/prompts", headers=BEARER))[0] == 200
        assert (await port.ask("POST", "/change/it", headers={"Authorization": f"bearer  {TOKEN}"}))[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        "", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}", "Bearer \xff\xfe", f"Bearer {TOKEN} {TOKEN}", "Bearer " + "x" * 5000,
    ],
)  # fmt: skip
async def test_a_wrong_token_is_a_401(feature: Feature, given: str) -> None:
    async with admin_port(admin_token=TOKEN) as port:
        assert await port.code("POST", "/change/it", headers={"Authorization": given}) == (
            401,
            "wrong_admin_token",
        )
    assert feature.changes == 0


async def test_a_401_says_how_to_ask(feature: Feature) -> None:
    async with admin_port(admin_token=TOKEN) as port:
        assert port.session is not None
        async with port.session.post(port.url + "/change/it") as reply:
            assert reply.headers["WWW-Authenticate"] == "Bearer"


async def test_elsewhere_than_loopback_nothing_changes_without_a_token(feature: Feature) -> None:
    async with admin_port(admin_listen=OPEN) as port:
        status, answer = await port.ask("POST", "/change/it")
        assert (status, answer["error"]["code"]) == (403, "admin_token_not_set")
        assert "STICKYROUTE_ADMIN_TOKEN" in answer["error"]["message"]
        assert (await port.ask("GET", "/prompts"))[0] == 403
        assert (await port.ask("GET", "/fleet"))[0] == 200
        assert (await port.ask("POST", "/change/it", headers=BEARER))[0] == 403
    assert feature.changes == 0


async def test_elsewhere_with_a_token_it_does(feature: Feature) -> None:
    async with admin_port(admin_listen=OPEN, admin_token=TOKEN) as port:
        assert await port.code("POST", "/change/it") == (401, "no_admin_token")
        assert (await port.ask("POST", "/change/it", headers=BEARER))[0] == 200


async def test_a_token_that_changes_holds_from_then_on(feature: Feature) -> None:
    async with admin_port(admin_token=TOKEN) as port:
        port.settings = port.settings.model_copy(
            update={"admin_token": type(port.settings.admin_token)("other")}
        )
        assert await port.code("POST", "/change/it", headers=BEARER) == (401, "wrong_admin_token")
        assert (await port.ask("POST", "/change/it", headers={"Authorization": "Bearer other"}))[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "localhost.evil.example"]
)
async def test_a_foreign_name_for_loopback_is_refused(feature: Feature, host: str) -> None:
    """DNS rebinding: the page's own name, made to point at 127.0.0.1."""
    async with admin_port() as port:
        headers = {"Host": host}
        assert await port.code("GET", "/fleet", headers=headers) == (403, "foreign_host")
        assert await port.code("POST", "/change/it", headers=headers) == (403, "foreign_host")
        assert (await port.ask("GET", "/healthz", headers=headers))[0] == 200
    assert feature.changes == 0


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:1", "LOCALHOST.", "a.localhost:9", "127.0.0.1", "[::1]:9090", "10.1.2.3:80"],
)
async def test_addresses_and_localhost_are_no_foreign_names(feature: Feature, host: str) -> None:
    async with admin_port() as port:
        assert (await port.ask("GET", "/fleet", headers={"Host": host}))[0] == 200
        assert (await port.ask("POST", "/change/it", headers={"Host": host}))[0] == 200


async def test_with_the_token_the_name_does_not_matter(feature: Feature) -> None:
    async with admin_port(admin_token=TOKEN) as port:
        headers = {"Host": "router.example", "Origin": "http://elsewhere.example", **BEARER}
        assert (await port.ask("GET", "/fleet", headers=headers))[0] == 200
        assert (await port.ask("POST", "/change/it", headers=headers))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""}, {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
    ],
)  # fmt: skip
async def test_a_page_of_another_site_changes_nothing(feature: Feature, headers: dict[str, str]) -> None:
    async with admin_port() as port:
        assert await port.code("POST", "/change/it", headers=headers) == (403, "foreign_origin")
    assert feature.changes == 0


async def test_our_own_page_may_but_not_with_a_form(feature: Feature) -> None:
    async with admin_port() as port:
        own = {"Origin": port.url, "Sec-Fetch-Site": "same-origin"}
        assert (await port.ask("POST", "/change/it", headers=own))[0] == 200
        assert (await port.ask("POST", "/change/it", headers=own, json={}))[0] == 200
        assert await port.code("POST", "/change/it", headers=own, data={"a": "b"}) == (
            403,
            "form_not_allowed",
        )
    assert feature.changes == 2


async def test_each_change_is_one_line_in_the_log(feature: Feature, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stickyroute.control")
    async with admin_port(admin_token=TOKEN) as port:
        await port.ask("POST", "/change/it", headers=BEARER)
    assert caplog.messages == ["audit: changed it, by 127.0.0.1, with the admin token"]


async def test_refusals_are_told_without_token_or_path_and_not_in_a_storm(
    feature: Feature, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("stickyroute.control.auth.monotonic", lambda: now_s)
    async with admin_port(admin_token=TOKEN) as port:
        for _ in range(50):
            await port.ask("POST", "/change/hostile%0aline", headers={"Authorization": f"Bearer {TOKEN}x"})
        now_s += 1.0
        await port.ask("DELETE", "/nothing%0ahere")
    assert caplog.messages == [
        "refused: POST /change/{what} from 127.0.0.1 (wrong_admin_token)",
        "refused: DELETE (unknown path) from 127.0.0.1 (no_admin_token), and 49 more since the last line",
    ]
    assert TOKEN not in caplog.text
