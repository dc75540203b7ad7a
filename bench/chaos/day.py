"""What goes wrong when: a seeded sequence of faults and changes, how soon each was noticed, and which streams it may
have cut.

An engine has one fault at a time, and no more than `AT_ONCE` of them have one, so that there is always somebody to
go to: what is measured is the proxy, not the fleet's size.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.chaos.processes import Configuration, Engine, Replica, http

AT_ONCE = 3
POLL_S = 0.1
NOTICE_LIMIT_S = 30.0

CUTS = frozenset({"kill", "restart", "engine_error", "reset"})
"""Faults that end streams which have begun; no other may."""


@dataclass
class Event:
    """One thing that was done. `noticed_s`: by replica number, how long until it did not send anybody there."""

    kind: str
    engine: str
    at_s: float
    until_s: float = 0.0
    noticed_s: dict[int, float] = field(default_factory=dict)
    back_s: dict[int, float] = field(default_factory=dict)
    shows: bool = False  # whether /fleet is to tell
    away: set[int] = field(default_factory=set)  # replicas that were themselves gone meanwhile
    moved_share: float | None = None
    minimum_share: float | None = None


class Day:
    """Does one thing after another from `start` until cancelled; `events` is what it did."""

    def __init__(
        self, engines: list[Engine], replicas: list[Replica], config: Configuration, rand: random.Random
    ) -> None:
        self._engines, self._replicas, self._config, self._rand = engines, replicas, config, rand
        self._ill: set[int] = set()
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Lock()
        self.events: list[Event] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._kill, 3), (self._hang, 3), (self._restart, 2), (self._slow, 2), (self._busy, 3),
            (self._lie, 2), (self._reset, 2), (self._engine_error, 2), (self._drain, 2), (self._dead, 2),
            (self._reweigh, 2), (self._leave_and_return, 2), (self._rename, 1), (self._bad_config, 2),
            (self._replica, 2),
        ]  # fmt: skip

    async def run(self, seconds: float) -> None:
        """Every kind comes once, in a random order, then by chance."""
        end_s = time.monotonic() + seconds
        first = [kind for kind, _ in self._kinds]
        self._rand.shuffle(first)
        while time.monotonic() < end_s:
            kinds, weights = zip(*self._kinds, strict=True)
            kind = first.pop() if first else self._rand.choices(kinds, weights)[0]
            task = asyncio.create_task(self._safely(kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(self._rand.uniform(1.0, 3.0))
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _safely(self, kind: Callable[[], Awaitable[None]]) -> None:
        await kind()

    # Faults of engines.

    def _pick(self) -> Engine | None:
        well = [e for e in self._engines if e.number not in self._ill and e.number not in self._config.absent]
        if len(self._ill) >= AT_ONCE or not well:
            return None
        return self._rand.choice(well)

    async def _ill_for(
        self,
        kind: str,
        begin: Callable[[Engine], Awaitable[object]],
        end: Callable[[Engine], Awaitable[object]],
        lasts_s: tuple[float, float],
        *,
        shows: bool,
    ) -> None:
        engine = self._pick()
        if engine is None:
            return
        self._ill.add(engine.number)
        event = Event(kind, self._config.names[engine.number], time.monotonic(), shows=shows)
        self.events.append(event)
        await begin(engine)
        watching = asyncio.create_task(self._notice(event, engine)) if shows else None
        await asyncio.sleep(self._rand.uniform(*lasts_s))
        if watching is not None:
            watching.cancel()
        await end(engine)
        event.until_s = time.monotonic()
        if shows:
            await self._wait_until_back(event, engine)
        self._ill.discard(engine.number)

    async def _notice(self, event: Event, engine: Engine) -> None:
        while len(event.noticed_s.keys() | event.away) < len(self._replicas):
            for replica in self._replicas:
                seen = (await self._seen(event, replica)).get(self._config.names[engine.number])
                if seen is not None and not seen["available"] and replica.number not in event.noticed_s:
                    event.noticed_s[replica.number] = time.monotonic() - event.at_s
            await asyncio.sleep(POLL_S)

    async def _seen(self, event: Event, replica: Replica) -> dict[str, Any]:
        fleet = await replica.fleet()
        if not fleet:
            event.away.add(replica.number)
        return fleet

    async def _wait_until_back(self, event: Event, engine: Engine) -> None:
        end_s = event.until_s + NOTICE_LIMIT_S * 2
        while len(event.back_s.keys() | event.away) < len(self._replicas) and time.monotonic() < end_s:
            for replica in self._replicas:
                seen = (await self._seen(event, replica)).get(self._config.names[engine.number])
                known = event.back_s.keys() | event.away
                if seen is not None and seen["available"] and replica.number not in known:
                    event.back_s[replica.number] = time.monotonic() - event.until_s
            await asyncio.sleep(POLL_S)

    async def _kill(self) -> None:
        async def kill(engine: Engine) -> None:
            engine.signal(signal.SIGKILL)
            await engine.ended()

        await self._ill_for("kill", kill, Engine.start, (2, 8), shows=True)

    async def _restart(self) -> None:
        async def stop(engine: Engine) -> None:
            engine.signal(signal.SIGTERM)
            await engine.ended()

        await self._ill_for("restart", stop, Engine.start, (1, 4), shows=True)

    async def _hang(self) -> None:
        async def stop(engine: Engine) -> None:
            engine.signal(signal.SIGSTOP)

        async def go_on(engine: Engine) -> None:
            engine.signal(signal.SIGCONT)

        await self._ill_for("hang", stop, go_on, (9, 14), shows=True)

    async def _fault(
        self, kind: str, lasts_s: tuple[float, float], *, shows: bool, name: str = "", **more: Any
    ) -> None:
        async def on(engine: Engine) -> None:
            await engine.fault(kind=kind, **more)

        await self._ill_for(name or kind, on, Engine.heal, lasts_s, shows=shows)

    async def _slow(self) -> None:
        await self._fault("slow", (5, 9), shows=False, factor=8.0)

    async def _busy(self) -> None:
        await self._fault("busy", (4, 8), shows=True)

    async def _lie(self) -> None:
        await self._fault("metrics_lying", (5, 10), shows=False)

    async def _reset(self) -> None:
        # Before the first token for some, in the middle of a stream for others.
        await self._fault("reset", (3, 6), shows=False, count=6, after_tokens=self._rand.choice([0, 3]))

    async def _engine_error(self) -> None:
        async def restart(engine: Engine) -> None:
            engine.signal(signal.SIGKILL)
            await engine.ended()
            await engine.start()

        async def on(engine: Engine) -> None:
            await engine.fault(kind="engine_error")

        await self._ill_for("engine_error", on, restart, (3, 6), shows=True)

    async def _drain(self) -> None:
        async def end(engine: Engine) -> None:
            await asyncio.sleep(3)  # what runs ends in peace
            engine.signal(signal.SIGKILL)
            await engine.ended()
            await engine.start()

        async def on(engine: Engine) -> None:
            await engine.fault(kind="draining")

        await self._ill_for("draining", on, end, (1, 3), shows=True)

    async def _dead(self) -> None:
        await self._fault("dead", (4, 8), shows=False)

    # Changes of the configuration.

    async def _change(
        self, kind: str, change: Callable[[], str], undo: Callable[[], None] | None = None
    ) -> None:
        async with self._changing:
            event = Event(kind, change(), time.monotonic())
            self.events.append(event)
            await self._foretell(event)
            self._config.write()
            await asyncio.sleep(self._rand.uniform(2, 4))
            if undo is not None:
                undo()
                back = Event(kind + ", undone", event.engine, time.monotonic())
                self.events.append(back)
                await self._foretell(back)
                self._config.write()
                await asyncio.sleep(2)

    async def _foretell(self, event: Event) -> None:
        """How many keys move, by a replica's own preview."""
        for replica in self._replicas:
            try:
                status, body = await http(
                    replica.admin_port, "PUT", "/config?dry_run=1", self._config.text().encode()
                )
            except (OSError, TimeoutError, IndexError):
                continue
            if status == 200:
                told = json.loads(body)
                event.moved_share, event.minimum_share = told["moved_share"], told["minimum_share"]
                return

    async def _reweigh(self) -> None:
        number = self._rand.choice(self._engines).number

        def change() -> str:
            self._config.weights[number] = self._rand.choice([2, 3])
            return self._config.names[number]

        def undo() -> None:
            self._config.weights[number] = 1

        await self._change("reweigh", change, undo)

    async def _leave_and_return(self) -> None:
        number = self._rand.choice(self._engines).number
        if number in self._ill:
            return

        def change() -> str:
            self._config.absent.add(number)
            return self._config.names[number]

        await self._change("leave", change, lambda: self._config.absent.discard(number))

    async def _rename(self) -> None:
        number = self._rand.choice(self._engines).number
        if number in self._ill:
            return

        def change() -> str:
            self._config.names[number] += "x"
            return self._config.names[number]

        await self._change("rename", change)

    async def _bad_config(self) -> None:
        async with self._changing:
            good = self._config.text()
            bad = self._rand.choice(
                [
                    "backends: [",
                    good + "  - {name: x, url: 'http://127.0.0.1:99999'}\n",
                    "",
                    "policy: nonsense\n" + good,
                ]
            )
            event = Event("bad config", "", time.monotonic())
            self.events.append(event)
            self._config.write(bad)
            await asyncio.sleep(3)
            self._config.write()
            event.until_s = time.monotonic()
            await asyncio.sleep(1.5)

    # The proxy itself.

    async def _replica(self) -> None:
        if self._stopping.locked():
            return
        async with self._stopping:
            replica = self._rand.choice(self._replicas)
            event = Event("replica SIGTERM", replica.name, time.monotonic())
            self.events.append(event)
            replica.signal(signal.SIGTERM)
            await replica.ended()
            await replica.start()
            event.until_s = time.monotonic()
