"""`stickyroute top` as a person and as a script: on a terminal of its own, and into a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable

import pytest

from stickyroute.cli import main
from stickyroute.console import top
from tests.cli.commands import ROOT, environment
from tests.support.admin_port import AdminPort, admin_port


async def test_once_prints_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    async with admin_port("gpu-1", "gpu-2") as port:
        assert await asyncio.to_thread(main, ["top", "--once", "--admin", port.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("gpu-2 ") for line in lines)
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in "".join(lines)


async def test_into_a_pipe_it_is_once_too(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin_port("gpu-1") as port:
        assert await asyncio.to_thread(main, ["top", "--admin", port.url]) == 0
    assert "gpu-1" in capsys.readouterr().out


def test_nobody_there_is_a_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--admin", "127.0.0.1:1"]) == 2
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


async def test_another_port_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin_port("a") as port:
        assert await asyncio.to_thread(main, ["top", "--once", "--admin", port.url + "/nowhere"]) == 1
    assert f"Is {port.url}/nowhere the admin port?" in capsys.readouterr().err


class Terminal:
    """A terminal with `top` in it. What it shows is read in a thread."""

    def __init__(self, port: AdminPort, columns: int = 100, rows: int = 30) -> None:
        self._master, slave = pty.openpty()
        self.resize(columns, rows)
        self._slave = slave
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stickyroute", "top", "--admin", port.url],
            stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=environment({"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}),
        )  # fmt: skip
        self.shown = ""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def until(self, seen: Callable[[str], bool]) -> str:
        """Everything shown so far, once that is so."""
        async with asyncio.timeout(20):
            while not seen(self.shown):
                self.shown += (await asyncio.to_thread(os.read, self._master, 65536)).decode(errors="replace")
        return self.shown

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 20)

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was."""
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        os.close(self._master)


LEFT = "\x1b[?25h\x1b[?1049l"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda terminal: terminal.type(b"\x03"), 130),
        (lambda terminal: terminal.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
async def test_it_gives_the_terminal_back_however_it_ends(end: Callable[[Terminal], None], code: int) -> None:
    async with admin_port("gpu-1", "gpu-2") as port:
        terminal = Terminal(port)
        try:
            shown = await terminal.until(lambda text: "gpu-2" in text)
            assert shown.startswith("\x1b[?1049h\x1b[?25l")
            assert "\x1b[32m" in shown or "\x1b[2m" in shown
            end(terminal)
            await terminal.until(lambda text: LEFT in text)
            assert await terminal.ended() == code
            assert terminal.restored
        finally:
            terminal.close()


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_that_struck_in_a_destructor_still_ends_it(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    before = signal.getsignal(number)
    with top._terminal(io.StringIO()) as keys:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # as Python does there
            signal.raise_signal(number)
        with pytest.raises(raised):
            keys.pressed(10.0)
    assert signal.getsignal(number) == before


async def test_it_follows_the_fleet_and_the_window_until_q() -> None:
    async with admin_port("gpu-1", "gpu-2") as port:
        terminal = Terminal(port)
        try:
            await terminal.until(lambda text: "2/2 available" in text)
            port.fleet.drain(1, 100.0)
            terminal.resize(70, 20)
            terminal.process.send_signal(signal.SIGWINCH)
            await terminal.until(lambda text: "drained" in text)
            terminal.type(b"q")
            await terminal.until(lambda text: LEFT in text)
            assert await terminal.ended() == 0
            assert terminal.restored
        finally:
            terminal.close()
