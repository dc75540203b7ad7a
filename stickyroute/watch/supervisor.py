"""Keeps background tasks running: named, referenced, restarted with backoff when they fail.

The only place that catches every exception. It says so once when a task begins to fail and once when it runs
again, however often it fails in between. Knows nothing of what its tasks do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

__all__ = ["Supervisor"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class Supervisor:
    """A group of tasks with one life: `start` each, `end` one, `stop` all.

    `first_pause_s` and `longest_pause_s` bound the doubling pause before a restart (defaults 0.5 and 30 s);
    each pause is jittered down to half. A task that ran for longer than `longest_pause_s` counts as
    recovered.
    """

    def __init__(
        self, *, first_pause_s: float = FIRST_PAUSE_S, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run `run()` as the task `name` until it returns, again when it raises. A name is used once."""
        if name in self._tasks:
            raise ValueError(f"a task named {name!r} runs already")
        self._tasks[name] = asyncio.create_task(self._keep_running(name, run), name=name)

    def end(self, name: str) -> None:
        """Cancel one task, without waiting for its end; unknown names are fine. The name is free again."""
        task = self._tasks.pop(name, None)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def stop(self) -> None:
        """Cancel every task and wait until each has ended. Safe to call twice."""
        tasks = [*self._tasks.values(), *self._ending]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            recovery = (
                loop.call_later(self._longest_pause_s, log.info, "%s runs again", name) if failures else None
            )
            began_s = loop.time()
            try:
                await run()
                return
            except Exception:
                if loop.time() - began_s > self._longest_pause_s:
                    failures = 0
                if failures == 0:
                    log.exception("%s failed; it is restarted until it works, and this is said once", name)
                failures += 1
            finally:
                if recovery is not None:
                    recovery.cancel()
            pause_s = min(self._longest_pause_s, self._first_pause_s * 2.0 ** min(failures - 1, 30))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
