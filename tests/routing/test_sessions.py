"""Session memory: of fixed size, forgets the longest unused, and tells a conversation from a common opening."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stickyroute.routing.sessions import Sessions
from tests.routing.views import spread
from tests.support.traced import traced_bytes

WORDS = st.integers(0, 2**64 - 1)


def test_a_turn_is_remembered_with_its_key() -> None:
    sessions = Sessions(64)
    assert sessions.find(5) is None
    sessions.remember(5, 77)
    assert sessions.find(5) == sessions.follow(5) == 77
    assert len(sessions) == 1


@given(turn=WORDS, key=WORDS)
def test_any_word_may_be_a_turn_and_a_key(turn: int, key: int) -> None:
    sessions = Sessions(1)
    assert sessions.find(turn) is None
    sessions.remember(turn, key)
    assert sessions.find(turn) == key


def test_a_known_turn_keeps_its_key() -> None:
    sessions = Sessions(64)
    sessions.remember(5, 1)
    sessions.remember(5, 2)
    assert sessions.find(5) == 1
    assert len(sessions) == 1


def test_an_opening_of_many_conversations_is_no_conversation() -> None:
    """Regenerating and branching a few times is one; a button that sends the same words for everybody is not."""
    sessions = Sessions(64)
    sessions.remember(5, 77)
    assert [sessions.follow(5) for _ in range(6)] == [77, 77, 77, 77, None, None]
    assert sessions.find(5) == 77, "the same request again still goes home"


def test_of_four_places_the_longest_unused_is_given_away() -> None:
    """Case B24: a live session keeps its home while used."""
    sessions = Sessions(4)
    for turn in (1, 2, 3, 4):
        sessions.remember(turn, turn * 10)
    assert sessions.find(1) == 10
    sessions.remember(5, 50)
    assert [sessions.find(turn) for turn in (1, 2, 3, 4, 5)] == [10, None, 30, 40, 50]


def test_a_session_in_use_outlives_any_number_of_others() -> None:
    """Case B24: fifteen times as many as fit come and go, each round fewer than fit."""
    sessions = Sessions(1024)
    turns = spread(15_000)
    live = 123_456_789
    sessions.remember(live, 42)
    for start in range(0, len(turns), 64):
        for turn in turns[start : start + 64]:
            sessions.remember(turn, 1)
        assert sessions.find(live) == 42
    assert len(sessions) == sessions.capacity == 1024


def test_memory_is_that_of_an_empty_one() -> None:
    """Cases B18, B24: flat over any number of sessions."""
    turns = spread(4000)
    tracemalloc.start()
    try:
        sessions = Sessions(1 << 9)
        empty = traced_bytes(sys.modules[Sessions.__module__], sys.modules[__name__])
        for turn in turns:
            sessions.remember(turn, turn)
            sessions.follow(turn)
        full = traced_bytes(sys.modules[Sessions.__module__], sys.modules[__name__])
    finally:
        tracemalloc.stop()
    assert empty > 21 << 9
    assert full - empty < 1000


@pytest.mark.parametrize(("entries", "capacity"), [(1, 4), (4, 4), (5, 8), (1000, 1024), (1024, 1024)])
def test_the_size_is_rounded_up_to_a_power_of_two(entries: int, capacity: int) -> None:
    assert Sessions(entries).capacity == capacity
    assert len(Sessions(entries)) == 0


def test_a_table_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Sessions(0)


class AgainstADictionary(RuleBasedStateMachine):
    """A table of four, in which everything is in one bucket: exactly the four used last are known."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions(4)
        self.known: dict[int, int] = {}  # the longest unused first

    def _use(self, turn: int) -> int | None:
        if turn in self.known:
            self.known[turn] = self.known.pop(turn)
        return self.known.get(turn)

    @rule(turn=st.integers(0, 7), key=st.integers(0, 99))
    def remember(self, turn: int, key: int) -> None:
        self.sessions.remember(turn, key)
        if self._use(turn) is None:
            if len(self.known) == 4:
                del self.known[next(iter(self.known))]
            self.known[turn] = key

    @rule(turn=st.integers(0, 7))
    def find(self, turn: int) -> None:
        assert self.sessions.find(turn) == self._use(turn)

    @invariant()
    def counts(self) -> None:
        assert len(self.sessions) == len(self.known)


test_against_a_dictionary: Any = AgainstADictionary.TestCase
