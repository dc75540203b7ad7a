"""What leases teach the fleet: rates, bytes a token, what is cached where and how far that is to be trusted."""

from __future__ import annotations

import random

import pytest

from stickyroute.fleet.sample import Sample
from stickyroute.openai.usage import Usage
from tests.fleet.leased import everybody, fleet, lease, prompt


def test_the_rate_of_each_backend_is_learned_from_first_tokens() -> None:
    """One computes 10,000 tokens a second as it was told, the other 4,000."""
    two = fleet()
    rand = random.Random(5)
    now_s = 0.0
    for number in range(300):
        now_s += 5.0
        tokens = rand.randrange(200, 6000)
        for slot, speed in ((0, 10_000.0), (1, 4_000.0)):
            one = lease(two, slot, prompt(f"{number} ", tokens), now_s)
            one.first_token(now_s + 0.02 + tokens / speed)
            one.release(now_s + 4.0)
    assert two.loads.token_s[0] == pytest.approx(1e-4, rel=0.05)
    assert two.loads.token_s[1] == pytest.approx(2.5e-4, rel=0.05)
    assert two.loads.kappa.value == pytest.approx(0.0, abs=0.1), "nobody ever waited"


def test_equal_backends_are_as_fast_as_each_other_whatever_noise_says() -> None:
    """So that a fleet at rest is the ring: a learned difference of some percent would send users to the better one."""
    four = fleet(4)
    rand, now_s = random.Random(3), 0.0
    for number in range(400):
        now_s += 1.0
        tokens = rand.randrange(200, 4000)
        held = lease(four, number % 4, prompt(f"{number}-", tokens), now_s)
        held.first_token(now_s + 0.02 + tokens / 20_000 * (0.8 + 0.4 * rand.random()))
        held.release(now_s + 0.5)
    speeds = list(four.loads.token_s)
    assert max(speeds) <= 1.02 * min(speeds)
    assert speeds[0] == pytest.approx(1 / 20_000, rel=0.1)


def test_kappa_rises_when_requests_queue() -> None:
    one = fleet(1)
    for burst in range(100):
        now_s = 10.0 * burst
        queue = [lease(one, 0, prompt(f"{burst} {n} ", 1000), now_s) for n in range(7)]
        for place, held in enumerate(queue, 1):
            held.first_token(now_s + 0.02 + 0.1 * place)
            held.release(now_s + 5)
    assert one.loads.kappa.value == pytest.approx(2.5, abs=0.5), "seven in a row wait for four in the mean"


def test_what_does_not_stream_teaches_nothing_of_first_tokens() -> None:
    one = fleet(1)
    for number in range(50):
        held = lease(one, 0, prompt(f"{number} ", 1000), 10.0 * number, streams=False)
        held.first_token(10.0 * number + 9)
        held.release(10.0 * number + 9)
    assert one.loads.token_s[0] == pytest.approx(1e-4)
    assert one.loads.kappa.value == 0


def test_bytes_per_token_are_learned_from_usage() -> None:
    """Chinese: 1,000 tokens that were taken for 750."""
    two = fleet()
    view = everybody(two).view
    for number in range(200):
        held = lease(two, 0, prompt(f"{number} ", 750), float(number))
        held.usage(Usage(1000, None, None), number + 0.5)
        held.release(number + 0.5)
    assert view.bytes_per_token == pytest.approx(3.0, rel=0.05)
    assert lease(two, 0, prompt("x", 750), 900.0).tokens == pytest.approx(1000, rel=0.05)


def test_of_very_many_requests_a_second_some_are_learned_from() -> None:
    """Each backend's second by itself; what is cached where is noted of all."""
    two = fleet()
    seen = []
    for number in range(80):
        turn = lease(two, 0, prompt(f"{number} ", 1000), 1.0 + number / 1000)
        turn.first_token(1.05 + number / 1000)
        turn.usage(Usage(500 if number else 1000, None, 10), 1.05 + number / 1000)
        turn.release(1.05 + number / 1000)
        seen.append(everybody(two).view.bytes_per_token)
    assert seen[0] < seen[20] < seen[31] == seen[-1]
    for slot, at_s in ((1, 1.1), (0, 2.1)):
        before = everybody(two).view.bytes_per_token
        lease(two, slot, prompt(f"{slot} ", 1000), at_s).usage(Usage(500, None, 10), at_s + 0.1)
        assert everybody(two).view.bytes_per_token > before
    assert lease(two, 0, prompt("79 ", 2000), 2.2).held_blocks == 4000 // 256


