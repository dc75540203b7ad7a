"""The prefix cache as SGLang keeps it (0.5, `mem_cache/radix_cache.py`): a radix tree over pages, one token
by default.

Owns which prefixes are resident, locked and evicted. Must not know: time, requests, steps. It has the
interface of `cache.BlockCache`; a key stands for one page, chained to the page before it.

The rules, where they differ from vLLM's:
- a prompt becomes a hit when it is computed, its answer only when the sequence ends;
- a sequence locks the path of the tree it uses; tokens in unlocked nodes are evictable and count as free;
- what a second sequence computed although the tree had it already is freed at once;
- eviction removes whole leaves, the one least recently matched first, and then what became a leaf by that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final

_STRIDE: Final = 16  # tokens a decoding sequence reserves ahead, so that not every step has to ask


class _Node:
    __slots__ = ("children", "keys", "locks", "parent", "touched")

    def __init__(self, keys: list[int], parent: _Node | None, touched: int) -> None:
        self.keys = keys
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.locks = 0
        self.touched = touched


class RadixHeld:
    """What one sequence holds: a locked path of the tree, `registered` pages long, and room of its own
    behind it."""

    __slots__ = ("keys", "node", "registered", "room_tokens", "source")

    def __init__(self, keys: Sequence[int], source: object, node: _Node) -> None:
        self.keys = keys
        self.source = source
        self.node = node
        self.registered = 0
        self.room_tokens = 0


class RadixCache:
    """Room for `capacity_tokens` in pages of `block_size` tokens. The callbacks are those of `BlockCache`."""

    def __init__(
        self,
        capacity_tokens: int,
        block_size: int = 1,
        on_stored: Callable[[RadixHeld, int, int], None] | None = None,
        on_removed: Callable[[int], None] | None = None,
    ) -> None:
        self.block_size = block_size
        self.capacity_tokens = capacity_tokens // block_size * block_size
        self.evictable_tokens = 0
        """Tokens in the tree that no running sequence locks."""
        self.releases = 0
        self.on_stored = on_stored
        self.on_removed = on_removed
        self._free = self.capacity_tokens
        self._root = _Node([], None, 0)
        self._root.locks = 1  # never evicted
        self._now = 0  # a logical clock: one tick for each match or insertion
        self._leaves: list[tuple[int, int, _Node]] = []  # a heap; entries that no longer hold are skipped
        self._pushed = 0

    @property
    def free_blocks(self) -> int:
        """Pages that can be taken, evictable ones included."""
        return (self._free + self.evictable_tokens) // self.block_size

    @property
    def used_tokens(self) -> int:
        return self.capacity_tokens - self._free - self.evictable_tokens

    @property
    def usage(self) -> float:
        """The gauge `token_usage`: the share of tokens that sequences hold, 0 to 1."""
        return self.used_tokens / self.capacity_tokens

    def resident(self) -> set[int]:
        """The keys of all pages in the tree."""
        found: set[int] = set()
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            found.update(node.keys)
            nodes.extend(node.children.values())
        return found

    def open(self, keys: Sequence[int], source: object = None) -> RadixHeld:
        """A sequence with nothing held yet."""
        return RadixHeld(keys, source, self._root)

    def lookup(self, held: RadixHeld, tokens: int) -> int:
        """How many of the first `tokens` are in the tree: whole pages, and never the last token."""
        return self._match(held.keys, (tokens - 1) // self.block_size)[1] * self.block_size

    def admit(self, held: RadixHeld, hit_tokens: int, tokens: int, must_fit_tokens: int) -> bool:
        """Lock the `hit_tokens` found by `lookup` and take room for `tokens`; False if the prompt doesn't
        fit."""
        pages = hit_tokens // self.block_size
        node = self._walk(held.keys, pages)
        self._lock(node)
        if self._pages(max(tokens, must_fit_tokens)) - hit_tokens > self._free + self.evictable_tokens:
            self._unlock(node)
            return False
        held.node = node
        held.registered = pages
        held.room_tokens = hit_tokens
        return self.grow(held, tokens)

    def grow(self, held: RadixHeld, tokens: int) -> bool:
        """Room for `tokens` in all. False if it does not fit."""
        need = self._pages(tokens) - held.room_tokens
        if need <= 0:
            return True
        if need > self._free:
            self._evict(need - self._free)
            if need > self._free:
                return False
        ahead = min(-(-tokens // _STRIDE) * _STRIDE - self._pages(tokens), self._free - need)
        need += ahead // self.block_size * self.block_size
        self._free -= need
        held.room_tokens += need
        return True

    def register(self, held: RadixHeld, tokens: int, answering: bool = False) -> None:
        """Put the pages among the first `tokens` into the tree. While a sequence is `answering`, nothing
        happens."""
        size = self.block_size
        pages = min(tokens, held.room_tokens) // size
        pages = min(pages, len(held.keys))
        if answering or pages <= held.registered:
            return
        node, matched, inside = self._match(held.keys, pages)
        node = self._cut(node, inside)
        self._free += max(0, matched - held.registered) * size  # computed although the tree had it
        self._now += 1
        if matched < pages:
            new = _Node(list(held.keys[matched:pages]), node, self._now)
            node.children[new.keys[0]] = new
            self.evictable_tokens += (pages - matched) * size
            node = new
            if self.on_stored is not None:
                self.on_stored(held, matched, pages)
        self._touch(node)
        self._lock(node)
        self._unlock(held.node)
        held.node = node
        held.registered = pages

    def release(self, held: RadixHeld) -> None:
        """Unlock the path and give back what lies behind it."""
        self._free += held.room_tokens - held.registered * self.block_size
        self._unlock(held.node)
        held.node = self._root
        held.registered = 0
        held.room_tokens = 0
        self.releases += 1

    def clear(self) -> None:
        """Forget everything that no running sequence locks."""
        self._evict(self.evictable_tokens)
        self.releases += 1

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.block_size) * self.block_size

    def _match(self, keys: Sequence[int], limit: int) -> tuple[_Node, int, int]:
        """The deepest node that matches, how many pages match in all, and how many of them inside that
        node."""
        node = self._root
        matched = 0
        while matched < limit:
            child = node.children.get(keys[matched])
            if child is None:
                return node, matched, len(node.keys)
            inside = 0
            for key in child.keys[: limit - matched]:
                if keys[matched + inside] != key:
                    break
                inside += 1
            matched += inside
            if inside < len(child.keys):
                return child, matched, inside
            node = child
        return node, matched, len(node.keys)

    def _walk(self, keys: Sequence[int], pages: int) -> _Node:
        """The node that ends after exactly `pages` matching pages; a longer one is cut there. It counts as
        used."""
        node, _, inside = self._match(keys, pages)
        self._now += 1
        node = self._cut(node, inside)
        self._touch(node)
        return node

    def _cut(self, node: _Node, inside: int) -> _Node:
        """Make a node end after `inside` pages; the rest becomes its child."""
        if inside == len(node.keys):
            return node
        parent = node.parent
        assert parent is not None  # the root has no pages to cut
        upper = _Node(node.keys[:inside], parent, node.touched)
        upper.locks = node.locks
        parent.children[upper.keys[0]] = upper
        node.keys = node.keys[inside:]
        node.parent = upper
        upper.children[node.keys[0]] = node
        return upper

    def _touch(self, node: _Node) -> None:
        above: _Node | None = node
        while above is not None:
            above.touched = self._now
            above = above.parent
        self._offer(node)

    def _lock(self, node: _Node) -> None:
        above: _Node | None = node
        while above is not None:
            if not above.locks:
                self.evictable_tokens -= len(above.keys) * self.block_size
            above.locks += 1
            above = above.parent

    def _unlock(self, node: _Node) -> None:
        above: _Node | None = node
        while above is not None:
            above.locks -= 1
            if not above.locks:
                self.evictable_tokens += len(above.keys) * self.block_size
            above = above.parent
        self._offer(node)

    def _offer(self, node: _Node) -> None:
        """Make a node a candidate for eviction, if it is one."""
        if not node.children and not node.locks:
            self._pushed += 1
            heapq.heappush(self._leaves, (node.touched, self._pushed, node))

    def _evict(self, tokens: int) -> None:
        while tokens > 0 and self._leaves:
            touched, _, node = heapq.heappop(self._leaves)
            parent = node.parent
            if parent is None or node.children or node.locks or node.touched != touched:
                continue
            freed = len(node.keys) * self.block_size
            self._free += freed
            self.evictable_tokens -= freed
            tokens -= freed
            del parent.children[node.keys[0]]
            node.parent = None
            if self.on_removed is not None:
                for key in node.keys:
                    self.on_removed(key)
            self._offer(parent)
