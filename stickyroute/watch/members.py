"""One supervised task for each member of the fleet, and how it is asked, as members come, go and move.

Owns the following of the fleet's members by its watches. Must not know what they ask.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from stickyroute.clock import monotonic
from stickyroute.fleet import Backend, BackendSpec, Fleet
from stickyroute.watch.ask import Asker, Contexts
from stickyroute.watch.supervisor import Supervisor

__all__ = ["Askers", "MemberTasks", "stretched_s", "together_s"]

T = TypeVar("T")

MANY = 32
TURN_S = 0.25
"""Of more than `MANY` members those that are due within this time are asked in one go."""


def stretched_s(interval_s: float, members: int, most_a_second: float) -> float:
    """The interval of each of `members`, so that all together ask no more than `most_a_second`."""
    return max(interval_s, members / most_a_second)


_Way = tuple[str, str, int, str, str | None, str | None, bool]


def together_s(pause_s: float, members: int) -> float:
    """`pause_s`, stretched so that of many members those that are due at about the same time wake together.

    To wake an idle process costs more than to ask: 25 us for a question among others, 370 us for one by itself.
    """
    if members < MANY:
        return pause_s
    now_s = monotonic()
    return math.ceil((now_s + pause_s) / TURN_S) * TURN_S - now_s


def _way(spec: BackendSpec) -> _Way:
    """What of a backend decides how it is asked. Compared for each of hundreds at every change of the fleet."""
    return spec.scheme, spec.host, spec.port, spec.base_path, spec.api_key, spec.ca, spec.tls_verify


class Askers:
    """The way to each member, shared by the watches: what one of them left open the next may use.

    `contexts` are shared with whoever else speaks TLS to the members.
    """

    def __init__(self, contexts: Contexts | None = None) -> None:
        self._by_way: dict[_Way, Asker] = {}
        self._contexts: Contexts = {} if contexts is None else contexts

    def of(self, spec: BackendSpec) -> Asker:
        """Raises ConfigError for an unreadable CA file."""
        way = _way(spec)
        asker = self._by_way.get(way)
        if asker is None:
            asker = self._by_way[way] = Asker(spec, self._contexts)
        return asker

    def keep(self, backends: tuple[Backend, ...]) -> None:
        """Let go of everybody else."""
        wanted = {_way(backend.spec) for backend in backends}
        for way in [way for way in self._by_way if way not in wanted]:
            self._by_way.pop(way).close()

    def close(self) -> None:
        """Drop every connection."""
        for asker in self._by_way.values():
            asker.close()


class MemberTasks(Generic[T]):
    """Runs `run(make(backend))` for each member, as the task `label:name`.

    Whoever keeps name, slot and address keeps the task. `sync` is called after every change of the fleet.
    """

    def __init__(
        self, fleet: Fleet, label: str, make: Callable[[Backend], T], run: Callable[[T], Awaitable[None]]
    ) -> None:
        self._fleet = fleet
        self._label = label
        self._make = make
        self._run = run
        self._supervisor = Supervisor()
        self._running = False
        self._of: dict[str, tuple[Backend, T]] = {}
        self._by_slot: dict[int, T] = {}
        self.sync()

    @property
    def all(self) -> list[T]:
        """What was made for each member."""
        return [made for _, made in self._of.values()]

    def __len__(self) -> int:
        """How many members there are."""
        return len(self._of)

    def of(self, slot: int) -> T | None:
        """What was made for the member in a slot; None without one."""
        return self._by_slot.get(slot)

    def start(self) -> None:
        """Begin; must be called on the running loop."""
        self._running = True
        for name, (_, made) in self._of.items():
            self._begin(name, made)

    def sync(self) -> None:
        """End the tasks of who left or moved, begin those of who came. Raises ConfigError as `make` does."""
        present = {backend.name: backend for backend in self._fleet.backends}
        for name, (before, _) in tuple(self._of.items()):
            now = present.get(name)
            if now is None or now.slot != before.slot or _way(now.spec) != _way(before.spec):
                del self._of[name]
                self._supervisor.end(self._label + ":" + name)
        for name, backend in present.items():
            if name not in self._of:
                made = self._make(backend)
                self._of[name] = backend, made
                if self._running:
                    self._begin(name, made)
        self._by_slot = {backend.slot: made for backend, made in self._of.values()}

    async def stop(self) -> None:
        """End every task."""
        self._running = False
        await self._supervisor.stop()

    def _begin(self, name: str, made: T) -> None:
        self._supervisor.start(self._label + ":" + name, lambda: self._run(made))
