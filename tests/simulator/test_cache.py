import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickyroute.simulator.cache import BlockCache
from stickyroute.simulator.keys import block_keys, namespace, token_buffer
from tests.support.examples import at_least


def admit(cache, held, hit, tokens, must_fit=None):
    """Admission of a prompt, computed at once up to `tokens`."""
    if not cache.admit(held, hit, tokens, must_fit or tokens):
        return False
    cache.register(held, tokens)
    return True


def run(cache, keys, tokens):
    """One prompt from admission to release; what it found."""
    held = cache.open(keys)
    hit = cache.lookup(held, tokens)
    assert admit(cache, held, hit, tokens)
    cache.release(held)
    return hit


def test_only_full_blocks_hit_and_never_the_last_token():
    cache = BlockCache(blocks=11, block_size=4)
    keys = [1, 2, 3]
    assert run(cache, keys, 14) == 0
    assert run(cache, keys, 14) == 12  # three full blocks, the two tokens behind them have no key
    assert run(cache, keys, 12) == 8  # 12 tokens are exactly three blocks: the last one is computed again


def test_a_finished_prompt_stays_resident_but_counts_as_free():
    cache = BlockCache(blocks=11, block_size=4)
    held = cache.open([1, 2])
    assert admit(cache, held, 0, 8, 8)
    assert cache.usage == pytest.approx(0.2)  # 2 of 10: one of the 11 is the null block
    cache.release(held)
    assert cache.usage == 0.0
    assert cache.resident() == {1, 2}
    assert cache.evictable_tokens == 8


def test_eviction_takes_the_least_recently_used_prompt_from_its_tail():
    cache = BlockCache(blocks=7, block_size=4)
    run(cache, [1, 2, 3], 12)
    run(cache, [4, 5], 8)
    assert (
        run(cache, [1, 2, 3], 13) == 12
    )  # touched: now 4 and 5 are the older ones, and one block was never used
    run(cache, [6, 7], 8)
    assert cache.resident() == {1, 2, 3, 4, 6, 7}  # the blank one and 5, the tail of the older prompt
    run(cache, [8, 9], 8)
    assert cache.resident() == {1, 2, 6, 7, 8, 9}  # then its root, then the tail of the first


def test_blocks_in_use_are_never_evicted():
    cache = BlockCache(blocks=4, block_size=4)
    held = cache.open([1, 2])
    assert admit(cache, held, 0, 8, 8)
    other = cache.open([3, 4])
    assert not admit(cache, other, 0, 8, 8)
    assert admit(cache, other, 0, 4, 4)
    assert not cache.grow(other, 8)
    assert cache.resident() == {1, 2, 3}


def test_admission_asks_for_the_whole_prompt_and_counts_idle_hits_as_needed():
    cache = BlockCache(blocks=5, block_size=4)
    run(cache, [1, 2, 3], 12)
    held = cache.open([1, 2, 3, 4, 5])
    assert cache.lookup(held, 20) == 12
    assert not admit(cache, held, 12, 16, 20)  # three hits and two more blocks, four in all
    assert admit(cache, held, 12, 16, 16)


def test_two_prompts_share_what_is_in_use():
    cache = BlockCache(blocks=6, block_size=4)
    first, second = cache.open([1, 2]), cache.open([1, 9])
    assert admit(cache, first, 0, 8, 8)
    assert cache.lookup(second, 8) == 4
    assert admit(cache, second, 4, 8, 8)
    assert cache.used_tokens == 12
    cache.release(first)
    assert cache.used_tokens == 8  # 1 is still held by the second


def test_a_block_computed_twice_is_evicted_one_copy_at_a_time():
    cache = BlockCache(blocks=5, block_size=4)
    run(cache, [1, 2], 8)
    run(cache, [1, 2], 8)  # 1 hits, 2 is computed again into another block
    assert cache.evictable_tokens == 12
    run(cache, [7, 8], 8)  # the never used block, and the older copy of 2
    assert cache.resident() == {1, 2, 7, 8}
    run(cache, [9], 4)
    assert cache.resident() == {1, 7, 8, 9}


def test_every_change_is_told():
    log = []
    cache = BlockCache(
        blocks=4,
        block_size=4,
        on_stored=lambda held, first, last: log.append(("stored", held.source, held.keys[first:last])),
        on_removed=lambda key: log.append(("removed", key)),
    )
    held = cache.open([1, 2, 3], source="a")
    assert admit(cache, held, 0, 6, 6)
    assert cache.grow(held, 8)
    cache.register(held, 8)
    cache.release(held)
    run(cache, [5, 6], 8)
    assert log == [("stored", "a", [1]), ("stored", "a", [2]), ("removed", 2), ("stored", None, [5, 6])]


