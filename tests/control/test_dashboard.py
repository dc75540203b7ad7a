"""The dashboard in headless Chromium: it loads, follows the fleet, drains, and has nothing to say on the console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.admin_port import TOKEN, AdminPort, admin_port, spec
from tests.support.browser import CHROMIUM, MISSING, Page, browser

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]

HOSTILE = "<img/src=x/onerror=document.title='owned'>"

ROW = "[...document.querySelectorAll('#fleet tbody tr')].find((row) => row.querySelector('.name').textContent === {!r})"


def row(name: str) -> str:
    """The row of a backend, as an expression."""
    return ROW.format(name)


def button(name: str, text: str) -> str:
    return f"[...{row(name)}.querySelectorAll('button')].find((one) => !one.hidden && one.textContent === {text!r})"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with browser(tmp_path) as page:
        yield page


async def opened(page: Page, port: AdminPort) -> None:
    """The page with its first state."""
    await page.go(port.url)
    await page.until("document.querySelector('#live.on') && document.querySelector('#fleet tbody tr')")


async def test_it_shows_the_fleet_and_follows_it_in_every_size(page: Page) -> None:
    async with admin_port("gpu-1", HOSTILE, "gpu-3") as port:
        await page.look(1440, 900)
        await opened(page, port)
        names = await page.evaluate(
            "[...document.querySelectorAll('#fleet .who .name')].map((one) => one.textContent)"
        )
        assert names == ["gpu-1", HOSTILE, "gpu-3"]
        assert await page.evaluate("document.querySelectorAll('main img').length") == 0
        assert await page.evaluate("document.querySelectorAll('.ring path.arc').length") == 3
        assert "3/3" in await page.evaluate("document.querySelector('#tiles').textContent")
        # What happens shows by itself, within a tick.
        port.fleet.record_refused(2, 100.0, 0.5)
        port.metrics.decisions("home")
        await page.until(f"{row('gpu-3')}.textContent.includes('down')")
        await page.until("document.querySelector('#alerts').textContent.includes('gpu-3')")
        await page.until("document.title.startsWith('2/3')")
        for width, dark, phone in (
            (1440, True, False),
            (820, False, False),
            (390, True, True),
            (320, False, True),
        ):
            await page.look(width, 900, dark=dark, phone=phone)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(ground)
        await page.look(390, 844, dark=True, phone=True)
        assert await page.evaluate(ground) != light
        assert page.problems == []


async def test_it_drains_and_takes_back(page: Page) -> None:
    async with admin_port("gpu-1", HOSTILE) as port:
        await opened(page, port)
        lease = port.fleet.lease(1)
        assert lease is not None
        await page.evaluate(f"{button(HOSTILE, 'Drain')}.click()")
        await page.until(f"{row(HOSTILE)}.textContent.includes('1 left')")
        assert port.fleet.state(1).operator == "draining"
        lease.release()
        await page.until(f"{row(HOSTILE)}.textContent.includes('drained')")
        await page.evaluate(f"{button(HOSTILE, 'Undrain')}.click()")
        await page.until(f"{row(HOSTILE)}.querySelector('.state').textContent === 'unproven'")
        assert port.fleet.state(1).operator == "active"
        # To disable one is asked twice.
        await page.evaluate(f"{button('gpu-1', 'Disable')}.click()")
        assert port.fleet.state(0).operator == "active"
        await page.evaluate(f"{button('gpu-1', 'Sure?')}.click()")
        await page.until(f"{row('gpu-1')}.querySelector('.state').textContent === 'disabled'")
        assert await page.evaluate(
            "document.querySelector('.toasts').textContent.includes('gpu-1 is disabled')"
        )
        assert page.problems == []


async def test_with_a_token_set_it_asks_for_it(page: Page) -> None:
    async with admin_port("gpu-1", "gpu-2", admin_token=TOKEN) as port:
        await opened(page, port)
        submit = (
            "document.querySelector('#token').value = {!r}; document.querySelector('#token-save').click()"
        )
        await page.evaluate(f"{button('gpu-1', 'Drain')}.click()")
        assert await page.evaluate("document.querySelector('#token-dialog').open")
        await page.evaluate(submit.format("wrong"))
        await page.until(
            "document.querySelector('#token-problem').textContent.includes('not the admin token')"
        )
        assert port.fleet.state(0).operator == "active"
        await page.evaluate(submit.format(TOKEN))
        await page.until(f"{row('gpu-1')}.textContent.includes('drained')")
        # It stays for this tab, and goes when told.
        await opened(page, port)
        await page.evaluate(f"{button('gpu-1', 'Undrain')}.click()")
        await page.until(f"{button('gpu-1', 'Drain')}")
        await page.evaluate("document.querySelector('#unlock').click()")
        assert await page.evaluate("sessionStorage.length") == 0
        # The browser itself reports each 401 it gets.
        assert [problem for problem in page.problems if "401" not in problem] == []


async def test_many_can_be_filtered_and_where_nothing_can_be_changed_the_buttons_say_so(page: Page) -> None:
    async with admin_port(
        *(f"gpu-{number:03}" for number in range(150)), admin_listen="0.0.0.0:9090"
    ) as port:
        await opened(page, port)
        rows = "document.querySelectorAll('#fleet tbody tr').length"
        assert await page.evaluate(rows) == 100
        await page.evaluate("document.querySelector('.fleet > .button').click()")
        assert await page.evaluate(rows) == 150
        await page.evaluate(
            "document.querySelector('#filter').value = 'gpu-14';"
            "document.querySelector('#filter').dispatchEvent(new Event('input'))"
        )
        assert await page.evaluate(rows) == 10
        assert await page.evaluate(f"{button('gpu-140', 'Drain')}.disabled")
        assert "admin_token" in await page.evaluate(f"{button('gpu-140', 'Drain')}.title")
        assert page.problems == []


async def test_a_fleet_of_nobody_is_a_page_too(page: Page) -> None:
    async with admin_port("gpu-1") as port:
        port.fleet.apply(port.fleet.plan([]), 100.0)
        await page.go(port.url)
        await page.until("document.querySelector('#fleet').dataset.empty")
        assert "0/0" in await page.evaluate("document.querySelector('#tiles').textContent")
        port.fleet.apply(port.fleet.plan([spec("gpu-2")]), 101.0)
        await page.until(row("gpu-2"))
        assert page.problems == []
