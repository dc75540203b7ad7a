"""Who holds a row: exact while there are lines, bounded and sensible where they run out, for any number of slots."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.holders import Holders
from stickyroute.routing.index import Index
from tests.routing.test_index import chain_of, ends_of, insert

STEPS = st.one_of(
    st.tuples(st.just("touch"), st.integers(0, 7), st.integers(0, 15)),
    st.tuples(st.just("forget"), st.integers(0, 7), st.integers(0, 15)),
    st.tuples(st.just("clear"), st.integers(0, 7), st.just(0)),
    st.tuples(st.just("drop"), st.just(0), st.integers(0, 15)),
    st.tuples(st.just("floor"), st.just(0), st.integers(0, 15)),
    st.tuples(st.just("grow"), st.just(0), st.integers(0, 2)),
)


@given(count=st.integers(1, 12), steps=st.lists(STEPS, max_size=120))
def test_up_to_sixteen_slots_it_is_as_exact_as_a_place_for_each(count: int, steps: list[Any]) -> None:
    """Against one dictionary for each row, while slots are added, cleared and used again."""
    floors = [1] * count
    holders = Holders(8, floors, lambda slot, stamp: -stamp, lambda row: False)
    holders.grow(count)
    model: list[dict[int, int]] = [{} for _ in range(8)]
    for now, (step, row, slot) in enumerate(steps, 10):
        if step == "grow":
            count = min(16, count + slot)
            floors.extend([1] * (count - len(floors)))
            holders.grow(count)
            continue
        slot %= count
        if step == "touch":
            holders.touch(row, slot, now)
            model[row][slot] = now
        elif step == "forget":
            holders.touch(row, slot, 0)
            model[row][slot] = 0
        elif step == "clear":
            holders.clear(row)
            model[row] = {}
        elif step == "drop":
            holders.drop(slot)
            for one in model:
                one.pop(slot, None)
        else:
            floors[slot] = now - 3
        for at, known in enumerate(model):
            assert sorted(holders.of(at)) == sorted(s for s, stamp in known.items() if stamp > floors[s])
            for one in range(count):
                stamp = known.get(one, 0)
                if stamp > floors[one]:
                    assert holders.stamp(at, one) == stamp


def test_memory_does_not_go_with_the_number_of_backends() -> None:
    """Case B18, for fleets: 500 backends take no more than 16."""
    sizes = {count: Index(1 << 12, [1e6] * count).memory_bytes for count in (5, 16, 17, 64, 500, 4095)}
    assert max(sizes.values()) <= 1.01 * sizes[16]
    grown = Index(1 << 12, [1e6] * 3)
    for count in range(4, 501):
        grown.grow(count)
    assert grown.memory_bytes <= 1.01 * sizes[16]


def test_a_head_that_all_of_a_large_fleet_hold_is_known_of_every_one() -> None:
    """Many conversations, each on one of 300 backends, under one system prompt: the head has a line."""
    index = Index(1 << 15, [1e9] * 300)
    rand = random.Random(1)
    talks = [chain_of(*["s"] * 6, *[number] * 4) for number in range(300)]
    homes = list(range(300))
    rand.shuffle(homes)
    for talk, home in zip(talks, homes, strict=True):
        insert(index, home, talk)
    for number in (0, 150, 299):
        expected = [6] * 300
        expected[homes[number]] = 10
        assert index.held(talks[number]) == expected
        assert index.groups(talks[number]) == [(10, [homes[number]]), (6, list(range(300)))]


def test_without_a_line_four_of_a_blocks_holders_are_known() -> None:
    """With 1024 rows for 256 backends there are 64 lines, and none is taken from a row in use."""
    index = Index(1024, [1e9] * 256)
    chains = [chain_of(number) for number in range(80)]
    for slot in range(20):
        for chain in chains:
            insert(index, slot, chain)
    known = [sum(map(bool, index.held(chain))) for chain in chains]
    assert sorted(known) == [4] * 16 + [20] * 64
    narrow = chains[known.index(4)]
    assert index.held(narrow)[19], "the last one among them"
    left = next(slot for slot, held in enumerate(index.held(narrow)) if held)
    index.record_tokens(left, 1e8)
    insert(index, 100, narrow)
    assert (index.held(narrow)[left], index.held(narrow)[100]) == (0, 1), (
        "who is nearest to losing it goes first"
    )


def test_a_line_goes_over_from_who_no_longer_needs_it() -> None:
    """As many prompts again as there are lines, each asked of twenty backends: the first ones are left to four."""
    index = Index(1024, [1e9] * 256)
    generations = [[chain_of(name, number) for number in range(64)] for name in ("old", "new")]
    for chains in generations:
        for slot in range(20):
            for chain in chains:
                insert(index, slot, chain)
    old, new = ([sum(map(bool, index.held(chain))) for chain in chains] for chains in generations)
    assert new == [20] * 64
    assert old == [4] * 64


@pytest.mark.parametrize("many_lines", [0, 16_384])
def test_slots_are_added_while_it_runs_and_what_is_held_stays(
    monkeypatch: pytest.MonkeyPatch, many_lines: int
) -> None:
    """Whichever way lines become longer."""
    monkeypatch.setattr("stickyroute.routing.holders._MANY_LINES", many_lines)
    index = Index(1 << 10, [1e6] * 2)
    chain = chain_of(*range(9))
    insert(index, 1, chain[:5])
    for count in (3, 4, 5, 16, 17, 40, 500):
        index.grow(count)
        insert(index, count - 1, chain)
        found = index.held(chain)
        assert len(found) == count
        assert (found[0], found[1], found[count - 1]) == (0, 5, 9)
    assert [slot for slot, held in enumerate(index.held(chain)) if held] == [1, 2, 3, 4, 15, 16, 39, 499]
    index.grow(7)
    assert len(index.held(chain)) == 500, "never fewer"
    index.clear(499)
    assert index.held(chain)[499] == 0


def test_a_slot_that_another_backend_has_now_starts_empty_with_its_own_capacity() -> None:
    index = Index(1 << 10, [640.0] * 20)
    for slot in range(20):
        insert(index, slot, chain_of("head", "more"))
    index.clear(3)
    index.set_capacity(3, 64.0 * 100)
    assert index.held(chain_of("head", "more")) == [2] * 3 + [0] + [2] * 16
    for number in range(50):
        insert(index, 3, chain_of(number))
    assert index.held(chain_of(0))[3] == 1


@pytest.mark.parametrize("count", [4096, 65_535])
def test_there_is_an_end_to_it(count: int) -> None:
    with pytest.raises(ValueError, match="4095 backends"):
        Index(16, [1.0] * count)
    with pytest.raises(ValueError, match="4095 backends"):
        Index(16, []).grow(count)


def test_when_a_clock_runs_out_only_its_slot_is_forgotten() -> None:
    index = Index(1 << 8, [1e6] * 20)
    chain, own = chain_of("all", "of", "them"), chain_of("own")
    for slot in range(20):
        insert(index, slot, chain)
    index.insert(7, own, ends_of(own), 0.25)
    index.record_tokens(7, float(16 << 32))
    assert index.held(chain) == [3] * 7 + [0] + [3] * 12
    assert index.held(own) == [0] * 20
