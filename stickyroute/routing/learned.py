"""Which block of text is which block of tokens: the bridge from KV events to the index of the sticky policy.

The index speaks in blocks of a request's text (`RequestKeys.chain`), engines in blocks of tokens. Where the
token ids of one prompt are known, each block of its text is tied to the last block of tokens that ends inside
it: when that one is evicted, the text block is not whole any more. Conversations grow at their end, so what was
learned from one turn holds for all later ones.

Owns that table, of a fixed number of blocks, the oldest going first. Where a prompt's text blocks end in its
tokens is exact when the engine returns the tokens' texts, else interpolated. A wrong tie does no harm beyond a
wrong correction of the index. Pure; knows no engine and no socket.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from stickyroute.routing.exact import Resident, chain
from stickyroute.routing.keys import RequestKeys

__all__ = ["Corrected", "Learned"]

LEARN_BELOW = 0.75
"""A prompt is learned when less than this part of its text is known: so a conversation is asked about each time
it has grown by a third, and its turns cost far less than one question each."""


class Corrected(Protocol):
    """What is corrected: the index of the sticky policy."""

    def note(self, slot: int, chain: Sequence[int]) -> None:
        """The backend has these blocks, whoever had them computed."""

    def forget(self, slot: int, chain: Sequence[int]) -> None:
        """It has them no more."""

    def clear(self, slot: int) -> None:
        """It has nothing any more."""


class Learned:
    """The table, and the listener of `Resident`. `limit_blocks` bounds it, at about 300 bytes a block."""

    def __init__(self, index: Corrected, *, limit_blocks: int) -> None:
        self._index = index
        self._limit = limit_blocks
        self._texts: dict[int, tuple[int, ...]] = {}  # block of tokens -> the blocks of text it ends
        self._known: dict[int, int] = {}  # block of text -> how many blocks of tokens stand for it
        self.corrections = 0
        """How often the index was told something."""

    @property
    def blocks(self) -> int:
        """Blocks of tokens in the table."""
        return len(self._texts)

    def wants(self, keys: RequestKeys) -> bool:
        """Whether this prompt's token ids would tell something new. About a microsecond."""
        blocks = keys.chain
        if not blocks:
            return False
        known = self._known
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) >> 1
            if blocks[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        return low == 0 or keys.ends[low - 1] < LEARN_BELOW * keys.ends[len(blocks) - 1]

    def learn(
        self,
        keys: RequestKeys,
        tokens: array[int],
        root: int,
        resident: Resident,
        texts: Sequence[str] | None = None,
    ) -> None:
        """Tie a prompt's text to its token ids, and note in the index who holds it already.

        Does nothing before the first event, since the size of the engines' blocks is not known.
        """
        if not keys.chain or not tokens:
            return
        ends = token_ends(keys, len(tokens), texts)
        for size in resident.block_sizes:
            names = chain(tokens, size, root)
            ended: dict[int, list[int]] = {}
            for block, end in zip(keys.chain, ends, strict=True):
                whole = min(end // size, len(names))
                if whole:
                    ended.setdefault(names[whole - 1], []).append(block)
            for name, blocks in ended.items():
                self._tie(name, tuple(blocks))
                for slot in resident.holders(name):
                    self.corrections += 1
                    self._index.note(slot, blocks)

    # The listener of `Resident`.

    def held(self, slot: int, block: int) -> None:
        """A backend stored a block of tokens."""
        texts = self._texts.get(block)
        if texts is not None:
            self.corrections += 1
            self._index.note(slot, texts)

    def lost(self, slot: int, block: int) -> None:
        """A backend evicted one."""
        texts = self._texts.get(block)
        if texts is not None:
            self.corrections += 1
            self._index.forget(slot, texts)

    def emptied(self, slot: int) -> None:
        """A backend's cache is empty."""
        self.corrections += 1
        self._index.clear(slot)

    def _tie(self, name: int, blocks: tuple[int, ...]) -> None:
        texts, known = self._texts, self._known
        before = texts.pop(name, None)  # put back at the end: it is in use
        if before is not None:
            self._untie(before)
        elif len(texts) >= self._limit:
            self._untie(texts.pop(next(iter(texts))))
        texts[name] = blocks
        for block in blocks:
            known[block] = known.get(block, 0) + 1

    def _untie(self, blocks: tuple[int, ...]) -> None:
        known = self._known
        for block in blocks:
            left = known[block] - 1
            if left:
                known[block] = left
            else:
                del known[block]


def token_ends(keys: RequestKeys, count: int, texts: Sequence[str] | None) -> list[int]:
    """For each block of a prompt's text how many of its `count` tokens end inside it or before.

    `texts` are the tokens as the engine spells them: a character is about a byte there (byte-level BPE), and the
    marks of a chat template weigh about what stands for them in our text. Without them, text and tokens are
    taken to run evenly.
    """
    ends, whole = keys.ends[: len(keys.chain)], keys.prompt_bytes
    if texts is None or len(texts) != count or not count:
        return [end * count // whole for end in ends]
    reached = list(accumulate(map(len, texts)))
    scale = reached[-1] / whole
    return [bisect_right(reached, end * scale) for end in ends]
