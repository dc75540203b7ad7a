"""Resident sets out of KV events, against a plain model, and against the caches of simulated engines."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.exact import Cleared, Removed, Resident, Stored, chain, scope
from stickyroute.simulator.cache import BlockCache
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.keys import block_keys, token_buffer
from stickyroute.simulator.profiles import DEMO

PLAIN = scope("", "")


class Heard:
    """A listener that knows what every backend should have, by what it was told."""

    def __init__(self) -> None:
        self.blocks: dict[int, set[int]] = {}
        self.doubted: dict[int, set[int]] = {}
        """What was there when events were missed: it is not said to be gone, and may be said to be there again."""
        self.emptied_slots: list[int] = []

    def held(self, slot: int, block: int) -> None:
        mine = self.blocks.setdefault(slot, set())
        assert block not in mine or block in self.doubted.get(slot, ())
        mine.add(block)

    def lost(self, slot: int, block: int) -> None:
        self.blocks[slot].remove(block)

    def emptied(self, slot: int) -> None:
        self.blocks[slot] = set()
        self.emptied_slots.append(slot)


def resident(*slots: int, limit: int = 10_000) -> tuple[Resident, Heard]:
    heard = Heard()
    return Resident(slots or (0,), heard, limit_blocks=limit, silence_s=10.0), heard


def prompt(tokens: list[int], first_hash: int = 100, size: int = 2, root: int = PLAIN) -> Stored:
    """A whole prompt's blocks as one event; the engine calls them `first_hash` and so on."""
    return Stored(range(first_hash, first_hash + len(tokens) // size), None, array("I", tokens), size, root)


def test_a_prefix_is_found_in_whole_blocks() -> None:
    held, _ = resident(3)
    held.apply(0, prompt([1, 2, 3, 4]))
    held.apply(0, Stored([102], 101, array("I", [5, 6]), 2, PLAIN))
    assert held.lookup(array("I", [1, 2, 3, 4, 5, 6, 7]), PLAIN) == {3: 6}
    assert held.lookup(array("I", [1, 2, 3, 4, 5]), PLAIN) == {3: 4}
    assert held.lookup(array("I", [3, 4]), PLAIN) == {3: 0}  # not at the start of a prompt
    assert held.lookup(array("I", [1, 2]), scope("law", "")) == {3: 0}
    held.apply(0, Removed([101]))
    assert held.lookup(array("I", [1, 2, 3, 4, 5, 6]), PLAIN) == {3: 2}
    held.apply(0, Cleared())
    assert held.lookup(array("I", [1, 2]), PLAIN) == {3: 0}
    assert held.blocks == 0


def test_our_names_do_not_depend_on_the_engine() -> None:
    held, _ = resident(0, 1)
    held.apply(0, prompt([1, 2, 3, 4], first_hash=100))
    held.apply(1, prompt([1, 2], first_hash=-7))
    assert held.blocks_of(1) < held.blocks_of(0) == set(chain(array("I", [1, 2, 3, 4]), 2, PLAIN))
    assert held.lookup(array("I", [1, 2, 3, 4]), PLAIN) == {0: 4, 1: 2}
    first, second = chain(array("I", [1, 2, 3, 4]), 2, PLAIN)
    assert (held.holders(first), held.holders(second), held.holders(5)) == ([0, 1], [0], [])


def test_backends_with_different_block_sizes() -> None:
    held, _ = resident(0, 1)
    held.apply(0, prompt([1, 2, 3, 4], size=4))
    held.apply(1, prompt([1, 2, 3, 4], size=1))
    assert held.lookup(array("I", [1, 2, 3]), PLAIN) == {0: 0, 1: 3}


def test_a_block_computed_twice_is_gone_when_both_are() -> None:
    held, heard = resident()
    held.apply(0, prompt([1, 2]))
    held.apply(0, prompt([1, 2]))
    held.apply(0, prompt([1, 2]))
    for left in (1, 1, 0, 0):
        held.apply(0, Removed([100]))
        assert held.blocks == left == len(heard.blocks[0])


def test_ranks_of_one_backend_hold_together() -> None:
    held, heard = resident(4, 4)
    for rank in (0, 1):
        held.restart(rank)
        held.apply(rank, prompt([1, 2]))
    assert len(heard.blocks[4]) == 1
    held.apply(0, Removed([100]))
    assert held.lookup(array("I", [1, 2]), PLAIN) == {4: 2}
    held.restart(1)
    assert heard.blocks[4] == set()
    assert heard.emptied_slots == []  # the other rank's cache may be full


def test_a_prefix_over_two_ranks_is_the_longer_of_both() -> None:
    held, _ = resident(0, 0)
    held.apply(0, prompt([1, 2, 3, 4]))
    held.apply(1, prompt([1, 2, 3, 4, 5, 6]))
    held.apply(1, Removed([100]))
    assert held.lookup(array("I", [1, 2, 3, 4, 5, 6]), PLAIN) == {0: 4}


def test_what_continues_an_unknown_block_is_left_out() -> None:
    held, _ = resident()
    held.restart(0)
    assert held.complete(0)
    held.apply(0, Stored([5], 4, array("I", [1, 2]), 2, PLAIN))
    assert held.blocks == 0
    assert not held.complete(0)


def test_hashes_that_identify_no_prefix_are_given_up() -> None:
    """SGLang before 0.5.9 hashes a page alone: equal pages at two places have one hash."""
    held, _ = resident()
    held.restart(0)
    held.confirm(0, 1.0)
    held.apply(0, Stored([5, 6, 5], None, array("I", [1, 2, 3, 4, 1, 2]), 2, PLAIN))
    assert not held.usable(0)
    assert not held.fresh(0, 1.0)
    held.apply(0, prompt([1, 2]))
    assert held.blocks == 0


def test_an_image_keeps_blocks_of_equal_tokens_apart() -> None:
    held, _ = resident()
    tokens = array("I", [1, 2, 3, 4])
    held.apply(0, Stored([5, 6], None, tokens, 2, PLAIN, [b"", b"a cat"]))
    held.apply(0, Stored([5, 7], None, tokens, 2, PLAIN, [b"", b"a dog"]))
    assert held.blocks == 3
    assert held.lookup(tokens, PLAIN) == {0: 2}


def test_the_number_of_blocks_is_bounded() -> None:
    held, _ = resident(0, 1, limit=5)
    held.restart(0)
    held.apply(0, prompt(list(range(8))))
    held.apply(1, prompt(list(range(8))))
    assert held.blocks == 5
    held.apply(0, Removed([100]))
    held.apply(0, prompt([9, 9], first_hash=7))
    assert held.blocks == 5
    assert (held.complete(0), held.complete(1)) == (True, False)


def test_fresh_as_long_as_every_rank_is_confirmed() -> None:
    held, _ = resident(0, 0, 1)
    assert not held.fresh(0, 0.0)
    held.confirm(0, 1.0)
    assert not held.fresh(0, 1.0)
    held.confirm(1, 5.0)
    assert held.fresh(0, 11.0)
    assert not held.fresh(0, 11.1)
    held.confirm(0, 12.0)
    held.doubt(1)
    assert not held.fresh(0, 12.0)
    assert not held.fresh(7, 0.0)  # without events


def test_forgotten_is_neither_complete_nor_held_against_the_backend() -> None:
    held, heard = resident()
    held.restart(0)
    held.apply(0, prompt([1, 2]))
    held.forget(0)
    assert (held.blocks, held.complete(0)) == (0, False)
    assert len(heard.blocks[0]) == 1  # we do not know that it is gone
    assert heard.emptied_slots == [0]


TOKENS = st.lists(st.integers(0, 2), max_size=8)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(
            TOKENS,
            st.lists(st.integers(0, 2), min_size=2, max_size=6).map(tuple),
            st.sampled_from(["clear", "forget"]),
        ),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_sets_are_those_of_a_plain_model(steps: list[tuple[int, object]]) -> None:
    """Three sources, two of them ranks of one backend. A list of tokens is stored, a tuple removed from its
    end."""
    held, heard = resident(0, 1, 1)
    model: list[list[tuple[int, ...]]] = [[], [], []]  # prefixes, one for each time they were stored
    for number, step in steps:
        mine = model[number]
        if isinstance(step, list):
            ends = range(2, len(step) + 1, 2)
            prefixes = [tuple(step[:end]) for end in ends]
            mine += prefixes
            hashes = [hash(prefix) for prefix in prefixes]
            held.apply(number, Stored(hashes, None, array("I", step[: 2 * len(ends)]), 2, PLAIN))
        elif isinstance(step, tuple):
            if step in mine:
                mine.remove(step)
            held.apply(number, Removed([hash(step)]))
        else:
            mine.clear()
            if step == "clear":
                held.apply(number, Cleared())
            else:
                slot = min(number, 1)
                heard.doubted.setdefault(slot, set()).update(heard.blocks.get(slot, ()))
                held.forget(number)
        for source in range(3):
            names = {chain(array("I", prefix), 2, PLAIN)[-1] for prefix in model[source]}
            assert held.blocks_of(source) == names
    assert held.blocks == sum(len(set(prefixes)) for prefixes in model)
    for asked in ([0, 0, 0, 0], [1, 2, 0, 1, 2, 2]):
        lengths = []
        for prefixes in model:
            length = 0
            while length < len(asked) and tuple(asked[: length + 2]) in prefixes:
                length += 2
            lengths.append(length)
        assert held.lookup(array("I", asked), PLAIN) == {0: lengths[0], 1: max(lengths[1:])}


def test_the_set_is_that_of_the_engine_after_any_workload() -> None:
    """Two hundred requests on one simulated vLLM, whose keys are made as our names are; twins included."""
    held, _ = resident()
    held.restart(0)
    size, twins = 16, 0

    names: set[int] = set()

    def on_stored(sequence: object, first: int, last: int) -> None:
        nonlocal twins
        keys, tokens = sequence.keys, sequence.source
        twins += sum(key in names for key in keys[first:last])
        names.update(keys[first:last])
        parent = keys[first - 1] if first else None
        held.apply(0, Stored(keys[first:last], parent, tokens[first * size : last * size], size, PLAIN))

    profile = replace(DEMO, blocks=300, block_size=size)

    def on_removed(key: int) -> None:
        names.discard(key)
        held.apply(0, Removed([key]))

    cache = BlockCache(300, size, on_stored, on_removed)
    engine = Engine(profile, cache)
    rand = random.Random(4)
    histories = [[rand.randrange(1000) for _ in range(100)] for _ in range(12)]
    now_s = 0.0
    for turn in range(200):
        history = rand.choice(histories)
        history += [rand.randrange(1000) for _ in range(rand.randrange(1, 120))]
        if len(history) > 1500:
            del history[100:]
        answer = [rand.randrange(1000) for _ in range(20)]
        tokens = token_buffer([*history, *answer])
        engine.submit(now_s, block_keys(tokens, size, PLAIN), len(history), 20, tokens)
        if turn % 3:
            now_s += 100.0
            engine.advance(now_s)
        history += answer
        assert held.blocks_of(0) == cache.resident()
    engine.advance(now_s + 1e6)
    assert held.blocks_of(0) == cache.resident()
    assert twins > 0
    for history in histories:
        tokens = token_buffer(history)
        keys = block_keys(tokens, size, PLAIN)
        hit = cache.lookup(cache.open(keys), len(tokens) + 1)
        assert held.lookup(tokens, PLAIN) == {0: hit}
