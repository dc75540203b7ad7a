"""Stories of one engine, with the arithmetic in the comments: a step costs 1 s, and 0.1 s for a prefill
token."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stickyroute.simulator.engine import Engine
from stickyroute.simulator.profiles import Profile
from stickyroute.simulator.timing import StepTime
from tests.support.examples import at_least

SLOW = Profile(
    name="slow",
    time=StepTime(base_s=1.0, prefill_token_s=0.1, decode_sequence_s=0.0),
    blocks=101,
    block_size=4,
    batched_tokens=20,
    sequences=4,
    context_tokens=400,
    async_scheduling=False,
)


def keys(name, tokens):
    return [hash((name, i)) for i in range(tokens // 4)]


def times(engine, until=1e9):
    return [(round(done.time_s, 6), len(done.first), len(done.finished)) for done in engine.advance(until)]


def test_one_request_alone():
    engine = Engine(SLOW)
    sequence = engine.submit(0.0, keys("a", 13), 10, 3)
    assert engine.next_step_s == 2.0  # 1 + 10 x 0.1
    assert engine.advance(1.9) == []
    assert times(engine) == [(2.0, 1, 0), (4.0, 0, 1)]  # two more tokens, a second each
    assert (sequence.first_token_s, sequence.finished_s, sequence.generated) == (2.0, 4.0, 3)
    assert engine.next_step_s == math.inf
    assert engine.busy_s == 4.0
    assert engine.steps == 3


def test_the_answer_is_cached_too_except_its_last_token():
    engine = Engine(SLOW)
    engine.submit(0.0, keys("a", 16), 10, 6)
    engine.advance(100.0)
    assert engine.cache.resident() == set(keys("a", 12))  # 15 tokens computed: three full blocks of four
    again = engine.submit(100.0, keys("a", 16), 16, 1)
    engine.advance(200.0)
    assert again.cached_tokens == 12
    assert engine.counters.queries == 26
    assert engine.counters.hits == 12


def test_a_long_prompt_is_cut_into_chunks_and_decodes_go_along():
    engine = Engine(SLOW, trace=True)
    first = engine.submit(0.0, keys("a", 104), 4, 100)
    engine.advance(1.4)
    long = engine.submit(1.5, keys("b", 32), 30, 2)
    # The step that runs ends at 2.4. Then 19 of 30 tokens (the budget is 20, one is the decode's), then 11.
    done = engine.advance(7.5)
    assert [round(one.time_s, 6) for one in done] == [2.4, 5.3, 7.4]
    assert [len(one.tokens) for one in done] == [1, 1, 2]
    assert long.first_token_s == pytest.approx(7.4)
    assert not first.done


def test_prompts_go_first_where_they_do():
    engine = Engine(SLOW, trace=True, prefill_first=True)
    first = engine.submit(0.0, keys("a", 104), 4, 100)
    engine.advance(1.4)
    long = engine.submit(1.5, keys("b", 32), 30, 2)
    # The decode step that runs ends at 2.4. Then prompts only: 20 of 30 tokens in 3 s, 10 in 2 s. Then both decode.
    done = engine.advance(8.5)
    assert [round(one.time_s, 6) for one in done] == [2.4, 5.4, 7.4, 8.4]
    assert [len(one.tokens) for one in done] == [1, 0, 1, 2]
    assert long.first_token_s == pytest.approx(7.4)
    assert long.done
    assert not first.done


def test_prompts_that_do_not_fit_let_the_others_decode():
    engine = Engine(replace(SLOW, blocks=27), trace=True, prefill_first=True)
    first = engine.submit(0.0, keys("a", 80), 60, 20)
    second = engine.submit(0.0, keys("b", 60), 56, 4)
    engine.advance(1e9)
    assert first.finished_s < second.first_token_s
    assert engine.counters.preemptions == 0


def test_planning_ahead_makes_a_new_request_wait_one_step_more():
    plain, ahead = Engine(SLOW), Engine(replace(SLOW, async_scheduling=True))
    firsts = []
    for engine in (plain, ahead):
        engine.submit(0.0, [], 10, 50)
        engine.advance(2.5)
        late = engine.submit(2.5, [], 10, 1)
        engine.advance(100.0)
        firsts.append(late.first_token_s)
    assert firsts == [5.0, 6.0]  # in the step from 3 to 5, or after the one already planned from 3 to 4


def test_a_request_waits_for_a_place_and_for_blocks():
    engine = Engine(replace(SLOW, sequences=2))
    for name in "abc":
        engine.submit(0.0, keys(name, 8), 4, 4)
    engine.advance(1.4)
    assert (engine.running, engine.waiting) == (2, 1)
    engine.advance(100.0)
    assert (engine.running, engine.waiting) == (0, 0)

    engine = Engine(replace(SLOW, blocks=6))
    engine.submit(0.0, keys("a", 16), 12, 4)
    second = engine.submit(0.0, keys("b", 16), 12, 4)
    engine.advance(2.2)
    assert (engine.running, engine.waiting) == (
        1,
        1,
    )  # three of five blocks are taken, the second needs three
    assert engine.waiting_uncached_tokens == 12
    engine.advance(100.0)
    assert second.done


def test_the_youngest_is_preempted_and_computes_again():
    engine = Engine(replace(SLOW, blocks=6))
    old = engine.submit(0.0, keys("a", 16), 8, 8)
    young = engine.submit(0.0, keys("b", 16), 8, 8)
    engine.advance(100.0)
    assert old.done
    assert young.done
    assert engine.counters.preemptions == young.preemptions == 1
    assert old.preemptions == 0
    assert old.finished_s < young.finished_s
    assert young.generated == 8
    assert engine.counters.generated == 16  # no token twice
    assert engine.counters.queries == 16  # a second admission is not counted as a query
    assert engine.cache.usage == 0.0


def test_identical_prompts_at_once_share_blocks_as_soon_as_they_are_planned():
    engine = Engine(SLOW)
    engine.submit(0.0, keys("x", 4), 4, 1)
    first = engine.submit(0.0, keys("a", 12), 9, 1)
    second = engine.submit(0.0, keys("a", 12), 9, 1)
    engine.advance(100.0)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert first.first_token_s == second.first_token_s


def test_abort_frees_at_once_wherever_the_request_is():
    engine = Engine(replace(SLOW, sequences=1))
    running = engine.submit(0.0, keys("a", 40), 8, 30)
    waiting = engine.submit(0.0, keys("b", 40), 8, 30)
    engine.advance(5.0)
    engine.abort(waiting)
    assert (engine.running, engine.waiting) == (1, 0)
    engine.abort(running)
    engine.abort(running)
    assert (engine.running, engine.cache.usage) == (0, 0.0)
    engine.advance(100.0)
    assert engine.next_step_s == math.inf
    assert running.finished_s == 0.0


def test_an_embedding_is_a_prompt_without_an_answer():
    engine = Engine(SLOW)
    sequence = engine.submit(0.0, keys("a", 8), 8, 0)
    (done,) = engine.advance(math.inf)
    assert (done.first, done.finished) == ([], [sequence])
    assert engine.counters.generated == 0


def test_advance_can_stop_where_somebody_ends():
    engine = Engine(SLOW)
    engine.submit(0.0, [], 4, 2)
    engine.submit(0.0, [], 4, 9)
    # Alone until 1.4, then the second joins: the first token of each, and with the second step the first one
    # ends.
    assert [len(done.finished) for done in engine.advance(100.0, stop_at_finish=True)] == [0, 1]
    assert engine.next_step_s < 100.0


def test_what_cannot_be_is_refused():
    engine = Engine(SLOW)
    engine.submit(0.0, [], 4, 2)
    with pytest.raises(ValueError, match="advance"):
        engine.submit(50.0, [], 4, 2)
    with pytest.raises(ValueError, match="do not fit"):
        engine.submit(0.0, [], 399, 2)
    with pytest.raises(ValueError, match="never fit the cache"):
        Engine(replace(SLOW, blocks=10)).submit(0.0, [], 35, 2)


def test_a_slowed_engine_takes_longer():
    engine = Engine(SLOW)
    engine.slowdown = 3.0
    engine.submit(0.0, [], 10, 1)
    assert times(engine) == [(6.0, 1, 1)]


@settings(max_examples=at_least(50), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 8), st.integers(0, 3), st.integers(1, 60), st.integers(0, 40), st.integers(0, 9)
        ),
        max_size=25,
    ),
    st.booleans(),
    st.booleans(),
)
def test_everything_ends_and_nothing_stays_behind(requests, ahead, prefill_first):
    """Whatever arrives, leaves or is preempted: every sequence ends with its tokens, and every block comes
    back."""
    profile = replace(SLOW, blocks=27, async_scheduling=ahead)
    engine = Engine(profile, trace=True, prefill_first=prefill_first)
    now_s = 0.0
    sequences = []
    aborted = []
    tokens = {}

    def count(done):
        for one in done:
            for sequence in one.tokens:
                tokens[sequence] = tokens.get(sequence, 0) + 1

    for gap_s, name, prompt, answer, leaves in requests:
        now_s += gap_s
        count(engine.advance(now_s))
        sequence = engine.submit(now_s, keys(name, prompt + answer), prompt, answer)
        if leaves == 0 and sequences:
            aborted.append(sequences.pop())
            engine.abort(aborted[-1])
        sequences.append(sequence)
    count(engine.advance(1e9))
    for sequence in sequences:
        assert sequence.done
        assert sequence.generated == sequence.output_tokens == tokens.get(sequence, 0)
        if sequence.output_tokens:
            assert sequence.arrived_s < sequence.first_token_s <= sequence.finished_s
    assert (engine.running, engine.waiting, engine.cache.usage) == (0, 0, 0.0)
    assert engine.next_step_s == math.inf
    assert engine.cache.free_blocks == 26
