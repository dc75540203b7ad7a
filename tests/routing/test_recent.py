"""Where keys were sent last: a bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.recent import Recent


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=50))
def test_the_last_place_of_a_key_is_remembered_unless_another_took_its_row(
    sent: list[tuple[int, int]],
) -> None:
    recent = Recent(16)
    recent.grow(4)
    rows: dict[int, tuple[int, int]] = {}
    for now_s, (key, slot) in enumerate(sent):
        recent.touch(key, slot, float(now_s))
        rows[key % 16] = (key, slot)
    for key, _ in sent:
        for slot in range(4):
            assert recent.is_warm(key, slot, 1000.0) == (rows[key % 16] == (key, slot))
    assert sum(recent.requests) == len(sent)
    assert sum(recent.returns) <= len(sent)


def test_warm_is_a_matter_of_time_and_of_place() -> None:
    recent = Recent(1000)
    recent.grow(2)
    recent.touch(7, 1, 100.0)
    assert recent.is_warm(7, 1, 10.0)
    assert not recent.is_warm(7, 0, 10.0)
    recent.touch(8, 0, 109.0)
    assert recent.is_warm(7, 1, 10.0)
    recent.touch(8, 0, 110.0)
    assert not recent.is_warm(7, 1, 10.0)


def test_returns_are_further_turns_in_the_same_place() -> None:
    recent = Recent(1000)
    recent.grow(2)
    for slot in (0, 0, 1, 1, 0):
        recent.touch(7, slot, 1.0)
    assert list(recent.requests) == [3, 2]
    assert list(recent.returns) == [1, 1]
