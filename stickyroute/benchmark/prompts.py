"""A prompt as a chain of seeded parts, shared between the requests that share a prefix.

Owns the two faces of a part: the block keys a prefix cache sees, and text a real engine can be sent. Both
follow from the parts alone, so equal prefixes have equal keys and equal text in every process. Knows
nothing of arrival times, users or engines.

A part is `tokens` tokens of the endless stream that belongs to `seed`: two parts of one seed and different
lengths share the shorter one's tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

BLOCK_TOKENS: Final = 16
BYTES_PER_TOKEN: Final = 4  # of the text, which is how the simulated engines' tokenizer counts

# Sixty-four words of three letters, a token each with the space behind them.
_WORDS = (
    "the cat dog sun sea sky fox owl elm oak ivy ant bee cow hen pig ram rat bat cod eel fin gum hat ice jar "
    "key lid map net oar pen rug saw tap urn van wax yak zip air bay cup dew ear fog gem hut ink jam kit log "
    "mud nut ore pod rim son tin vat web yew nap zoo"
)
_PIECES: Final = tuple(f"{word} " for word in _WORDS.split())

Slice = tuple[int, int, int]  # seed, first token, tokens


def seed_of(*what: object) -> int:
    """A seed for a named piece of text, equal in every process."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=7).digest(), "big")


@lru_cache(maxsize=1024)
def text_of(seed: int, tokens: int) -> str:
    """The text of a part: `tokens` words of three letters and a space."""
    stream = hashlib.shake_128(b"%d" % seed).digest(tokens)
    return "".join([_PIECES[byte & 63] for byte in stream])


class Prompt:
    """A prompt, or a prompt and its answer: the parts from the first to this one. Immutable to its users.

    `total` counts the tokens of the whole chain, `tokens` those of the last part.
    """

    __slots__ = ("_carry", "_keys", "parent", "role", "seed", "tokens", "total")

    def __init__(self, parent: Prompt | None, role: str, seed: int, tokens: int) -> None:
        self.parent = parent
        self.role = role
        self.seed = seed
        self.tokens = tokens
        self.total: int = tokens if parent is None else parent.total + tokens
        self._keys: list[int] | None = None
        self._carry: tuple[Slice, ...] = ()

    def then(self, role: str, seed: int, tokens: int) -> Prompt:
        """This prompt with one more part."""
        return Prompt(self, role, seed, tokens)

    def parts(self) -> list[Prompt]:
        """The chain, first part first."""
        chain = []
        node: Prompt | None = self
        while node is not None:
            chain.append(node)
            node = node.parent
        chain.reverse()
        return chain

    def keys(self) -> list[int]:
        """One key for each full block of 16 tokens, chained to the blocks before it."""
        chain: list[Prompt] = []
        node: Prompt | None = self
        while node is not None:
            chain.append(node)
            node = node.parent
        keys: list[int] = []
        carry: tuple[Slice, ...] = ()
        for part in reversed(chain):
            own = part._keys
            if own is None:
                own = part._own_keys(keys[-1] if keys else 0, carry)
            keys += own
            carry = part._carry
        return keys

    def _own_keys(self, previous: int, carry: tuple[Slice, ...]) -> list[int]:
        """The keys of the blocks that end in this part. Computed once, since all that share the part share
        them.

        hash() of a tuple of whole numbers is the same in every process and is never -1.
        """
        seed = self.seed
        at = 0
        keys: list[int] = []
        if carry:
            at = min(BLOCK_TOKENS - sum(length for _, _, length in carry), self.tokens)
            carry = (*carry, (seed, 0, at))
            if sum(length for _, _, length in carry) < BLOCK_TOKENS:
                self._carry = carry
                self._keys = keys
                return keys
            previous = hash((previous, carry))
            keys.append(previous)
        end = self.tokens - (self.tokens - at) % BLOCK_TOKENS
        for first in range(at, end, BLOCK_TOKENS):
            previous = hash((previous, seed, first))
            keys.append(previous)
        self._carry = ((seed, end, self.tokens - end),) if end < self.tokens else ()
        self._keys = keys
        return keys

    def messages(
        self, replies: Mapping[int, str] | None = None, text: Callable[[int, int], str] = text_of
    ) -> list[dict[str, Any]]:
        """The chain as chat messages; neighbours of one role are one message.

        `replies` maps the seed of an answer to what an engine really said, which then stands in the history.
        """
        messages: list[dict[str, Any]] = []
        for part in self.parts():
            said = replies.get(part.seed) if replies and part.role == "assistant" else None
            if said is None:
                said = text(part.seed, part.tokens)
            if messages and messages[-1]["role"] == part.role:
                messages[-1]["content"] += said
            else:
                messages.append({"role": part.role, "content": said})
        return messages


def start(role: str, seed: int, tokens: int) -> Prompt:
    """A prompt of one part."""
    return Prompt(None, role, seed, tokens)
