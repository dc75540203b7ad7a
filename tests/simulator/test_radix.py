from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.radix import RadixCache
from tests.simulator.test_cache import admit
from tests.support.examples import at_least


def run(cache, keys, tokens=None):
    """One prompt from admission to release; what it found."""
    tokens = tokens or len(keys)
    held = cache.open(keys)
    hit = cache.lookup(held, tokens)
    assert admit(cache, held, hit, tokens)
    cache.release(held)
    return hit


def chain(*names):
    """Chained keys: equal exactly when everything before is equal too."""
    return [hash(names[: i + 1]) for i in range(len(names))]


def test_every_token_counts_but_the_last():
    cache = RadixCache(100)
    assert run(cache, chain(*"abcdef")) == 0
    assert run(cache, chain(*"abcdef")) == 5
    assert run(cache, chain(*"abcdefg")) == 6
    assert run(cache, chain(*"abcxyz")) == 3


def test_pages_floor_what_is_found():
    cache = RadixCache(100, block_size=4)
    assert run(cache, chain(*"abc"), tokens=14) == 0
    assert run(cache, chain(*"abc"), tokens=14) == 12
    assert run(cache, chain(*"abc"), tokens=12) == 8


def test_a_prompt_is_a_hit_while_it_runs_its_answer_only_when_it_ended():
    cache = RadixCache(100)
    held = cache.open(chain(*"abcdefgh"))
    assert admit(cache, held, 0, 4)
    assert cache.lookup(cache.open(chain(*"abcdx")), 5) == 4
    assert cache.grow(held, 7)
    cache.register(held, 7, answering=True)
    assert cache.lookup(cache.open(chain(*"abcdefgh")), 8) == 4
    cache.register(held, 7)
    cache.release(held)
    assert cache.lookup(cache.open(chain(*"abcdefgh")), 8) == 7


def test_what_two_compute_at_once_is_kept_once():
    cache = RadixCache(100)
    first, second = cache.open(chain(*"abcdef")), cache.open(chain(*"abcdef"))
    assert cache.admit(first, 0, 6, 6)
    assert cache.admit(second, 0, 6, 6)
    cache.register(first, 6)
    cache.register(second, 6)
    cache.release(first)
    cache.release(second)
    assert cache.evictable_tokens == 6
    assert cache.used_tokens == 0


def test_whole_leaves_go_first_the_one_longest_unused():
    removed = []
    cache = RadixCache(12, on_removed=removed.append)
    run(cache, chain(*"rooabc"))
    run(cache, chain(*"roodef"))  # the tree: roo -> abc, def
    run(cache, chain(*"rooabcx"))  # abc is used again, x hangs below it: ten tokens in all
    assert cache.evictable_tokens == 10
    run(cache, chain(*"1234"))
    assert removed == chain(*"roodef")[3:]  # all three pages of the leaf, though two would have been enough
    assert cache.lookup(cache.open(chain(*"rooabcx")), 8) == 7


def test_a_parent_is_evicted_after_its_last_child():
    removed = []
    cache = RadixCache(8, on_removed=removed.append)
    run(cache, chain(*"abcd"))
    run(cache, chain(*"abxy"))
    run(cache, chain(*"12345678"))
    assert set(removed) == {*chain(*"abcd"), *chain(*"abxy")}
    assert removed[-2:] == chain(*"ab")


def test_locked_paths_stay():
    cache = RadixCache(8)
    held = cache.open(chain(*"abcdef"))
    assert admit(cache, held, 0, 6)
    other = cache.open(chain(*"xyz"))
    assert not cache.admit(other, 0, 3, 3)
    assert cache.usage == pytest.approx(8 / 8)  # six, and two reserved for its answer
    cache.release(held)
    assert cache.usage == 0.0
    assert cache.admit(other, 0, 3, 3)


def test_clear_keeps_what_is_locked():
    cache = RadixCache(64)
    run(cache, chain(*"xyz"))
    held = cache.open(chain(*"abcdef"))
    assert admit(cache, held, 0, 6)
    cache.clear()
    assert cache.resident() == set(chain(*"abcdef"))
    cache.release(held)


def test_an_engine_runs_on_it():
    engine = Engine(replace(DEMO, sequences=8), RadixCache(600))
    prompts = [[hash((name, i)) for i in range(150)] for name in range(5)]
    sequences = []
    for turn in range(20):
        engine.advance(turn * 0.05)
        sequences.append(engine.submit(turn * 0.05, prompts[turn * turn % 5], 100, 50))
    engine.advance(1e9)
    assert all(sequence.done and sequence.generated == 50 for sequence in sequences)
    assert engine.counters.hits > 0
    assert engine.cache.usage == 0.0


@settings(max_examples=at_least(60))
@given(st.lists(st.tuples(st.text(alphabet="ab", min_size=1, max_size=12), st.booleans()), max_size=50))
def test_no_token_is_lost(operations):
    cache = RadixCache(30)
    running = []
    for text, finish in operations:
        held = cache.open(chain(*text))
        if admit(cache, held, cache.lookup(held, len(text)), len(text)):
            running.append(held)
        if finish and running:
            cache.release(running.pop(0))
        in_tree = len(cache.resident())
        own = sum(held.room_tokens - held.registered for held in running)
        assert cache.evictable_tokens <= in_tree
        assert cache.used_tokens == in_tree - cache.evictable_tokens + own
        for one in running:
            assert set(one.keys[: one.registered]) <= cache.resident()
    for held in running:
        cache.release(held)
    assert cache.used_tokens == 0
    assert cache.evictable_tokens == len(cache.resident())
