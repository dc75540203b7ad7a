"""What each engine's prefix cache holds, as its KV events tell it: exact mode's pure part.

Owns one set of resident blocks for each source of events (one data-parallel rank of one backend), and our own
name for a block: xxh3-64 over its token ids as 32-bit words, seeded with its parent's name,
the first block's parent being its scope (adapter and cache salt). The engine's hashes are opaque ids, needed
only to find the parent and to take a block out again. Knows no socket, encoding, text, request or clock.

How routing uses it. The policy asks nobody here, so a decision costs nothing more. The events correct the
index that it reads anyway, through `Index`: a block whose text is known (`routing.learned`) is held when an
engine has stored it and dropped when it was evicted. That a block is *missing* here is never held against the
index: it may be on its way, or older than the first event we saw. So when events stop, are incomplete or
cannot be matched, what is left is the approximate index, as without exact mode.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

__all__ = ["Cleared", "Event", "Hash", "Listener", "Removed", "Resident", "Stored", "chain", "scope"]

Hash = int | bytes
"""A block as the engine calls it: a number, signed or not, or 32 raw bytes."""


class Stored(NamedTuple):
    """Blocks of `block_size` tokens that became hits, each the parent of the next; `parent` is that of the
    first, None at the start of a prompt. `extras` has for each block what else keeps it apart from blocks of
    equal tokens (an image), empty where there is none."""

    hashes: Sequence[Hash]
    parent: Hash | None
    tokens: array[int]
    block_size: int
    scope: int
    extras: Sequence[bytes] = ()


class Removed(NamedTuple):
    """Blocks that were evicted."""

    hashes: Sequence[Hash]


class Cleared(NamedTuple):
    """Everything was dropped."""


Event = Stored | Removed | Cleared


class Listener(Protocol):
    """Hears of blocks, by our names, as backends come to hold them and lose them."""

    def held(self, slot: int, block: int) -> None:
        """The backend in `slot` has the block now."""

    def lost(self, slot: int, block: int) -> None:
        """It has not any more."""

    def emptied(self, slot: int) -> None:
        """Its engine dropped everything, or was started anew."""


def scope(adapter: str, salt: str) -> int:
    """The root of a chain; both empty for a plain prompt. The length keeps the two apart."""
    name = adapter.encode("utf-8", "surrogatepass")
    return xxh3_64_intdigest(b"%d:%b%b" % (len(name), name, salt.encode("utf-8", "surrogatepass")))


def chain(tokens: array[int], block_size: int, root: int) -> list[int]:
    """The name of each full block; a part of one at the end has none. About 0.2 us a block."""
    view = memoryview(tokens).cast("B")
    stride = block_size * tokens.itemsize
    names = []
    for start in range(0, len(view) - stride + 1, stride):
        root = xxh3_64_intdigest(view[start : start + stride], root)
        names.append(root)
    return names


class Resident:
    """The resident sets of all sources; source i belongs to the backend in slot `slots[i]`.

    `limit_blocks` bounds what is kept over all sources, at about 250 bytes a block: past it blocks are not
    taken up, and their source is no longer complete. `silence_s`: after that many seconds without
    `confirm`, a source is no longer fresh.
    """

    def __init__(
        self, slots: Sequence[int], listener: Listener, *, limit_blocks: int, silence_s: float
    ) -> None:
        self._sources = [_Source(slot, 1 << number) for number, slot in enumerate(slots)]
        self._all = dict.fromkeys(slots, 0)
        for source in self._sources:
            self._all[source.slot] |= source.bit
        self._where: dict[int, int] = {}  # our name of a block -> the bits of the sources that have it
        self._listener = listener
        self._limit = limit_blocks
        self._silence_s = silence_s
        self.blocks = 0
        """Blocks kept over all sources; one that two have counts twice."""

    def apply(self, number: int, event: Event) -> None:
        """Take up one event of source `number`."""
        source = self._sources[number]
        if isinstance(event, Stored):
            self._store(source, event)
        elif isinstance(event, Removed):
            for hash_ in event.hashes:
                self._remove(source, hash_)
        else:
            self.restart(number)

    def restart(self, number: int) -> None:
        """The source's engine has nothing in its cache any more: a new process, or a cleared one."""
        self.forget(number)
        source = self._sources[number]
        source.complete = True
        # With several ranks behind one backend the others still have theirs: those blocks went one by one.
        if self._all[source.slot] == source.bit:
            self._listener.emptied(source.slot)

    def forget(self, number: int) -> None:
        """Events were missed: what was believed is void, and what comes from now on is not all there is."""
        source = self._sources[number]
        others = self._all[source.slot] & ~source.bit
        for block in source.names.values():
            left = self._take_out(source, block)
            if others and not left & others:
                self._listener.lost(source.slot, block)
        self.blocks -= len(source.names)
        source.names = {}
        source.twins = {}
        source.complete = False

    def confirm(self, number: int, now_s: float) -> None:
        """The source is known to be alive, and every event it has published to be taken up."""
        self._sources[number].confirmed_s = now_s

    def doubt(self, number: int) -> None:
        """The source does not answer: it is not fresh until it is confirmed again."""
        self._sources[number].confirmed_s = None

    # Reading.

    def fresh(self, slot: int, now_s: float) -> bool:
        """Whether the events of all of a backend's ranks are up to date. False for one without events."""
        mine = [source for source in self._sources if source.slot == slot]
        return bool(mine) and all(
            source.usable and source.confirmed_s is not None and now_s - source.confirmed_s <= self._silence_s
            for source in mine
        )

    def complete(self, number: int) -> bool:
        """Whether the set is all that the engine holds, seen from its first event on."""
        return self._sources[number].complete

    def usable(self, number: int) -> bool:
        """False when the engine's hashes do not identify a prefix (SGLang before 0.5.9)."""
        return self._sources[number].usable

    def blocks_of(self, number: int) -> set[int]:
        """Our names of all blocks a source has."""
        return set(self._sources[number].names.values())

    @property
    def block_sizes(self) -> set[int]:
        """The sizes of blocks that sources have told of, in tokens."""
        return {source.block_size for source in self._sources if source.block_size}

    def holders(self, block: int) -> list[int]:
        """The slots whose backend has the block; one with several ranks if any of them has it."""
        bits = self._where.get(block, 0)
        return [slot for slot, mine in self._all.items() if bits & mine] if bits else []

    def lookup(self, tokens: array[int], root: int) -> dict[int, int]:
        """The longest resident prefix in tokens, for each slot that has events; the best of its ranks."""
        found = dict.fromkeys(self._all, 0)
        for size in self.block_sizes:
            still = sum(source.bit for source in self._sources if source.block_size == size)
            for count, block in enumerate(chain(tokens, size, root), 1):
                still &= self._where.get(block, 0)
                if not still:
                    break
                for slot, mine in self._all.items():
                    if still & mine:
                        found[slot] = max(found[slot], count * size)
        return found

    # Changing.

    def _store(self, source: _Source, event: Stored) -> None:
        if not source.usable:
            return
        source.block_size = event.block_size
        root = event.scope if event.parent is None else source.names.get(event.parent)
        if root is None:  # stored before our first event: nobody can tell what it continues
            source.complete = False
            return
        names = source.names
        extras = event.extras
        where = self._where
        mine = self._all[source.slot]
        bit = source.bit
        view = memoryview(event.tokens).cast("B")
        stride = event.block_size * event.tokens.itemsize
        start = 0
        for index, hash_ in enumerate(event.hashes):
            root = xxh3_64_intdigest(view[start : start + stride], root)
            start += stride
            if extras and extras[index]:
                root = xxh3_64_intdigest(extras[index], root)
            known = names.get(hash_)
            if known is not None:
                if known != root:
                    self._give_up(source)
                    return
                source.twins[hash_] = source.twins.get(hash_, 0) + 1
                continue
            if self.blocks >= self._limit:
                source.complete = False
                return
            names[hash_] = root
            self.blocks += 1
            bits = where.get(root, 0)
            where[root] = bits | bit
            if not bits & mine:
                self._listener.held(source.slot, root)

    def _remove(self, source: _Source, hash_: Hash) -> None:
        twins = source.twins.get(hash_)
        if twins is not None:
            # An engine that computed one block twice keeps both, and tells of each alone.
            if twins > 1:
                source.twins[hash_] = twins - 1
            else:
                del source.twins[hash_]
            return
        block = source.names.pop(hash_, None)
        if block is None:
            return
        self.blocks -= 1
        if not self._take_out(source, block) & self._all[source.slot]:
            self._listener.lost(source.slot, block)

    def _take_out(self, source: _Source, block: int) -> int:
        """Remove the source's bit from a block; returns those that are left. Safe to repeat: what an engine
        keeps apart for a reason we cannot see has one name here."""
        left = self._where.get(block, 0) & ~source.bit
        if left:
            self._where[block] = left
        else:
            self._where.pop(block, None)
        return left

    def _give_up(self, source: _Source) -> None:
        """One hash stood for two different prefixes: nothing can be built on this engine's hashes."""
        self.forget(source.bit.bit_length() - 1)
        source.usable = False


class _Source:
    """One source. `names`: the engine's hash of each resident block -> ours; `twins`: how many further
    blocks with that hash it has."""

    __slots__ = ("bit", "block_size", "complete", "confirmed_s", "names", "slot", "twins", "usable")

    def __init__(self, slot: int, bit: int) -> None:
        self.slot = slot
        self.bit = bit
        self.block_size = 0
        self.names: dict[Hash, int] = {}
        self.twins: dict[Hash, int] = {}
        self.complete = False
        self.usable = True
        self.confirmed_s: float | None = None
