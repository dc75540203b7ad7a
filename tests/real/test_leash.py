"""No engine outlives the test that started it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.commands import ROOT
from tests.support.leash import leashed

SERVER = """
import subprocess, sys, time
inner = "import time; print('up', flush=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", inner])
time.sleep(600)
"""
TEST = f"""
import subprocess, sys, time
from tests.support.leash import leashed
with leashed(subprocess.Popen([sys.executable, "-c", {SERVER!r}], start_new_session=True)):
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_test_takes_its_server_and_its_server_s_processes_along(number: signal.Signals) -> None:
    test = subprocess.Popen([sys.executable, "-c", TEST], cwd=ROOT, stdout=subprocess.PIPE)
    assert test.stdout is not None
    with test.stdout as out:
        assert out.readline() == b"up\n"
        test.send_signal(number)
        assert out.read() == b""  # the pipe ends with the last process that holds it
    assert test.wait() == -number


def test_the_end_of_the_block_is_the_end_of_the_server() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], start_new_session=True, stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server.stdout as out:
        with leashed(server):
            assert out.readline() == b"up\n"
        assert server.returncode == -signal.SIGKILL
        assert out.read() == b""


def test_a_server_that_ended_by_itself_is_no_matter() -> None:
    server = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)
    with leashed(server):
        server.wait()
    assert server.returncode == 3
