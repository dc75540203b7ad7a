"""Blocks of text tied to blocks of tokens, and the index corrected by what engines tell."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.exact import Cleared, Removed, Resident, Stored, chain, scope
from stickyroute.routing.index import Index
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from stickyroute.routing.learned import Learned, token_ends
from stickyroute.routing.prefix import Prefixes

PLAIN = scope("", "")
PREFIXES = Prefixes(block_bytes=64, limit_bytes=1 << 20)
SIZE = 4


def keys_of(text: bytes) -> RequestKeys:
    blocks = PREFIXES.chain(text, 1)
    return RequestKeys(1, "prefix", blocks, PREFIXES.ends[: len(blocks)], len(text))


def tokens_of(text: bytes) -> array[int]:
    """A token for each four bytes."""
    return array("I", text[: len(text) // 4 * 4])


class Fleet:
    """Two backends' events, the index, and the table between them."""

    def __init__(self, limit: int = 10_000) -> None:
        self.index = Index(4096, [100_000.0, 100_000.0])
        self.learned = Learned(self.index, limit_blocks=limit)
        self.resident = Resident([0, 1], self.learned, limit_blocks=10_000, silence_s=1.0)
        for slot in (0, 1):  # before the first event nobody knows how large an engine's blocks are
            self.store(slot, b"hello, I am up!!")

    def learn(self, text: bytes) -> None:
        """As the answer of an engine's /tokenize would have it."""
        self.learned.learn(keys_of(text), tokens_of(text), PLAIN, self.resident)

    def store(self, slot: int, text: bytes, first: int = 0, last: int | None = None) -> None:
        tokens = tokens_of(text)
        names = chain(tokens, SIZE, PLAIN)[first:last]
        parent = chain(tokens, SIZE, PLAIN)[first - 1] if first else None
        part = tokens[first * SIZE : (first + len(names)) * SIZE]
        self.resident.apply(slot, Stored(names, parent, part, SIZE, PLAIN))

    def remove(self, slot: int, text: bytes, first: int) -> None:
        """Evict the blocks of tokens from number `first` on, the last one first, as engines do."""
        for name in reversed(chain(tokens_of(text), SIZE, PLAIN)[first:]):
            while name in self.resident.blocks_of(slot):  # as often as it was stored
                self.resident.apply(slot, Removed([name]))

    def held_bytes(self, text: bytes) -> list[int]:
        keys = keys_of(text)
        return [keys.ends[count - 1] if count else 0 for count in self.index.held(keys.chain)]


TEXT = bytes(range(256)) * 4  # 1,024 bytes: 16 blocks of text, 256 tokens, 64 blocks of tokens


def test_what_is_stored_before_or_after_it_is_learned_is_held() -> None:
    fleet = Fleet()
    fleet.store(0, TEXT, 0, 32)
    assert fleet.held_bytes(TEXT) == [0, 0]
    fleet.learn(TEXT)
    assert fleet.held_bytes(TEXT) == [512, 0]
    fleet.store(1, TEXT)
    assert fleet.held_bytes(TEXT) == [512, 1024]


def test_what_is_evicted_is_held_no_more() -> None:
    fleet = Fleet()
    fleet.learn(TEXT)
    fleet.store(0, TEXT)
    fleet.remove(0, TEXT, 20)  # what is left are 320 bytes
    assert fleet.held_bytes(TEXT) == [320, 0]
    fleet.resident.apply(0, Cleared())
    assert fleet.held_bytes(TEXT) == [0, 0]


def test_a_conversation_is_asked_about_when_it_has_grown_by_a_third() -> None:
    fleet = Fleet()
    assert not fleet.learned.wants(NO_KEYS)
    assert fleet.learned.wants(keys_of(TEXT))
    fleet.learn(TEXT)
    assert not fleet.learned.wants(keys_of(TEXT))
    grown = TEXT + b"x" * 256
    assert not fleet.learned.wants(keys_of(grown))  # 1,024 of 1,280 bytes are known
    fleet.store(0, grown)
    assert fleet.held_bytes(grown) == [1024, 0]  # the rest is left to what the index learns by itself
    assert fleet.learned.wants(keys_of(grown + b"x" * 256))


def test_what_is_missing_is_not_held_against_what_was_just_sent() -> None:
    fleet = Fleet()
    fleet.learn(TEXT)
    keys = keys_of(TEXT)
    fleet.index.insert(0, keys.chain, keys.ends, 0.25)  # on its way: no event has come
    fleet.learn(TEXT)
    assert fleet.held_bytes(TEXT) == [1024, 0]


