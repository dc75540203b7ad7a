"""The normalized prompt as a chain of block hashes, so that two prompts' common beginning can be found.

Owns where blocks end and how they are hashed: at fixed byte positions, the same for every prompt, each hash
seeded by its parent's, the first by the scope (model, adapter, salt). Equal in every process and on every
machine. Never masks anything, because engines do not. Knows nothing of backends or of who sent the prompt.

Most long prompts begin with one that was here before: the turn before, or a system prompt. That is known again by
one hash over all of it, which takes an eighth of what its blocks take, and its chain is the one of before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

__all__ = ["Prefixes", "block_ends", "in_common"]

_MANY: Final = 16  # blocks: fewer are hashed as quickly as they are looked up
_WINDOW_BYTES: Final = 64  # by which a prompt is looked up
_SIGN_BYTES: Final = 16  # at the end of what may be known again: worth a look before all of it is hashed


def block_ends(block_bytes: int, per_depth: int, limit_bytes: int) -> tuple[int, ...]:
    """Where blocks end, up to `limit_bytes`: each is as wide as the largest power of two times `block_bytes`
    that is at most 1/`per_depth` of its position, so that a prompt twice as long has `per_depth` blocks more.
    """
    ends: list[int] = []
    end = 0
    width = block_bytes
    while True:
        while width * 2 * per_depth <= end:
            width *= 2
        end += width
        if end > limit_bytes:
            return tuple(ends)
        ends.append(end)


class Prefixes:
    """Cuts and hashes. A block is `block_bytes` wide and wider further on, by `block_ends`; what lies past
    `limit_bytes` is not hashed. So the number of blocks of a prompt is at most `most`, however long it is.
    So many chains of long prompts are `kept`, for speed alone: no hash is another for it.
    """

    __slots__ = ("_kept", "block_bytes", "ends", "limit_bytes", "most")

    def __init__(self, block_bytes: int, limit_bytes: int, per_depth: int = 32, kept: int = 0) -> None:
        if block_bytes < 1 or per_depth < 1 or limit_bytes < block_bytes or kept < 0:
            raise ValueError("a block needs a byte at least, and the limit a block")
        self.block_bytes = block_bytes
        self.limit_bytes = limit_bytes
        self.ends = block_ends(block_bytes, per_depth, limit_bytes)
        self.most = len(self.ends)
        self._kept: list[_Kept | None] = [None] * kept

    def count(self, size_bytes: int) -> int:
        """How many whole blocks a prompt of that size has."""
        return bisect_right(self.ends, size_bytes)

    def chain(self, text: bytes, root: int) -> list[int]:
        """One hash for each whole block of `text`; `root` is the scope's hash."""
        ends = self.ends[: bisect_right(self.ends, len(text))]
        if len(ends) < _MANY or not self._kept:
            return _hashed(text, ends, 0, root)
        # Looked up by what stands at a power of two, as deep as there is one: further on than most system prompts
        # go, and the same until a conversation is twice as long.
        deep = 1 << len(text).bit_length() - 1
        place = xxh3_64_intdigest(text[deep - _WINDOW_BYTES : deep], root) % len(self._kept)
        before = self._kept[place]
        known = [] if before is None else before.beginning(text, root)
        if known:
            chain = known + _hashed(text, ends[len(known) :], ends[len(known) - 1], known[-1])
        else:
            chain = _hashed(text, ends, 0, root)
        if len(chain) - len(known) > len(known) >> 2:
            self._kept[place] = _Kept(self.ends, text, root, chain, before)
        return chain

    def hash_at(self, text: bytes, chain: Sequence[int], size_bytes: int, root: int) -> int:
        """The hash of the first `size_bytes` of `text`, whether a block ends there or not.

        `chain` is that of the whole text, so only the bytes after the last block before it are read.
        """
        whole = bisect_right(self.ends, size_bytes)
        if not whole:
            return xxh3_64_intdigest(text[:size_bytes], root)
        begin = self.ends[whole - 1]
        return xxh3_64_intdigest(text[begin:size_bytes], chain[whole - 1])


class _Kept:
    """The last chain at one place, and how a text is known to begin with what that had in common with the one
    `before`, which for a conversation is all of its last turn but one."""

    __slots__ = ("_chain", "_digest", "_end", "_known", "_root", "_sign")

    def __init__(
        self, ends: Sequence[int], text: bytes, root: int, chain: list[int], before: _Kept | None
    ) -> None:
        self._chain = chain
        self._root = root
        known = self._known = 0 if before is None else in_common(before._chain, chain)
        # Who never comes again is not hashed twice.
        end = self._end = ends[known - 1] if known >= _MANY else 0
        self._sign = text[end - _SIGN_BYTES : end] if end else b""
        self._digest = xxh3_64_intdigest(memoryview(text)[:end], root) if end else 0

    def beginning(self, text: bytes, root: int) -> list[int]:
        """The hashes of the blocks that `text` is known to begin with."""
        end = self._end
        if (
            end
            and text[end - _SIGN_BYTES : end] == self._sign
            and root == self._root
            and xxh3_64_intdigest(memoryview(text)[:end], root) == self._digest
        ):
            return self._chain[: self._known]
        return []


def _hashed(text: bytes, ends: Sequence[int], begin: int, parent: int) -> list[int]:
    """The hash of each block from `begin` on, each seeded by the one before."""
    # The loop is the cost of a long prompt. A copy of each block is, for so few bytes, quicker than a memoryview.
    digest = xxh3_64_intdigest
    found: list[int] = []
    for end in ends:
        parent = digest(text[begin:end], parent)
        found.append(parent)
        begin = end
    return found


def in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many hashes two chains begin with in common. Those are equal up to where they differ."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) >> 1
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
