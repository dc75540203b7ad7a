"""Where responses and sessions live: remembered by id, forgotten in the order of last use."""

from __future__ import annotations

from stickyroute.routing.residence import Residence


def test_what_was_noted_is_found_until_it_is_noted_elsewhere() -> None:
    residence = Residence(10)
    assert residence.find(b"response r") is None
    residence.note(b"response r", 3)
    residence.note(b"session r", 4)
    assert (residence.find(b"response r"), residence.find(b"session r")) == (3, 4)
    residence.note(b"response r", 0)
    assert residence.find(b"response r") == 0
    residence.forget(b"response r")
    residence.forget(b"response that never was")
    assert residence.find(b"response r") is None
    assert len(residence) == 1


def test_what_was_not_asked_for_the_longest_goes_first() -> None:
    residence = Residence(3)
    for slot, name in enumerate((b"a", b"b", b"c")):
        residence.note(name, slot)
    assert residence.find(b"a") == 0  # so b is the oldest now
    residence.note(b"d", 3)
    assert [residence.find(name) for name in (b"a", b"b", b"c", b"d")] == [0, None, 2, 3]


def test_it_never_grows_past_its_capacity() -> None:
    residence = Residence(100)
    for number in range(10_000):
        residence.note(b"%d" % number, number % 7)
    assert len(residence) == 100
    assert residence.find(b"9999") == 9999 % 7
