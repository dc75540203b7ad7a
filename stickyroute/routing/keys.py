"""What a policy knows of a request: its places on the ring and its prompt as a chain of block hashes.

Owns the values only; `routing.affinity` makes them. Knows nothing of backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag
from typing import Final, NamedTuple

__all__ = ["NO_KEYS", "Needs", "RequestKeys", "candidate_keys", "made", "second_key"]

_WORD: Final = (1 << 64) - 1
# Odd: multiplying by it is a bijection of 64-bit words, and so its powers.
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Needs(IntFlag):
    """What a policy reads of a request's keys. What it does not name is not computed.

    KEY: `affinity`, also for requests that say nothing of their user. SIZE: `prompt_bytes` and
    `prompt_tokens`. CHAIN: all of it.
    """

    NOTHING = 0
    KEY = 1
    SIZE = 2
    CHAIN = 7


class RequestKeys(NamedTuple):
    """A request's keys. A named tuple: frozen, slotted, and cheaper to make than a dataclass.

    `affinity` is a 64-bit hash, None for a request that nothing ties to a backend; `source` is the configured
    source that gave it ("header:x-session-id", "prefix"), empty without one. `second` is the key of the
    second place on the ring, equal to `second_key(affinity)`.

    `chain[i]` is the hash of the first `ends[i]` bytes of the normalized prompt, and of what engines keep
    cache entries apart by; two prompts share a hash exactly where they are equal up to there. What comes
    after the last whole block is in none. `prompt_bytes` is the size of the whole prompt, `prompt_tokens` the
    number of tokens where the client sent token ids, else None.

    `spread` is how many nested candidates the key needs (2, 4, 8, ...): more than 2 where it alone carries
    more of the traffic than one backend's share.
    """

    affinity: int | None
    source: str
    chain: Sequence[int] = ()
    ends: Sequence[int] = ()
    prompt_bytes: int = 0
    prompt_tokens: int | None = None
    second: int | None = None
    spread: int = 2


NO_KEYS: Final = RequestKeys(None, "")

made: Final = tuple.__new__
"""`made(RequestKeys, (...))` with a value for every field is `RequestKeys(...)` without the function that `NamedTuple`
writes around it, which costs more than all the rest."""


def second_key(key: int) -> int:
    """The second of a key's places, which is all that most need."""
    return key * _GOLDEN & _WORD


def candidate_keys(key: int, count: int) -> tuple[int, ...]:
    """`count` places on the ring for one key: itself, then others that follow from it alone.

    Nested: fewer candidates are always the beginning of more. Two of them may have one home.
    """
    # Keys are hashes already. A multiplication scatters what was close; the place on a ring is in the high bits.
    found = [key]
    factor = 1
    for _ in range(1, count):
        factor = factor * _GOLDEN & _WORD
        found.append(key * factor & _WORD)
    return tuple(found)
