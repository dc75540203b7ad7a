"""`stickyroute drain` and its kin against a real admin port: what is said, what is done, the exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from stickyroute.cli import main
from stickyroute.console import operate
from tests.support.admin_port import TOKEN, AdminPort, admin_port


async def run(port: AdminPort, *arguments: str) -> int:
    """The command in a thread of its own, since the port lives on this loop."""
    return await asyncio.to_thread(main, [*arguments, "--admin", port.url])


def operators(port: AdminPort) -> list[str]:
    return [port.fleet.state(backend.slot).operator for backend in port.fleet.backends]


async def test_each_command_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin_port("a", "b", "c") as port:
        assert await run(port, "drain", "a", "b") == 0
        assert operators(port) == ["draining", "draining", "active"]
        assert await run(port, "undrain", "a") == 0
        assert await run(port, "disable", "c") == 0
        assert operators(port) == ["active", "draining", "disabled"]
        assert await run(port, "enable", "c") == 0
        assert operators(port) == ["active", "draining", "active"]
    assert capsys.readouterr().out.splitlines() == [
        "a is drained: nothing runs there.",
        "b is drained: nothing runs there.",
        "a takes requests again.",
        "c is disabled: nothing runs there.",
        "c takes requests again.",
    ]


async def test_an_unknown_name_is_told_the_known_ones_and_the_others_are_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with admin_port("a", "b") as port:
        assert await run(port, "drain", "nope\x1b[2J", "b") == 1
        assert operators(port) == ["active", "draining"]
    assert capsys.readouterr().err == (
        "stickyroute: drain nope?[2J: There is no such backend. There are: a, b.\n"
    )


@pytest.mark.parametrize("name", ["10.0.0.1:8000/base", "a b", "ü", "%2F", "?x=1"])
async def test_any_name_reaches_its_backend(name: str) -> None:
    async with admin_port(name, "b") as port:
        assert await run(port, "drain", name) == 0
        assert operators(port) == ["draining", "active"]


async def test_the_last_one_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    async with admin_port("a") as port:
        assert await run(port, "disable", "a") == 0
    output = capsys.readouterr()
    assert output.out == "a is disabled: nothing runs there.\n"
    assert "No other backend is available" in output.err


async def test_the_token_comes_from_a_flag_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    async with admin_port("a", admin_token=TOKEN) as port:
        assert await run(port, "drain", "a") == 1
        assert await run(port, "drain", "a", "--token", "wrong") == 1
        assert operators(port) == ["active"]
        assert await run(port, "drain", "a", "--token", TOKEN) == 0
        assert await run(port, "undrain", "a", "--token-file", str(file)) == 0
        monkeypatch.setenv("STICKYROUTE_ADMIN_TOKEN", TOKEN)
        assert await run(port, "drain", "a") == 0
    error = capsys.readouterr().err
    assert "Set STICKYROUTE_ADMIN_TOKEN or give --token-file." in error
    assert "This is not the admin token." in error
    assert TOKEN not in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--token-file", "/nowhere/token"],
            "--token-file: cannot read /nowhere/token: No such file or directory",
        ),
        (["--token", "a\nb"], "the admin token must be printable ASCII"),
        (["--admin", "ftp://x"], "--admin: write http://HOST:PORT, such as http://127.0.0.1:9090"),
        (["--admin", "http://u:p@x:1"], "--admin: write http://HOST:PORT, such as http://127.0.0.1:9090"),
        (["--admin", "http://x:port"], "--admin: write http://HOST:PORT, such as http://127.0.0.1:9090"),
    ],
)
def test_a_mistake_is_a_line_and_exit_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drain", "a", *arguments]) == 2
    assert capsys.readouterr().err == f"stickyroute: {told}\n"


def test_nobody_there_is_a_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "a", "--admin", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == (
        "stickyroute: no answer from http://127.0.0.1:1: nobody listens there; --admin says where the admin port is\n"
    )


def test_where_the_port_is_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STICKYROUTE_ADMIN_LISTEN", "0.0.0.0:1")
    assert main(["drain", "a"]) == 2
    assert "http://127.0.0.1:1:" in capsys.readouterr().err


class Time:
    """A clock that moves when somebody sleeps, and does something then."""

    def __init__(self, on_sleep: Callable[[int], None]) -> None:
        self.now_s = 0.0
        self._sleeps = 0
        self._on_sleep = on_sleep

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._sleeps += 1
        self._on_sleep(self._sleeps)


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Puts in a clock that calls its argument with the number of each sleep."""

    def put(on_sleep: Callable[[int], None]) -> None:
        monkeypatch.setattr(operate, "time", Time(on_sleep))

    return put


async def test_a_drain_is_waited_for_with_its_progress(
    sleeping: Callable[[Callable[[int], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async with admin_port("a", "b") as port:
        leases = [port.fleet.lease(0) for _ in range(3)]

        def one_ends(sleeps: int) -> None:
            lease = leases.pop()
            assert lease is not None
            lease.release()

        sleeping(one_ends)
        assert await run(port, "drain", "a", "--wait") == 0
    assert capsys.readouterr().out.splitlines() == [
        "a is draining: 3 requests run there.",
        "draining: a 3 left",
        "draining: a 2 left",
        "draining: a 1 left",
        "a is drained: nothing runs there, after 1 s.",
    ]


async def test_a_wait_ends_at_its_limit_with_exit_3_and_goes_on_draining(
    sleeping: Callable[[Callable[[int], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async with admin_port("a", "b") as port:
        lease = port.fleet.lease(0)
        sleeping(lambda sleeps: None)
        assert await run(port, "drain", "a", "--timeout", "1.2") == 3
        assert operators(port) == ["draining", "active"]
        assert lease is not None
    assert capsys.readouterr().err == "stickyroute: after 1 s still draining: a 1 left\n"


async def test_somebody_who_takes_it_back_ends_the_wait(
    sleeping: Callable[[Callable[[int], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async with admin_port("a", "b") as port:
        lease = port.fleet.lease(0)
        sleeping(lambda sleeps: port.fleet.undrain(0, 100.0))
        assert await run(port, "drain", "a", "--wait") == 1
        assert lease is not None
    assert capsys.readouterr().out.endswith("a takes requests again: somebody took it back.\n")


async def test_an_interrupted_wait_says_that_it_still_drains(
    sleeping: Callable[[Callable[[int], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(sleeps: int) -> None:
        raise KeyboardInterrupt

    async with admin_port("a", "b") as port:
        lease = port.fleet.lease(0)
        sleeping(interrupt)
        assert await run(port, "drain", "a", "--wait") == 130
        assert operators(port) == ["draining", "active"]
        assert lease is not None
    assert capsys.readouterr().err == "stickyroute: not waiting any longer; still draining: a\n"


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon", "1e9"])
def test_a_time_limit_is_a_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drain", "a", f"--timeout={seconds}"])
    assert ended.value.code == 2
    assert "give seconds" in capsys.readouterr().err
