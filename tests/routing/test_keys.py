"""The candidates of a key: nested, spread, and the same everywhere."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stickyroute import defaults
from stickyroute.routing.keys import Needs, candidate_keys
from stickyroute.routing.ring import Ring
from tests.routing.views import spread

KEYS = st.integers(0, 2**64 - 1)


@given(key=KEYS, few=st.integers(1, 16), many=st.integers(1, 64))
def test_fewer_candidates_are_the_beginning_of_more(key: int, few: int, many: int) -> None:
    few = min(few, many)
    candidates = candidate_keys(key, many)
    assert len(candidates) == many
    assert candidates[0] == key
    assert candidates[:few] == candidate_keys(key, few)
    assert all(0 <= candidate < 2**64 for candidate in candidates)


def test_candidates_are_what_they_always_were() -> None:
    """They must not change between releases: replicas of two of them would disagree."""
    assert candidate_keys(0x123456789ABCDEF, 4) == (
        81985529216486895,
        906252357051721883,
        5477920266169870519,
        9129214970904754947,
    )


def test_second_candidates_of_one_home_spread_over_all_backends() -> None:
    """When a backend is full its keys must not all go to one other."""
    ring = Ring.build([(f"gpu-{i}", 1) for i in range(8)], defaults.RING_VNODES)
    keys = [key for key in spread(20_000) if ring.home(key) == 3]
    for number in (1, 2, 3):
        counts = Counter(ring.home(candidate_keys(key, 4)[number]) for key in keys)
        assert len(counts) == 8
        assert max(counts.values()) < 1.4 * len(keys) / 8
        assert min(counts.values()) > 0.6 * len(keys) / 8


def test_a_policy_that_needs_the_chain_needs_all() -> None:
    assert Needs.CHAIN & Needs.KEY
    assert Needs.CHAIN & Needs.SIZE
    assert not Needs.KEY & Needs.SIZE
