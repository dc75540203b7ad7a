"""The product's keys of a simulated request, made without making its text.

Owns the shortcut that lets a replay see prompts of any length: the chain of block hashes is read off the keys
of the engines' blocks at the positions where the product's own blocks end, which are equal and differ for the
same prompts. Anchors and session memory are the product's, and are told those hashes; there being no text, no
volatile span is masked in it, so a clock in a system prompt moves anchors here and does not in life.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from stickyroute import defaults
from stickyroute.benchmark.prompts import BLOCK_TOKENS, BYTES_PER_TOKEN, Prompt
from stickyroute.benchmark.workloads.base import Request
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.anchor import Anchors
from stickyroute.routing.keys import RequestKeys, second_key
from stickyroute.routing.prefix import Prefixes
from stickyroute.routing.sessions import Sessions

__all__ = ["Keys"]

_MODEL: Final = "sim"
_WORD: Final = (1 << 64) - 1
_USERS: Final = 100_000


class Keys:
    """What one router knows of requests: `pool` are the slots of its backends, for `move` to change."""

    def __init__(self, pool: Sequence[int], sources: Sequence[str] = defaults.AFFINITY_SOURCES) -> None:
        self._prefixes = Prefixes(defaults.PREFIX_BLOCK_BYTES, defaults.PREFIX_PROMPT_BYTES)
        self._anchors = Anchors(self._prefixes, defaults.PREFIX_ANCHOR_CELLS, defaults.PREFIX_MASKED_BYTES)
        self._sessions = Sessions(defaults.PREFIX_SESSIONS)
        self._rule = AffinityRule(tuple(sources))
        self._users: dict[str, RequestKeys] = {}
        self._pool = tuple(pool)
        ends = self._prefixes.ends
        self._at = [end // (BYTES_PER_TOKEN * BLOCK_TOKENS) - 1 for end in ends]
        self._blank = b""

    def move(self, pool: Sequence[int]) -> None:
        """Other backends from now on."""
        self._pool = tuple(pool)

    def of(self, request: Request) -> RequestKeys:
        """The keys of a request as the proxy would make them."""
        size = request.prompt_tokens * BYTES_PER_TOKEN
        blocks = request.reply.keys()
        count = bisect_right(self._prefixes.ends, size)
        chain = [blocks[at] & _WORD for at in self._at[:count]]
        anchors, pool = self._anchors, self._pool
        anchors.record(pool)
        named = self._user(request.user) if request.user else None
        if named is not None and named.affinity is not None:
            affinity, source = named.affinity, named.source
        else:
            affinity, source = self._place(request.prompt, size, chain), "prefix"
        second = second_key(affinity)
        spread = anchors.spread(second, pool)
        return RequestKeys(affinity, source, chain, self._prefixes.ends[:count], size, None, second, spread)

    def _user(self, name: str) -> RequestKeys:
        """The key of a client that says who its user is."""
        found = self._users.get(name)
        if found is None:
            if len(self._users) >= _USERS:
                self._users.clear()
            body = {"model": _MODEL, "user": name}
            found = self._users[name] = self._rule.keys(
                {}, Shape.CHAT, Asked(_MODEL, True, body), "", self._pool
            )
        return found

    def _place(self, prompt: Prompt, size: int, chain: Sequence[int]) -> int:
        """As `AffinityRule` has it: the key of the turn this one continues, else the anchor."""
        size = min(size, self._prefixes.limit_bytes)
        if len(self._blank) < size:
            self._blank = bytes(size)
        anchor, shared = self._anchors.find(self._blank[:size], chain, 0, self._pool)
        whole = _turn(prompt)
        key = self._sessions.find(whole)
        node = prompt.parent
        while key is None and node is not None:
            key = self._sessions.follow(_turn(node))
            node = node.parent
        if key is None:
            key = anchor if shared else whole
        self._sessions.remember(whole, key)
        return key


def _turn(prompt: Prompt) -> int:
    """A hash of the prompt up to this part, which its seed and length tell from all others."""
    return hash((prompt.seed, prompt.tokens, prompt.total)) & _WORD
