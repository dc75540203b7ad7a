"""Does exact mode gain anything? `sticky` on its own index, and the same corrected by engines' KV events.

Replays of generated workloads in virtual time (docs/adr/0005-exact-mode.md has the results):

    python -m bench.exact_mode --seeds 3 --delay 0.05

`index` is the product as it is. `events` corrects its index by what each engine stored and evicted, `--delay`
seconds later, for blocks that belong to prompts this router has seen (learned as in `routing.learned`: anew when
a prompt has grown by a third). `now` is that without delay and with every block known: the most that events can
do. `resident` believes the events alone, so what is on its way counts as absent.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, Final

from stickyroute import defaults
from stickyroute.benchmark.fleets import FleetSpec
from stickyroute.benchmark.prompts import BYTES_PER_TOKEN
from stickyroute.benchmark.replay import Replay, Replica
from stickyroute.benchmark.results import Summary, median_of, summarize
from stickyroute.benchmark.workloads import make_workload
from stickyroute.benchmark.workloads.base import Request
from stickyroute.fleet import Lease
from stickyroute.routing.index import Index
from stickyroute.routing.learned import LEARN_BELOW
from stickyroute.simulator.cache import BlockCache
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.scheduler import Sequence as EngineSequence

WORD: Final = (1 << 64) - 1
MODES: Final = ("index", "events", "now", "resident")


class Events:
    """What all engines tell, in order: (when, slot, stored or not, block)."""

    def __init__(self, spec: FleetSpec) -> None:
        self.log: list[tuple[float, int, bool, int]] = []
        self.now_s = 0.0
        self.engines = [self._engine(slot, spec) for slot in range(spec.engines)]

    def _engine(self, slot: int, spec: FleetSpec) -> Engine:
        def stored(held: Any, first: int, last: int) -> None:
            at_s = self._at_s(slot)
            self.log += [(at_s, slot, True, key & WORD) for key in held.keys[first:last]]

        def removed(key: int) -> None:
            self.log.append((self._at_s(slot), slot, False, key & WORD))

        return Engine(spec.profile, BlockCache(spec.profile.blocks, spec.profile.block_size, stored, removed))

    def _at_s(self, slot: int) -> float:
        """The step in progress ends then; an idle engine's first step begins now."""
        end_s = self.engines[slot].next_step_s
        return max(self.now_s, end_s) if end_s < float("inf") else self.now_s


class Told:
    """One router with exact mode: what is due is taken up before each choice."""

    def __init__(self, replica: Replica, events: Events, mode: str, delay_s: float) -> None:
        self._replica = replica
        self._events = events
        self._mode = mode
        self._delay_s = delay_s if mode != "now" else 0.0
        self._waiting: deque[tuple[float, int, bool, int]] = deque()
        self._read = 0
        slots = range(len(events.engines))
        self.held: list[Counter[int]] = [Counter() for _ in slots]
        self._known: set[int] = set()
        self._keys = replica.keys
        self.index: Index = replica.fleet.loads.index
        for slot in slots:
            self.index.follow(slot, True)

    def choose(self, request: Request, now_s: float) -> tuple[int, str, Lease | None]:
        self._events.now_s = now_s
        self._take_up(now_s - self._delay_s)
        chosen = self._replica.choose(request, now_s)
        self._learn(request)
        return chosen

    def placed(self, slot: int, sequence: EngineSequence) -> None:
        self._replica.placed(slot, sequence)

    def _take_up(self, until_s: float) -> None:
        log = self._events.log
        self._waiting.extend(log[self._read :])
        self._read = len(log)
        waiting, known, index = self._waiting, self._known, self.index
        while waiting and waiting[0][0] <= until_s:
            _, slot, stored, key = waiting.popleft()
            held = self.held[slot]
            if stored:
                held[key] += 1
                if key in known:
                    index.note(slot, (key,))
            else:
                held[key] -= 1
                if not held[key]:
                    del held[key]
                    if key in known:
                        index.forget(slot, (key,))

    def _learn(self, request: Request) -> None:
        ends = self._keys._prefixes.ends
        count = bisect_right(ends, request.prompt_tokens * BYTES_PER_TOKEN)
        blocks = request.reply.keys()
        chain = [blocks[at] & WORD for at in self._keys._at[:count]]
        covered = next((at + 1 for at in range(count - 1, -1, -1) if chain[at] in self._known), 0)
        if self._mode != "now" and covered and ends[covered - 1] >= LEARN_BELOW * ends[count - 1]:
            return
        for key in chain[covered:]:
            self._known.add(key)
            for slot, held in enumerate(self.held):
                if key in held:
                    self.index.note(slot, (key,))


