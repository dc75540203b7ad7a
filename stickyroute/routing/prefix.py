"""The normalized prompt as a chain of block hashes, so that two prompts' common beginning can be found.

Owns where blocks end and how they are hashed: at fixed byte positions, the same for every prompt, each hash
seeded by its parent's, the first by the scope (model, adapter, salt). Equal in every process and on every
machine. Never masks anything, because engines do not. Knows nothing of backends or of who sent the prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

__all__ = ["Prefixes", "block_ends"]


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
    """

    __slots__ = ("_slices", "block_bytes", "ends", "limit_bytes", "most")

    def __init__(self, block_bytes: int, limit_bytes: int, per_depth: int = 32) -> None:
        if block_bytes < 1 or per_depth < 1 or limit_bytes < block_bytes:
            raise ValueError("a block needs a byte at least, and the limit a block")
        self.block_bytes = block_bytes
        self.limit_bytes = limit_bytes
        self.ends = block_ends(block_bytes, per_depth, limit_bytes)
        self.most = len(self.ends)
        self._slices = tuple(map(slice, (0, *self.ends), self.ends))

    def count(self, size_bytes: int) -> int:
        """How many whole blocks a prompt of that size has."""
        return bisect_right(self.ends, size_bytes)

    def chain(self, text: bytes, root: int) -> list[int]:
        """One hash for each whole block of `text`; `root` is the scope's hash."""
        parent = root
        # The loop is the cost of a long prompt: a comprehension, and a copy of each block, which for so few
        # bytes is quicker than a memoryview.
        slices = self._slices[: bisect_right(self.ends, len(text))]
        return [parent := xxh3_64_intdigest(text[block], parent) for block in slices]

    def hash_at(self, text: bytes, chain: Sequence[int], size_bytes: int, root: int) -> int:
        """The hash of the first `size_bytes` of `text`, whether a block ends there or not.

        `chain` is that of the whole text, so only the bytes after the last block before it are read.
        """
        whole = bisect_right(self.ends, size_bytes)
        if not whole:
            return xxh3_64_intdigest(text[:size_bytes], root)
        begin = self.ends[whole - 1]
        return xxh3_64_intdigest(text[begin:size_bytes], chain[whole - 1])
