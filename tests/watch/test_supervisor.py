"""The supervisor: tasks come back, stop when told, and a task that always fails does not flood the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stickyroute.watch.supervisor import Supervisor


class Flaky:
    """Fails `failures` times, then runs until cancelled."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.starts = 0
        self.steady = asyncio.Event()
        self.cancelled = False

    async def run(self) -> None:
        self.starts += 1
        if self.starts <= self.failures:
            raise RuntimeError(f"failure {self.starts}")
        self.steady.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_restarts_a_task_until_it_runs_and_logs_the_failure_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor(first_pause_s=0.001, longest_pause_s=0.002)
    flaky = Flaky(failures=20)
    supervisor.start("flaky", flaky.run)
    await flaky.steady.wait()
    assert flaky.starts == 21
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "flaky failed" in caplog.text
    assert "RuntimeError: failure 1" in caplog.text
    await supervisor.stop()


async def test_says_when_a_task_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    said = asyncio.Event()
    caplog.handler.addFilter(lambda record: said.set() or True if "again" in record.getMessage() else True)
    supervisor = Supervisor(first_pause_s=0.001, longest_pause_s=0.002)
    supervisor.start("flaky", Flaky(failures=1).run)
    await asyncio.wait_for(said.wait(), 10)
    assert [record.message for record in caplog.records][1:] == ["flaky runs again"]
    await supervisor.stop()


async def test_stop_cancels_and_waits() -> None:
    supervisor = Supervisor()
    tasks = [Flaky(failures=0) for _ in range(3)]
    for number, task in enumerate(tasks):
        supervisor.start(f"task {number}", task.run)
    for task in tasks:
        await task.steady.wait()
    await supervisor.stop()
    assert all(task.cancelled for task in tasks)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await supervisor.stop()


async def test_stop_ends_a_task_that_waits_for_its_restart() -> None:
    supervisor = Supervisor(first_pause_s=3600, longest_pause_s=3600)
    failed = asyncio.Event()

    async def fail() -> None:
        failed.set()
        raise RuntimeError

    supervisor.start("broken", fail)
    await failed.wait()
    await supervisor.stop()
    assert len(asyncio.all_tasks()) == 1


async def test_a_task_that_returns_is_done() -> None:
    supervisor = Supervisor(first_pause_s=0.001, longest_pause_s=0.001)
    starts = 0

    async def once() -> None:
        nonlocal starts
        starts += 1

    supervisor.start("once", once)
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "once"]
    await task
    assert starts == 1
    await supervisor.stop()


async def test_tasks_carry_their_names_and_a_name_is_used_once() -> None:
    supervisor = Supervisor()
    task = Flaky(failures=0)
    supervisor.start("models:gpu-0", task.run)
    assert "models:gpu-0" in {task.get_name() for task in asyncio.all_tasks()}
    with pytest.raises(ValueError, match="models:gpu-0"):
        supervisor.start("models:gpu-0", task.run)
    await supervisor.stop()


async def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, 2, 4, 8, 8, ... each jittered down to half at most."""
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("stickyroute.watch.supervisor.asyncio.sleep", sleep)
    supervisor = Supervisor(first_pause_s=1, longest_pause_s=8)

    async def fail() -> None:
        raise RuntimeError

    supervisor.start("broken", fail)
    await enough.wait()
    for pause_s, ceiling_s in zip(pauses, [1, 2, 4, 8, 8, 8, 8, 8], strict=True):
        assert ceiling_s / 2 <= pause_s <= ceiling_s
    await supervisor.stop()