class Resident(Index):
    """An index that believes the events alone."""

    __slots__ = ("told",)

    def held(self, chain: Sequence[int]) -> list[int]:
        found = []
        for held in self.told.held:
            low, high = 0, len(chain)
            while low < high:
                middle = (low + high + 1) >> 1
                if chain[middle - 1] in held:
                    low = middle
                else:
                    high = middle - 1
            found.append(low)
        return found

    def insert(
        self, slot: int, chain: Sequence[int], ends: Sequence[int], tokens_per_byte: float, owner: int = 0
    ) -> tuple[int, float]:
        blocks = self.held(chain)[slot] if chain else 0
        _, tail = super().insert(slot, chain, ends, tokens_per_byte, owner)
        return blocks, tail if blocks else 0.0


class ExactReplay(Replay):
    """A replay whose routers hear of their engines' events."""

    def __init__(
        self, workload: Any, spec: FleetSpec, seed: int, replicas: int, mode: str, delay_s: float, blind: bool
    ) -> None:
        super().__init__(workload, "sticky", spec, seed, replicas)
        self._blind = blind
        if mode == "index":
            return
        events = Events(spec)
        self._engines = events.engines
        told = [Told(replica, events, mode, delay_s) for replica in self._replicas]
        self._choosers = list(told)
        if mode == "resident":
            for one in told:
                books = one._replica.fleet._books
                index = Resident(defaults.INDEX_ENTRIES, [defaults.KV_TOKENS] * spec.engines)
                index.told = one
                books.loads.index = index

    def _scrape(self, now_s: float) -> None:
        if not self._blind:
            super()._scrape(now_s)


def one(
    workload: dict[str, Any],
    seed: int,
    replicas: int,
    mode: str,
    delay_s: float,
    blocks: int | None,
    blind: bool,
) -> Summary:
    """One run, boiled down."""
    spec = FleetSpec()
    if blocks is not None:
        spec = replace(spec, profile=replace(spec.profile, blocks=blocks))
    values = dict(workload)
    made = make_workload(values.pop("workload"), values)
    return summarize(ExactReplay(made, spec, seed, replicas, mode, delay_s, blind).run())


WORKLOADS: Final[tuple[dict[str, Any], ...]] = (
    {"workload": "agentic", "rate": 8},
    {"workload": "rag"},
    {"workload": "chat"},
)


def main() -> None:
    """Run everything and print a table of medians over the seeds."""
    flags = argparse.ArgumentParser(description="Exact mode against the approximate index, in replay.")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--delay", type=float, default=0.05, help="seconds between an event and its taking up")
    flags.add_argument("--seconds", type=float, default=120.0)
    flags.add_argument("--replicas", type=int, nargs="+", default=[1, 4])
    flags.add_argument(
        "--blocks", type=int, default=None, help="cache of an engine in blocks, instead of the profile's"
    )
    flags.add_argument(
        "--blind", action="store_true", help="no metrics: the size of the caches stays unknown"
    )
    flags.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    flags.add_argument("--workloads", nargs="+", help="names, instead of all")
    flags.add_argument("--processes", type=int, default=1)
    args = flags.parse_args()
    jobs = [
        ({**workload, "seconds": args.seconds}, replicas, mode)
        for workload in WORKLOADS
        for replicas in args.replicas
        for mode in args.modes
        if not args.workloads or workload["workload"] in args.workloads
    ]
    print("| workload | routers | mode | mean TTFT s | p95 TTFT s | p95 whole s | hit rate |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        waiting = [
            [
                pool.submit(one, workload, seed, replicas, mode, args.delay, args.blocks, args.blind)
                for seed in range(args.seeds)
            ]
            for workload, replicas, mode in jobs
        ]
        for (workload, replicas, mode), futures in zip(jobs, waiting, strict=True):
            found = [future.result() for future in futures]
            name = f"{workload['workload']} {workload.get('rate', '')}".strip()
            figures = [
                median_of(found, lambda s: s.ttft_mean_s),
                median_of(found, lambda s: s.ttft_p95_s),
                median_of(found, lambda s: s.latency_p95_s),
                median_of(found, lambda s: s.hit_rate),
            ]
            print(
                f"| {name} | {replicas} | {mode} | "
                + " | ".join(f"{figure:.4f}" for figure in figures)
                + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