def test_clear_forgets_what_is_idle_and_what_is_in_use():
    cache = BlockCache(blocks=6, block_size=4)
    run(cache, [1], 4)
    held = cache.open([2, 3])
    assert admit(cache, held, 0, 4, 4)
    cache.clear()
    assert cache.resident() == set()
    assert cache.grow(held, 8)
    cache.register(held, 8)
    assert cache.resident() == set()  # its first block isn't one any more, so no later one can be
    cache.release(held)
    assert cache.free_blocks == 5
    assert cache.evictable_tokens == 0
    assert run(cache, [2], 4) == 0


def test_what_was_used_again_is_passed_over_however_often():
    cache = BlockCache(blocks=6, block_size=4)
    for _ in range(40):  # forty releases of the same two blocks: one entry each counts, the last
        run(cache, [1, 2], 9)
    run(cache, [3, 4], 8)
    assert cache.evictable_tokens == 16
    run(cache, [5, 6], 8)
    assert cache.resident() == {1, 3, 4, 5, 6}


@settings(max_examples=at_least(60))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans()), max_size=60))
def test_no_block_is_lost_and_a_prefix_of_a_resident_prompt_is_resident(operations):
    cache = BlockCache(blocks=24, block_size=4)
    held_open = []
    for prompt, tokens, finish in operations:
        keys = [hash((prompt, i)) for i in range(tokens // 4)]
        held = cache.open(keys)
        hit = cache.lookup(held, tokens)
        if admit(cache, held, hit, tokens, tokens):
            held_open.append(held)
        if finish and held_open:
            cache.release(held_open.pop(0))
        used = {block for one in held_open for block in one.blocks}
        assert cache.free_blocks + len(used) == 23
        for one in range(6):
            chain = [hash((one, i)) in cache.resident() for i in range(10)]
            assert chain == sorted(chain, reverse=True)
    for held in held_open:
        cache.release(held)
    assert cache.usage == 0.0


@settings(max_examples=at_least(80), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 26), st.sampled_from(["keep", "finish", "clear"])),
        max_size=80,
    )
)
def test_hits_and_evictions_are_those_of_a_plain_queue(operations):
    """Against a queue of keys without any shortcut: the same hits, the same admissions, the same resident
    keys."""
    cache = BlockCache(blocks=16, block_size=4)
    queue = [None] * 15  # keys of free blocks, the head first; None for a block without a key
    running = []  # (held, keys of its blocks, None for those without one)
    in_use = {}  # key -> references, of keys that hit
    for name, tokens, then in operations:
        keys = [hash((name, i)) for i in range(tokens // 4)]
        hits = []
        for key in keys[: (tokens - 1) // 4]:
            if key not in queue and key not in in_use:
                break
            hits.append(key)
        held = cache.open(keys)
        assert cache.lookup(held, tokens) == 4 * len(hits)
        need = -(-tokens // 4) - len(hits)
        fits = need + sum(key not in in_use for key in hits) <= len(queue)
        # A fully cached prompt computes its last block again: twins have tests of their own.
        if fits and len(hits) < len(keys) and (keys[len(hits)] in queue or keys[len(hits)] in in_use):
            continue
        assert admit(cache, held, 4 * len(hits), tokens) == fits
        if not fits:
            continue
        for key in hits:
            if key not in in_use:
                queue.remove(key)
            in_use[key] = in_use.get(key, 0) + 1
        del queue[:need]
        blocks = [*keys, *[None] * (-(-tokens // 4) - len(keys))]
        for key in blocks[len(hits) :]:
            if key is not None:
                in_use[key] = 1
        running.append((held, blocks))
        if then == "clear":
            cache.clear()
            queue = [None] * len(queue)
            in_use = {}
            break  # what is held across a clearing has a test of its own
        if then == "finish":
            held, blocks = running.pop(0)
            cache.release(held)
            for key in reversed(blocks):
                if key is None:
                    queue.insert(0, None)
                    continue
                in_use[key] -= 1
                if not in_use[key]:
                    del in_use[key]
                    queue.append(key)
        assert cache.resident() == {key for key in queue if key is not None} | set(in_use)
        assert cache.free_blocks == len(queue)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=80), st.integers(0, 80))
def test_the_keys_of_a_prefix_are_a_prefix_of_the_keys(tokens, cut):
    root = namespace("m")
    keys = block_keys(token_buffer(tokens), 16, root)
    assert len(keys) == len(tokens) // 16
    assert block_keys(token_buffer(tokens[:cut]), 16, root) == keys[: min(cut, len(tokens)) // 16]


def test_model_adapter_and_salt_keep_prompts_apart():
    tokens = token_buffer(range(32))
    roots = {
        namespace("m"),
        namespace("n"),
        namespace("m", "a"),
        namespace("m", "", "s"),
        namespace("m", "a", "s"),
    }
    assert len(roots) == 5
    assert len({tuple(block_keys(tokens, 16, root)) for root in roots}) == 5
    assert block_keys(tokens, 16, namespace("m"))[1] != block_keys(tokens[16:], 16, namespace("m"))[0]
