"""The cost of a backend, term by term, and that the quick sum is the sum of the terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.cost import costs_s, missing_tokens, prompt_tokens, terms
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.view import FleetView
from tests.routing.views import pool

ENDS = tuple(256 * (number + 1) for number in range(100))


def prompt(*names: int, key: int | None = 9, extra_bytes: int = 0) -> RequestKeys:
    """A block of 64 tokens for each name; equal beginnings of names are equal beginnings of prompts."""
    chain = [hash(names[: number + 1]) & (1 << 64) - 1 | 1 for number in range(len(names))]
    return RequestKeys(key, "test", chain, ENDS[: len(chain)], 256 * len(names) + extra_bytes)


def keep(view: FleetView, member: int, keys: RequestKeys) -> None:
    view.loads.index.insert(view.slots[member], keys.chain, keys.ends, 0.25)


def test_tokens_are_bytes_over_what_a_token_has_had_or_exact() -> None:
    view = pool([1])
    assert prompt_tokens(prompt(1, 2), view) == 128
    view.bytes_per_token = 2.0
    assert prompt_tokens(prompt(1, 2), view) == 256
    assert prompt_tokens(prompt(1, 2)._replace(prompt_tokens=99), view) == 99


def test_what_nobody_holds_is_to_be_computed_everywhere() -> None:
    assert missing_tokens(prompt(1, 2, 3), pool([1, 1]), 192.0) is None
    assert missing_tokens(RequestKeys(9, "test"), pool([1, 1]), 0.0) is None


def test_what_one_holds_the_others_have_to_compute() -> None:
    view = pool([1, 1, 1])
    keep(view, 1, prompt(1, 2))
    found = missing_tokens(prompt(1, 2, 3), view, 192.0)
    assert found is not None
    assert (found[0], list(found[1])) == ([192.0, 64.0, 192.0], [0, 2, 0])


def test_what_many_hold_hardly_counts_where_it_is_missing() -> None:
    """Three of four hold it: of 64 tokens the fourth is charged (1/3) ** 2."""
    view = pool([1] * 4)
    for member in range(3):
        keep(view, member, prompt(1))
    found = missing_tokens(prompt(1, 2), view, 128.0)
    assert found is not None
    assert found[0] == pytest.approx([64, 64, 64, 64 + 64 / 9])


def test_a_backend_that_is_not_trusted_holds_less() -> None:
    view = pool([1, 1])
    keep(view, 0, prompt(1, 2))
    view.loads.trust[0] = 0.5
    found = missing_tokens(prompt(1, 2), view, 128.0)
    assert found is not None
    assert found[0] == [64.0, 128.0]


def test_the_answer_before_counts_for_its_own_conversation() -> None:
    view = pool([1, 1])
    keep(view, 1, prompt(1, 2))
    view.loads.index.extend(1, prompt(1, 2).chain[-1], 50.0, 9)
    for key, expected in ((9, 14.0), (8, 64.0)):
        found = missing_tokens(prompt(1, 2, 3, key=key), view, 192.0)
        assert found is not None
        assert found[0][1] == expected


def test_every_term_by_its_name() -> None:
    """50 us a token; 20 ms for a request in flight, three of which are stopped by the prompt. Two requests a second,
    half the time busy: 65 ms until the queue is empty are 0.26 requests to delay."""
    view = pool([1, 1], loads=[3, 0])
    loads = view.loads
    loads.backlog_tokens[0] = 1000.0
    loads.arrivals_s, loads.busy, loads.stall = 2.0, 0.5, 0.03
    shown = terms(view, 0, 300.0)
    assert shown == pytest.approx((0.05, 0.015, 0.26 * 0.015, 0.06, 3 * 0.03 * 0.015))
    assert shown.cost_s == pytest.approx(sum(shown))


def test_a_fixed_kappa_is_a_flat_price() -> None:
    view = pool([1, 1])
    view.loads.backlog_tokens[0] = 1000.0
    view.loads.arrivals_s = 2.0
    view.loads.kappa.fixed = 3.0
    assert terms(view, 0, 300.0).again_s == pytest.approx(0.045)


def test_a_hit_stops_nobody() -> None:
    """Work where many decode is dear; nothing to compute there costs them nothing."""
    view = pool([1, 1], loads=[30, 0])
    view.loads.stall = 0.03
    assert terms(view, 0, 0.0).stall_s == 0.0
    assert terms(view, 0, 300.0).stall_s > 0.0
    assert terms(view, 1, 300.0).stall_s == 0.0


@given(
    weights=st.lists(st.integers(1, 3), min_size=2, max_size=5),
    seed=st.lists(st.floats(0, 1), min_size=40, max_size=40),
    kappa=st.none() | st.floats(0, 8),
    kept=st.sets(st.integers(0, 4)),
)
def test_the_quick_sum_is_the_sum_of_the_terms(
    weights: list[int], seed: list[float], kappa: float | None, kept: set[int]
) -> None:
    view = pool(weights, loads=[int(9 * part) for part in seed[: len(weights)]])
    loads = view.loads
    loads.kappa.fixed = kappa
    loads.arrivals_s, loads.busy = 10 * seed[35], seed[36]
    for slot in range(len(weights)):
        loads.backlog_tokens[slot] = 20_000 * seed[5 + slot]
        loads.token_s[slot] = 1e-5 + 1e-4 * seed[10 + slot]
        loads.trust[slot] = seed[25 + slot]
        loads.room[slot] = 0.1 + 0.9 * seed[20 + slot]
    loads.tight = True
    for member in kept:
        if member < len(weights):
            keep(view, member, prompt(*range(2 + member)))
    keys = prompt(*range(6), extra_bytes=100)
    tokens = prompt_tokens(keys, view)
    found = missing_tokens(keys, view, tokens)
    missing = [tokens] * len(weights) if found is None else found[0]
    quick = costs_s(view, tokens, None if found is None else missing)
    for member in range(len(weights)):
        assert quick[member] == pytest.approx(terms(view, member, missing[member], found is None).cost_s)
        assert 0 <= missing[member] <= tokens + 1e-6


def test_the_decision_worked_out_in_the_docs() -> None:
    """docs/routing.md: three backends, what each has waiting, holds and runs, and what each costs."""
    view = pool([1, 1, 1], loads=[5, 2, 1])
    loads = view.loads
    loads.decode_s, loads.arrivals_s, loads.busy, loads.stall = 0.01, 2.0, 0.5, 0.15 / 5.0
    for slot, tokens in enumerate((6000.0, 3000.0, 500.0)):
        loads.backlog_tokens[slot] = tokens
    missing = [200.0, 3400.0, 3400.0]
    assert [round(terms(view, member, missing[member]).cost_s, 3) for member in range(3)] == [
        0.374, 0.568, 0.343,
    ]  # fmt: skip
    loads.backlog_tokens[0] = 5000.0
    assert round(terms(view, 0, 200.0).cost_s, 3) == 0.322
