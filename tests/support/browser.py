"""Headless Chromium (Debian's package), driven over its DevTools protocol with aiohttp: no driver, no library.

`browser` starts one; a `Page` goes somewhere, evaluates JavaScript, takes screenshots, and keeps what went wrong on
it: exceptions, console errors, failed loads and violations of the content security policy.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium is not installed (apt-get install chromium): the dashboard was not tried in a browser"

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--hide-scrollbars",
    "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--mute-audio", "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
)  # fmt: skip


class Page:
    """One tab. `problems` is what went wrong since it was opened."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._session = ""
        self._loaded = asyncio.Event()
        self.problems: list[str] = []
        self._reader = asyncio.create_task(self._read(), name="devtools")

    async def open(self) -> None:
        """Make the tab."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()

    async def call(self, method: str, **parameters: Any) -> Any:
        """One DevTools command and its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        async with asyncio.timeout(30):
            return await answer

    async def go(self, url: str) -> None:
        """Navigate and wait for the load event."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(30):
            await self._loaded.wait()

    async def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the window's size and the colours the person prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, script: str) -> Any:
        """The value of an expression; promises are awaited. Raises AssertionError for an exception."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """The expression's value once it is true. Raises AssertionError, with what went wrong, when it never is."""
        promise = (
            f"new Promise((done) => {{ const look = () => {{ const value = ({script});"
            "if (value) done(value); else setTimeout(look, 20); }; look(); })"
        )
        try:
            return await self.evaluate(promise)
        except TimeoutError:
            raise AssertionError(f"never came true: {script}; {self.problems[:3]}") from None

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the whole page, or of the window."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))  # noqa: ASYNC240 - a test's own small file

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                answer = self._answers.pop(told["id"])
                if "error" in told:
                    answer.set_exception(AssertionError(told["error"]["message"]))
                else:
                    answer.set_result(told["result"])
            else:
                self._hear(told["method"], told["params"])

    def _hear(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(told["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(str([argument.get("value") for argument in told["args"]]))


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A fresh browser with one tab; `profile` is an empty folder for what it keeps."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    drain: asyncio.Task[bytes] | None = None
    try:
        assert process.stderr is not None
        address = None
        async with asyncio.timeout(60):
            while address is None:
                line = (await process.stderr.readline()).decode(errors="replace")
                assert line, "chromium ended before it listened"
                address = re.search(r"DevTools listening on (ws://\S+)", line)
        drain = asyncio.create_task(process.stderr.read(), name="chromium's words")
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address[1], max_msg_size=1 << 28) as socket,
        ):
            page = Page(socket)
            await page.open()
            try:
                yield page
            finally:
                await page.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if drain is not None:
            await drain
