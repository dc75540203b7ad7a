"""What identifies a block of tokens: a hash chained to the block before it.

Owns the chain only. Tokens are unsigned 32-bit integers in one buffer; how text becomes tokens is in
`tokens`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest


def namespace(model: str, adapter: str = "", salt: str = "") -> int:
    """The root of a chain: prompts share blocks only within one model, adapter and cache salt."""
    return xxh3_64_intdigest("\0".join((model, adapter, salt)).encode())


def token_buffer(tokens: Sequence[int]) -> array[int]:
    """Token ids as the buffer `block_keys` reads."""
    return array("I", tokens)


def block_keys(tokens: array[int], block_size: int, root: int) -> list[int]:
    """One key per full block of `block_size` tokens; a partial block at the end has none."""
    view = memoryview(tokens).cast("B")
    stride = block_size * tokens.itemsize
    keys = []
    parent = root
    for start in range(0, len(view) - stride + 1, stride):
        parent = xxh3_64_intdigest(view[start : start + stride], seed=parent)
        keys.append(parent)
    return keys
