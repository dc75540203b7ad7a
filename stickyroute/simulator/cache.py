"""The prefix cache as vLLM keeps it (0.32, `v1/core/block_pool.py` and `kv_cache_manager.py`).

Owns which blocks are resident, referenced and evicted. Must not know: time, requests, steps.

The rules, each as vLLM has it:
- a block holds `block_size` tokens and is identified by a key chained to its parent; only full blocks have a
  key;
- at least the last token of a prompt is computed again, so a hit covers at most `tokens - 1`;
- a block in use is counted by reference; a block nobody uses stays resident in the free queue, so it counts
  as free although it is a hit waiting to happen;
- a finished sequence's blocks go back tail first, so that shared roots outlive deep suffixes. Blocks without
  a key go to the front of the queue, the others to its end; taking a block takes the head: the least
  recently used;
- two blocks may hold the same key (a fully cached prompt computes its last block again); each is evicted
  alone;
- one block of the pool is never used (vLLM's null block).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

NOT_CACHED: Final = -1


class Held:
    """The blocks of one sequence. Only the cache that made it may touch it.

    `keys` are those of all full blocks the sequence will ever have, prompt and answer; `room_tokens` is how
    many tokens fit into the blocks held so far; `source` is handed back with cache events.
    """

    __slots__ = ("blocks", "era", "keys", "registered", "room_tokens", "source")

    def __init__(self, keys: Sequence[int], source: object = None) -> None:
        self.keys = keys
        self.source = source
        self.blocks: list[int] = []
        self.registered = 0
        self.room_tokens = 0
        self.era = 0


class PrefixCache(Protocol):
    """What a scheduler needs of a cache; `BlockCache` and `radix.RadixCache` are two. Each has its own kind
    of `held`, which it makes in `open` and which nobody else looks into, its `room_tokens` apart."""

    block_size: int
    releases: int

    @property
    def capacity_tokens(self) -> int: ...

    @property
    def free_blocks(self) -> int: ...

    @property
    def usage(self) -> float: ...

    @property
    def used_tokens(self) -> int: ...

    @property
    def evictable_tokens(self) -> int: ...

    def resident(self) -> set[int]: ...

    def open(self, keys: Sequence[int], source: object = None) -> Any: ...

    def lookup(self, held: Any, tokens: int) -> int: ...

    def admit(self, held: Any, hit_tokens: int, tokens: int, must_fit_tokens: int) -> bool: ...

    def grow(self, held: Any, tokens: int) -> bool: ...

    def register(self, held: Any, tokens: int, answering: bool = False) -> None: ...

    def release(self, held: Any) -> None: ...

    def clear(self) -> None: ...


class BlockCache:
    """`blocks` as the engine reports them (num_gpu_blocks), of `block_size` tokens each.

    `on_stored(held, first, last)` and `on_removed(key)` are told about every change of what is resident:
    blocks `first` to `last` (exclusive) of a sequence became hits, or one block with `key` was evicted;
    `on_cleared()` says that nothing is resident any more.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int = 16,
        on_stored: Callable[[Held, int, int], None] | None = None,
        on_removed: Callable[[int], None] | None = None,
        on_cleared: Callable[[], None] | None = None,
    ) -> None:
        if blocks < 2 or block_size < 1:
            raise ValueError(f"a cache needs two blocks of one token at least, not {blocks} of {block_size}")
        self.blocks = blocks
        self.block_size = block_size
        self.on_stored = on_stored
        self.on_removed = on_removed
        self.on_cleared = on_cleared
        self.releases = 0
        """How often something was given back: while it stands still, what did not fit won't, unless it
        gets hits."""
        self._usable = blocks - 1
        self._references = [0] * blocks
        self._key_of = [NOT_CACHED] * blocks
        self._where: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # further blocks with the same key, oldest first
        # Free blocks without a key are a stack. Block 0 is the null block.
        self._blank = list(range(blocks - 1, 0, -1))
        # Free blocks with a key: one run a release, the oldest run first, each in the order of its sequence,
        # so that
        # it is taken from its end. A block that was used again since stays where it is and is passed over:
        # it is
        # in use, or bears the mark of a later release.
        self._runs: deque[tuple[int, list[int]]] = deque()
        self._mark_of = [0] * blocks
        self._idle = 0  # how many blocks in the runs are really free
        self._queued = 0  # how many there are, those to be passed over included
        self._mark = 0  # of the last release
        self._era = 0  # how often the cache was cleared

    @property
    def capacity_tokens(self) -> int:
        return self._usable * self.block_size

    @property
    def free_blocks(self) -> int:
        """Blocks that can be taken, resident but unreferenced ones included."""
        return len(self._blank) + self._idle

    @property
    def usage(self) -> float:
        """The gauge `kv_cache_usage_perc`: the share of blocks somebody references, 0 to 1."""
        return 1.0 - self.free_blocks / self._usable

    @property
    def used_tokens(self) -> int:
        return (self._usable - self.free_blocks) * self.block_size

    @property
    def evictable_tokens(self) -> int:
        """Tokens resident in blocks that nobody references."""
        return self._idle * self.block_size

    def resident(self) -> set[int]:
        """The keys that would be hits now, referenced or not."""
        return set(self._where)

    def open(self, keys: Sequence[int], source: object = None) -> Held:
        """A sequence with nothing held yet."""
        return Held(keys, source)

    def lookup(self, held: Held, tokens: int) -> int:
        """How many of the first `tokens` are resident: whole blocks, and never the last token.

        A resident block's ancestors are resident too: whoever uses a block uses them, and gives them back
        behind it. So the end of what is resident is found by bisection.
        """
        where = self._where
        keys = held.keys
        low, high = 0, min((tokens - 1) // self.block_size, len(keys))
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in where:
                low = middle
            else:
                high = middle - 1
        return low * self.block_size

    def admit(self, held: Held, hit_tokens: int, tokens: int, must_fit_tokens: int) -> bool:
        """Take the `hit_tokens` found by `lookup` and room for `tokens` in all.

        False, and nothing taken, unless `must_fit_tokens` (the whole prompt) would fit now.
        """
        size = self.block_size
        hits = hit_tokens // size
        references = self._references
        shared = list(map(self._where.__getitem__, held.keys[:hits]))
        idle = [references[block] for block in shared].count(0)
        if -(-max(tokens, must_fit_tokens) // size) - hits + idle > self.free_blocks:
            return False
        for block in shared:
            references[block] += 1
        self._idle -= idle
        held.blocks = shared
        held.registered = hits
        held.room_tokens = hits * size
        held.era = self._era
        return self.grow(held, tokens)

    def grow(self, held: Held, tokens: int) -> bool:
        """Room for `tokens` in all. False if it does not fit."""
        missing = -(-tokens // self.block_size) - len(held.blocks)
        if missing > 0:
            if missing > self.free_blocks:
                return False
            self._take(held, missing)
        return True

    def register(self, held: Held, tokens: int, answering: bool = False) -> None:
        """Make the full blocks among the first `tokens` hits: they are computed, or scheduled to be. Whether
        they are of a prompt or of an answer makes no difference here."""
        first = held.registered
        last = min(tokens // self.block_size, len(held.blocks), len(held.keys))
        if last <= first or held.era != self._era:
            return
        key_of = self._key_of
        where = self._where
        for block, key in zip(held.blocks[first:last], held.keys[first:last], strict=True):
            key_of[block] = key
            if where.setdefault(key, block) != block:
                self._twins.setdefault(key, []).append(block)
        held.registered = last
        if self.on_stored is not None:
            self.on_stored(held, first, last)

    def release(self, held: Held) -> None:
        """Give all blocks back, the tail first."""
        references = self._references
        keyed = held.registered if held.era == self._era else 0
        self._mark += 1
        mark, mark_of = self._mark, self._mark_of
        run = []
        for block in held.blocks[:keyed]:
            left = references[block] - 1
            references[block] = left
            if not left:
                mark_of[block] = mark
                run.append(block)
        for block in held.blocks[keyed:]:  # without a key; shared only if the cache was cleared meanwhile
            references[block] -= 1
            if not references[block]:
                self._blank.append(block)
        if run:
            self._runs.append((mark, run))
            self._idle += len(run)
            self._queued += len(run)
            if self._queued > 4 * self.blocks:
                self._tidy()
        held.blocks = []
        held.registered = 0
        held.room_tokens = 0
        self.releases += 1

    def clear(self) -> None:
        """Forget every block that nobody references; those in use stop being hits."""
        if self.on_cleared is not None:
            self.on_cleared()
        self._tidy()
        for _, run in self._runs:
            self._blank.extend(run)
        self._runs.clear()
        self._idle = self._queued = 0
        self._where.clear()
        self._twins.clear()
        self._key_of = [NOT_CACHED] * self.blocks
        self._era += 1
        self.releases += 1

    def _take(self, held: Held, count: int) -> None:
        blank = self._blank
        taken: list[int] = []
        if blank:
            taken = blank[max(0, len(blank) - count) :]
            del blank[-len(taken) :]
            taken.reverse()
        missing = count - len(taken)
        if missing:
            self._evict(taken, missing)
        references = self._references
        for block in taken:
            references[block] = 1
        held.blocks += taken
        held.room_tokens = len(held.blocks) * self.block_size

    def _evict(self, taken: list[int], count: int) -> None:
        """Put `count` blocks more into `taken`, the least recently used first. There are enough."""
        references, mark_of, key_of = self._references, self._mark_of, self._key_of
        where, twins, runs, on_removed = self._where, self._twins, self._runs, self.on_removed
        self._idle -= count
        popped = 0
        while count:
            mark, run = runs[0]
            while run and count:
                block = run.pop()
                popped += 1
                if references[block] or mark_of[block] != mark:
                    continue  # used again since
                mark_of[block] = 0
                key = key_of[block]
                key_of[block] = NOT_CACHED
                if key in twins:
                    self._drop_twin(key, block)
                else:
                    del where[key]
                if on_removed is not None:
                    on_removed(key)
                taken.append(block)
                count -= 1
            if not run:
                runs.popleft()
        self._queued -= popped

    def _tidy(self) -> None:
        """Drop what would be passed over from the runs."""
        references, mark_of = self._references, self._mark_of
        runs = [
            (mark, [block for block in run if not references[block] and mark_of[block] == mark])
            for mark, run in self._runs
        ]
        self._runs = deque(one for one in runs if one[1])
        self._queued = sum(len(run) for _, run in self._runs)

    def _drop_twin(self, key: int, block: int) -> None:
        """Forget one of several blocks that hold `key`."""
        twins = self._twins[key]
        if self._where[key] == block:
            self._where[key] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[key]