def test_the_first_prompts_say_more_of_the_text_than_where_learning_starts() -> None:
    one = fleet(1)
    view = everybody(one).view
    held = lease(one, 0, prompt("a ", 750), 0.0)
    held.usage(Usage(1000, None, None), 0.5)
    assert view.bytes_per_token == pytest.approx(3.0)
    held = lease(one, 0, prompt("b ", 750), 1.0)
    held.usage(Usage(750, None, None), 1.5)
    assert view.bytes_per_token == pytest.approx(3.5)


def test_what_is_cached_of_a_conversation_is_known_to_the_token_where_its_length_was_told() -> None:
    one = fleet(1)
    first = lease(one, 0, prompt("a ", 1000), 0.0)
    assert first.cached_tokens == 0.0
    first.first_token(0.1)
    first.usage(Usage(1234, 0, 56), 0.2)
    first.release(0.2)
    goes_on = lease(one, 0, prompt("a ", 1100), 1.0)
    assert goes_on.cached_tokens == 1234 + 56
    sent_again = lease(one, 0, prompt("a ", 1000), 2.0)
    assert sent_again.cached_tokens == 1234
    one.record_sample(0, Sample(block_size_tokens=32), 2.5)
    assert lease(one, 0, prompt("a ", 1000), 2.6).cached_tokens == 1216  # whole blocks of the engine's
    elsewhere = lease(one, 0, prompt("a ", 1100, key=6), 3.0)  # shares the prompt's blocks, not the rest
    assert elsewhere.cached_tokens == pytest.approx(elsewhere.held_tokens, abs=64)


def test_what_is_shared_ends_in_the_middle_of_the_first_block_that_differs() -> None:
    one = fleet(1)
    lease(one, 0, prompt("a ", 100), 0.0).first_token(0.1)  # a block of 64 tokens, and 36 in none
    shares = lease(one, 0, prompt("a ", 300, key=6), 1.0)
    assert shares.held_tokens == 64
    assert shares.cached_tokens == 64 + 32


def test_token_ids_are_counted_exactly() -> None:
    assert lease(fleet(), 0, prompt("ids ", 1000, exact=777), 0.0).missing_tokens == 777


def test_a_backend_that_does_not_have_what_it_should_is_trusted_less() -> None:
    two = fleet()
    for number in range(60):
        held = lease(two, 0, prompt("talk ", 2048), float(number))
        held.first_token(number + 0.1)
        held.usage(Usage(2048, 512, 10), number + 0.2)
        held.release(number + 0.2)
    assert two.loads.trust[0] == pytest.approx(0.25, abs=0.05)
    assert two.loads.trust[1] == 1.0
    assert lease(two, 0, prompt("talk ", 2048), 99.0).missing_tokens == pytest.approx(2048 * 0.75, rel=0.1)


def test_cached_tokens_that_are_not_reported_change_no_trust() -> None:
    two = fleet()
    for number in range(10):
        held = lease(two, 0, prompt("talk ", 2048), float(number))
        held.first_token(number + 0.1)
        held.usage(Usage(2048, None, 10), number + 0.2)
        held.release(number + 0.2)
    assert two.loads.trust[0] == 1.0


def test_what_a_running_sequence_costs_the_others_is_learned_from_pauses() -> None:
    """Steps of 10 ms and 1 ms for every sequence that runs."""
    one = fleet(1)
    rand = random.Random(7)
    before = one.loads.decode_s
    for burst in range(150):
        now_s = 100.0 * burst
        running = [lease(one, 0, prompt(f"{burst} {n} ", 100), now_s) for n in range(rand.randrange(1, 30))]
        for held in running:
            held.first_token(now_s + 0.1)
        took_s = 99 * (0.01 + 0.001 * len(running))
        for held in running:
            held.usage(Usage(100, 0, 100), now_s + 0.1 + took_s)
        for held in running:
            held.release(now_s + 0.1 + took_s)
    assert one.loads.answer_tokens == pytest.approx(100, rel=0.05)
    assert one.loads.decode_s > 3 * before


@pytest.mark.parametrize(
    ("first_s", "stay_s", "stall"), [(0.2, 8.0, 0.025), (0.1, 0.5, 0.2), (0.9, 1.0, 0.5)]
)
def test_a_pause_counts_by_what_it_is_of_an_answer(first_s: float, stay_s: float, stall: float) -> None:
    """As a longer wait for the first token: in proportion to either, half of it at most."""
    two = fleet()
    assert two.loads.stall == 0.0
    for number in range(300):
        held = lease(two, 0, prompt("a", 100), 10.0 * number)
        held.first_token(10.0 * number + first_s)
        held.release(10.0 * number + stay_s)
    assert two.loads.stall == pytest.approx(stall, rel=0.01)
