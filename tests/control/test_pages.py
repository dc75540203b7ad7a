"""The dashboard's files: complete, under a strict policy, with nothing from outside and nothing that runs markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stickyroute.control
from tests.support.admin_port import admin_port

STATIC = Path(stickyroute.control.__file__).parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir())


async def test_the_page_and_all_it_names_are_there() -> None:
    async with admin_port("a") as port:
        assert port.session is not None
        async with port.session.get(port.url + "/") as reply:
            assert (reply.status, reply.content_type) == (200, "text/html")
            page = await reply.text()
        named = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page))
        for path in sorted(STATIC.glob("*.js")):
            named |= {f"static/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())}
        assert {f"static/{name}" for name in FILES if name != "index.html"} == named
        for path in sorted(named):
            async with port.session.get(f"{port.url}/{path}") as reply:
                assert reply.status == 200, path


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/static/dashboard.css", "/static/icon.svg"])
async def test_each_answer_has_the_rules_and_is_not_sent_twice(path: str) -> None:
    async with admin_port("a") as port:
        assert port.session is not None
        async with port.session.get(port.url + path) as reply:
            policy = dict(part.split(" ", 1) for part in reply.headers["Content-Security-Policy"].split("; "))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["frame-ancestors"] == "'none'"
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            tag = reply.headers["ETag"]
        async with port.session.get(port.url + path, headers={"If-None-Match": tag}) as reply:
            assert reply.status == 304
            assert await reply.read() == b""


@pytest.mark.parametrize("name", ["nope.js", "..%2Fadmin.py", "%2e%2e/auth.py", "index.html/", ""])
async def test_no_other_file_is_served(name: str) -> None:
    async with admin_port("a") as port:
        assert (await port.ask("GET", f"/static/{name}"))[0] == 404


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_outside_and_no_text_becomes_markup(name: str) -> None:
    source = (STATIC / name).read_text(encoding="utf-8")
    outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", source)) - {
        "http://www.w3.org/2000/svg",  # a name, not an address
    }
    assert not outside
    for word in (
        "innerHTML =",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        'style="',
    ):
        assert word not in source
