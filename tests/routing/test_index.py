"""The residency table: what is held after what was inserted, bounded, and right about the longest match."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from stickyroute.routing.index import Index

BLOCK = 256


def chain_of(*names: object) -> list[int]:
    """A chain of hashes, each following from all names up to it."""
    return list(
        accumulate(names, lambda so_far, name: xxh3_64_intdigest(b"%r" % (name,), so_far), initial=7)
    )[1:]


def ends_of(chain: list[int]) -> list[int]:
    return [BLOCK * (number + 1) for number in range(len(chain))]


def insert(index: Index, slot: int, chain: list[int]) -> int:
    """A quarter of a token for each byte: a block is 64 tokens."""
    return index.insert(slot, chain, ends_of(chain), 0.25)[0]


def test_nothing_is_held_at_first_and_what_was_inserted_afterwards() -> None:
    index = Index(1024, [10_000.0] * 3)
    chain = chain_of(*range(20))
    assert index.held(chain) == [0, 0, 0]
    assert index.held([]) == [0, 0, 0]
    assert insert(index, 1, chain) == 0
    assert index.held(chain) == [0, 20, 0]
    assert insert(index, 1, chain) == 20


def test_the_longest_common_beginning_counts_for_every_backend_at_once() -> None:
    """Three conversations under one system prompt of five blocks, one on each backend."""
    index = Index(1024, [10_000.0] * 4)
    talks = [chain_of("s", "s", "s", "s", "s", *[talk] * (4 + talk)) for talk in range(3)]
    for slot, talk in enumerate(talks):
        insert(index, slot, talk)
    assert index.held(talks[0]) == [9, 5, 5, 0]
    assert index.held(talks[2]) == [5, 5, 11, 0]
    assert index.held(chain_of("s", "s", "other")) == [2, 2, 2, 0]
    assert insert(index, 0, talks[2]) == 5, "insert says what the backend had"


def test_a_block_leaves_when_the_capacity_has_gone_through_since_its_last_touch() -> None:
    """Ten blocks fit: 640 tokens of 64 each."""
    index = Index(4096, [640.0])
    first = chain_of("first")
    insert(index, 0, first)
    for number in range(9):
        insert(index, 0, chain_of(number))
        assert index.held(first) == [1]
    insert(index, 0, chain_of("one more"))
    assert index.held(first) == [0]


def test_what_is_used_again_stays_and_what_is_not_goes() -> None:
    index = Index(4096, [640.0])
    kept, left = chain_of("kept"), chain_of("left")
    insert(index, 0, kept)
    insert(index, 0, left)
    for number in range(12):
        insert(index, 0, chain_of(number))
        insert(index, 0, kept)
    assert (index.held(kept), index.held(left)) == ([1], [0])


def test_an_answer_ages_what_is_there() -> None:
    index = Index(4096, [640.0])
    chain = chain_of("a")
    insert(index, 0, chain)
    index.record_tokens(0, 300.0)
    assert index.held(chain) == [1]
    index.record_tokens(0, 340.0)
    assert index.held(chain) == [0]


def test_blocks_are_counted_by_their_tokens() -> None:
    """One block of 640 tokens takes the room of ten small ones."""
    index = Index(4096, [640.0])
    small, large = chain_of("small"), chain_of("large")
    insert(index, 0, small)
    index.insert(0, large, [2560], 0.25)
    assert index.held(small) == [0]
    assert index.held(large) == [1]


def test_a_capacity_that_becomes_known_counts_from_then_on() -> None:
    index = Index(4096, [640.0])
    first = chain_of("first")
    insert(index, 0, first)
    index.set_capacity(0, 6400.0)
    for number in range(50):
        insert(index, 0, chain_of(number))
    assert index.held(first) == [1]
    index.set_capacity(0, 320.0)
    assert index.held(first) == [0]
    index.set_capacity(0, 6400.0)
    assert index.held(first) == [0], "what was forgotten does not come back"


def test_a_backend_that_started_anew_holds_nothing_and_fills_again() -> None:
    index = Index(1024, [10_000.0] * 2)
    chain = chain_of(*range(8))
    insert(index, 0, chain)
    insert(index, 1, chain)
    index.clear(0)
    assert index.held(chain) == [0, 8]
    insert(index, 0, chain[:3])
    assert index.held(chain) == [3, 8]


def test_what_was_not_computed_after_all_is_forgotten() -> None:
    index = Index(1024, [10_000.0] * 2)
    chain = chain_of(*range(8))
    insert(index, 0, chain)
    insert(index, 1, chain)
    index.forget(0, chain[5:])
    assert index.held(chain) == [5, 8]
    index.forget(0, chain_of("unheard of"))
    assert index.held(chain) == [5, 8]


def test_a_note_from_the_engine_itself_counts_like_an_insert_but_ages_nothing() -> None:
    index = Index(1024, [640.0])
    chain = chain_of("a")
    insert(index, 0, chain)
    for number in range(20):
        index.note(0, chain_of(number))
    assert index.held(chain) == [1]
    assert index.held(chain_of(3)) == [1]


def test_the_table_never_grows() -> None:
    """Cases B18 and B20: many times more distinct prompts than it has room for."""
    index = Index(1000, [1e6] * 4)
    before = index.memory_bytes
    assert index.rows == 1024
    chain: list[int] = []
    for number in range(2000):
        chain = chain_of("head", number, "a", "b", "c")
        insert(index, number % 4, chain)
    assert index.memory_bytes == before
    assert index.rows_used <= index.rows
    assert index.held(chain)[1999 % 4] == 5, "the last one is there"
    assert min(index.held(chain_of("head"))) == 1, "and what all share"


def test_a_clock_that_runs_out_begins_anew() -> None:
    index = Index(64, [10_000.0] * 2)
    chain = chain_of(*range(4))
    insert(index, 0, chain)
    insert(index, 1, chain)
    index.record_tokens(0, float(16 << 32))
    assert index.held(chain) == [0, 4]
    insert(index, 0, chain)
    assert index.held(chain) == [4, 4]


def test_shares_are_of_the_rows_in_use() -> None:
    index = Index(64, [10_000.0] * 2)
    assert index.share(0) == 0.0
    insert(index, 0, chain_of(*range(4)))
    assert (index.share(0), index.share(1)) == (1.0, 0.0)


@pytest.mark.parametrize(("entries", "capacity"), [(0, [1.0]), (1, [0.0])])
def test_sizes_are_positive(entries: int, capacity: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Index(entries, capacity)


@given(
    prompts=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=12)), max_size=30
    ),
    asked=st.lists(st.integers(0, 2), max_size=14),
)
def test_with_room_for_all_the_match_is_the_longest_common_beginning(
    prompts: list[tuple[int, list[int]]], asked: list[int]
) -> None:
    index = Index(1 << 12, [1e9] * 3)
    for slot, names in prompts:
        insert(index, slot, chain_of(*names))
    expected = [
        max(
            (sum(1 for _ in _common(names, asked)) for at, names in prompts if at == slot),
            default=0,
        )
        for slot in range(3)
    ]
    assert index.held(chain_of(*asked)) == expected


def _common(one: list[int], other: list[int]) -> list[int]:
    found = []
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        found.append(a)
    return found


def test_it_is_close_to_what_an_lru_cache_holds() -> None:
    """Conversations that come back in random order on a cache that half of them fit into: what is believed to be
    held and what an exact LRU of blocks holds differ by less than a tenth."""
    rand = random.Random(4)
    blocks = 600
    index = Index(1 << 14, [64.0 * blocks])
    lru: dict[int, None] = {}
    believed = held = 0
    for _ in range(2500):
        talk = min(rand.randrange(80), rand.randrange(80))
        chain = chain_of("system", "system", *[talk] * 15)
        believed += index.held(chain)[0]
        held += next((number for number, key in enumerate(chain) if key not in lru), len(chain))
        insert(index, 0, chain)
        for key in reversed(chain):  # tail first, as engines free them: the head is the last to go
            lru.pop(key, None)
            lru[key] = None
        while len(lru) > blocks:
            del lru[next(iter(lru))]
    assert believed == pytest.approx(held, rel=0.1)
    assert 0.3 < held / (2500 * 17) < 0.95, "the test is of a cache that is neither empty nor ample"


def test_a_conversation_in_use_keeps_its_beginning_however_often_it_goes_on() -> None:
    """Turn after turn, while others fill the cache several times over: all of it stays."""
    index = Index(1 << 14, [64.0 * 400])
    chain = chain_of(*range(8))
    for turn in range(100):
        insert(index, 0, chain)
        insert(index, 0, chain_of("other", *[turn] * 15))
        chain = chain_of(*range(8 + turn))
        assert index.held(chain[:8]) == [8]


def test_prompts_that_all_fit_stay_though_they_share_most_of_themselves() -> None:
    """Five users in each of eight groups, round and round: 8 x (20 + 5 x 4) blocks of 350. What a group shares is
    touched five times as often, and must not count as if it were old each time."""
    index = Index(1 << 14, [64.0 * 350])
    prompts = [chain_of(*[group] * 20, *[f"{group} {user}"] * 4) for group in range(8) for user in range(5)]
    rand = random.Random(3)
    rand.shuffle(prompts)
    for _ in range(3):
        for chain in prompts:
            insert(index, 0, chain)
            index.record_tokens(0, 8.0)
    assert [index.held(chain) for chain in prompts] == [[24]] * 40


def test_the_count_of_chains_begins_anew_and_nothing_is_lost() -> None:
    """After four billion, which a test reaches by beginning late."""
    index = Index(1024, [1e6, 1e6])
    index._tick = (1 << 32) - 9
    chains = [chain_of(number, *range(4)) for number in range(20)]
    for number, chain in enumerate(chains):
        insert(index, number % 2, chain)
        index.note(1 - number % 2, chain[:2])
    for number, chain in enumerate(chains):
        assert sorted(index.held(chain)) == [2, 5]
        assert index.held(chain)[number % 2] == 5