def test_two_conversations_share_what_they_begin_with() -> None:
    fleet = Fleet()
    one, two = TEXT + b"1" * 1024, TEXT + b"2" * 1024
    fleet.learn(one)
    fleet.learn(two)
    fleet.store(0, one)
    assert fleet.held_bytes(two) == [1024, 0]
    fleet.store(0, two)
    fleet.remove(0, one, 64)
    assert fleet.held_bytes(one) == [1024, 0]
    assert fleet.held_bytes(two) == [2048, 0]


def test_the_table_is_bounded_and_the_oldest_goes() -> None:
    fleet = Fleet(limit=20)
    texts = [bytes([number]) * 1024 for number in range(5)]
    for text in texts:
        fleet.learn(text)
        assert fleet.learned.blocks <= 20
    assert not fleet.learned.wants(keys_of(texts[-1]))
    assert fleet.learned.wants(keys_of(texts[0]))
    for text in texts:
        fleet.store(0, text)
    assert [fleet.held_bytes(text)[0] for text in texts[:4]] == [0, 0, 0, 0]
    assert fleet.held_bytes(texts[4]) == [1024, 0]


def test_where_blocks_of_text_end_in_the_tokens() -> None:
    keys = keys_of(b"x" * 200)  # blocks end at 64, 128 and 192 bytes
    assert token_ends(keys, 100, None) == [32, 64, 96]  # two bytes each
    spelled = ["\u010a" * 64, *["a"] * 136]  # 64 bytes in one token, the rest a byte each
    assert token_ends(keys, len(spelled), spelled) == [1, 65, 129]
    assert token_ends(keys, 100, ["too", "few"]) == [32, 64, 96]
    assert token_ends(keys, 0, []) == [0, 0, 0]


def test_without_tokens_nothing_is_learned() -> None:
    fleet = Fleet()
    fleet.store(0, TEXT)
    fleet.learned.learn(keys_of(TEXT), array("I"), PLAIN, fleet.resident)
    fleet.learned.learn(NO_KEYS, tokens_of(TEXT), PLAIN, fleet.resident)
    assert fleet.learned.blocks == 0


@pytest.mark.parametrize("size", [1, 16, 64])
def test_blocks_of_tokens_of_any_size(size: int) -> None:
    fleet = Fleet()
    tokens = tokens_of(TEXT)
    names = chain(tokens, size, PLAIN)
    fleet.resident.apply(1, Stored(names, None, tokens, size, PLAIN))
    fleet.learn(TEXT)
    # Blocks of text that end before the first whole block of tokens does are tied to none.
    held = fleet.index.held(keys_of(TEXT).chain[(size - 1) // 16 :])
    assert held == [0, 16 - (size - 1) // 16]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 7), st.integers(0, 70)), max_size=40), st.booleans()
)
def test_never_is_anything_held_that_was_evicted(steps: list[tuple[int, int, int]], late: bool) -> None:
    """Eight conversations of one beginning, stored up to some block and then evicted from another on."""
    fleet = Fleet()
    texts = [TEXT[:512] + bytes([number]) * 512 for number in range(8)]
    if not late:
        for text in texts:
            fleet.learn(text)
    for slot, number, blocks in steps:
        if blocks % 2:
            fleet.store(slot, texts[number], 0, blocks)
        else:
            # A block goes after all that continue it: the common beginning last.
            for text in texts if blocks < 32 else [texts[number]]:
                fleet.remove(slot, text, max(blocks, 32))
            fleet.remove(slot, texts[number], blocks)
    if late:
        for text in texts:
            fleet.learn(text)
    for text in texts:
        found = fleet.resident.lookup(tokens_of(text), PLAIN)
        for slot, size_bytes in enumerate(fleet.held_bytes(text)):
            assert size_bytes == found[slot] * 4 // 64 * 64


def test_a_followed_backend_keeps_old_blocks_for_twice_as_long() -> None:
    """Capacity 1,000 tokens: a talk, then 1,200 of another; what is old is let go unless its end would be told."""
    talk, other = keys_of(TEXT + b"1" * 576), keys_of(b"2" * 4800)
    for followed, held in ((False, 0), (True, len(talk.chain))):
        index = Index(4096, [1000.0])
        index.follow(0, followed)
        index.insert(0, talk.chain, talk.ends, 0.25)
        index.insert(0, other.chain, other.ends, 0.25)
        assert index.held(talk.chain) == [held]
        index.follow(0, False)  # its events stopped: age counts again
        assert index.held(talk.chain) == [0]
