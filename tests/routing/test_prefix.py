"""The chain of block hashes: equal where prompts are equal, different after, of bounded length, the same
everywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from stickyroute import defaults
from stickyroute.routing import prefix
from stickyroute.routing.prefix import Prefixes, block_ends

SMALL = Prefixes(block_bytes=4, limit_bytes=1 << 12, per_depth=4)
DEFAULT = Prefixes(defaults.PREFIX_BLOCK_BYTES, defaults.PREFIX_PROMPT_BYTES)
ROOT = 7
TEXTS = st.binary(max_size=300)
ROOTS = st.integers(0, 2**64 - 1)


def shared(one: list[int], other: list[int]) -> int:
    """How many hashes two chains begin with in common."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


# The laws.


@given(text=TEXTS, more=TEXTS, root=ROOTS)
def test_a_longer_prompt_only_adds_to_the_chain(text: bytes, more: bytes, root: int) -> None:
    before = SMALL.chain(text, root)
    assert SMALL.chain(text + more, root)[: len(before)] == before


@given(head=TEXTS, one=TEXTS, other=TEXTS)
def test_chains_are_equal_exactly_as_far_as_prompts_are(head: bytes, one: bytes, other: bytes) -> None:
    first, second = head + one, head + other
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    assert shared(SMALL.chain(first, ROOT), SMALL.chain(second, ROOT)) == SMALL.count(common)


HEADS = st.sampled_from([b"", b"ab" * 60, b"ab" * 60 + b"cd" * 200, b"ba" * 300])
PIECES = st.sampled_from([b"", b"x", b"yz" * 40, b"z" * 300])


@given(
    prompts=st.lists(
        st.tuples(HEADS, PIECES, PIECES, st.integers(1, 2)).map(lambda made: (b"".join(made[:3]), made[3])),
        max_size=40,
    ),
    kept=st.integers(1, 3),
)
def test_what_is_kept_of_earlier_prompts_changes_no_hash(prompts: list[tuple[bytes, int]], kept: int) -> None:
    keeps = Prefixes(block_bytes=4, limit_bytes=1 << 12, per_depth=4, kept=kept)
    for text, root in prompts:
        assert keeps.chain(text, root) == SMALL.chain(text, root)


def test_a_conversation_is_not_hashed_block_by_block_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its third turn begins with what the first two had in common: window, beginning and what is new are hashed."""
    hashed: list[int] = []

    def count(data: bytes | memoryview, seed: int) -> int:
        hashed.append(len(data))
        return xxh3_64_intdigest(data, seed)

    monkeypatch.setattr(prefix, "xxh3_64_intdigest", count)
    keeps = Prefixes(defaults.PREFIX_BLOCK_BYTES, defaults.PREFIX_PROMPT_BYTES, kept=1024)
    turns = [bytes(16 * 1024 + 512 * turn) for turn in range(3)]
    for turn in turns:
        hashed.clear()
        keeps.chain(turn, ROOT)
    assert hashed == [64, 16 * 1024, 512, 512]


@given(text=st.binary(min_size=4, max_size=300), one=ROOTS, other=ROOTS)
def test_no_hash_is_shared_between_scopes(text: bytes, one: int, other: int) -> None:
    chains = set(SMALL.chain(text, one)), set(SMALL.chain(text, other))
    assert (one == other) == bool(chains[0] & chains[1])


@given(text=TEXTS, root=ROOTS)
def test_each_hash_is_seeded_by_the_one_before(text: bytes, root: int) -> None:
    parent, begin = root, 0
    for end, block in zip(SMALL.ends, SMALL.chain(text, root), strict=False):
        parent = xxh3_64_intdigest(text[begin:end], seed=parent)
        assert block == parent
        begin = end


@given(text=TEXTS, cut=st.integers(0, 300))
def test_the_hash_up_to_any_place_is_that_of_the_text_up_to_there(text: bytes, cut: int) -> None:
    cut = min(cut, len(text))
    head = text[:cut]
    found = SMALL.hash_at(text, SMALL.chain(text, ROOT), cut, ROOT)
    assert found == SMALL.hash_at(head, SMALL.chain(head, ROOT), cut, ROOT)
    if cut < len(text):
        longer = text[: cut + 1]
        assert found != SMALL.hash_at(longer, SMALL.chain(longer, ROOT), cut + 1, ROOT)


@given(
    block=st.integers(1, 300),
    per_depth=st.integers(1, 40),
    limit=st.integers(300, 1 << 20),
    far=st.integers(1, 8),
)
def test_blocks_widen_with_depth_and_never_by_much(block: int, per_depth: int, limit: int, far: int) -> None:
    ends = block_ends(block, per_depth, limit)
    widths = [after - before for before, after in pairwise((0, *ends))]
    assert widths[0] == block
    assert all(wider in (width, 2 * width) for width, wider in pairwise(widths))
    for begin, width in zip((0, *ends), widths, strict=False):
        assert width == block or width * per_depth <= begin, "at most 1/per_depth of the position"
        assert width * 2 * per_depth > begin, "and more than half of that"
    assert ends == block_ends(block, per_depth, limit * far)[: len(ends)], "the limit moves no block"
    assert ends[-1] <= limit < ends[-1] + 2 * widths[-1]


# Bounds.


def test_the_number_of_blocks_is_bounded_however_long_a_prompt() -> None:
    sizes = {1 << 10: 4, 32 << 10: 96, 200 << 10: 178, 4 << 20: 320, 64 << 20: 320}
    assert {size: DEFAULT.count(size) for size in sizes} == sizes
    assert DEFAULT.most == 320
    assert len(DEFAULT.chain(bytes(5 << 20), ROOT)) == 320


@pytest.mark.parametrize("arguments", [(0, 100), (16, 15), (16, 100, 0)])
def test_a_block_of_nothing_is_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a byte at least"):
        Prefixes(*arguments)


# The same in every process and on every machine: these numbers must not change between releases, or replicas of
# two releases disagree.


CHAIN_0 = [
    10666956326096416113,
    12032254541231480808,
    11222172855342867182,
    17112130396664936110,
    13060941649508924224,
]
CHAIN_F = 15308495298861166061
AT_1000 = 8275542485583246894


def test_the_chain_is_what_it_always_was() -> None:
    text = bytes(range(256)) * 5
    assert DEFAULT.chain(text, 0) == CHAIN_0
    assert DEFAULT.chain(text, 2**64 - 1)[-1] == CHAIN_F
    assert DEFAULT.hash_at(text, DEFAULT.chain(text, 0), 1000, 0) == AT_1000
