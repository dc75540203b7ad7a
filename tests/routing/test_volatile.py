"""What is masked in anchors: clocks, dates, UUIDs and long numbers, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stickyroute.routing.volatile import LONGEST, has_volatile, masked

VOLATILE = [
    "2026-11-29T10:15:03.123456Z",
    "2026-11-29T10:15:03+00:00",
    "2026-11-29 10:15:03",
    "2026-11-29",
    "2026/1/2 9:05 PM",
    "11/29/2026, 10:15:03 AM",
    "29.11.2026",
    "29-11-2026",
    "10:15",
    "9:59:01 UTC",
    "1764411303",
    "1764411303.25",
    "1764411303123",
    "20261129T101503Z",
    "20261129",
    "123e4567-e89b-12d3-a456-426614174000",
    "00000000-0000-0000-0000-000000000000",
    "ABCDEF01-ABCD-ABCD-ABCD-ABCDEF012345",
]
LASTING = [
    "",
    "no digits at all",
    "item 17 of 45 costs 12.50",
    "2026",
    "1234567",
    "version 1.2.3",
    "10.0.0.11",
    "127.0.0.1:8080",
    "16:9",
    "0x7f3a-aa",
    "a-beef-cafe-dead-b",
    "-----------------",
    "v12:30b",
]


@pytest.mark.parametrize("span", VOLATILE)
def test_a_volatile_span_is_one_byte_wherever_it_stands(span: str) -> None:
    for before, after in (("", ""), ("now: ", " and then"), ("(", ")"), ("\n", ",\n"), ('"', '"')):
        text = f"{before}{span}{after}".encode()
        assert masked(text) == f"{before}\0{after}".encode()
        assert has_volatile(text, len(text))
        assert has_volatile(text, len(before) + 1)
        assert not has_volatile(text, len(before)), "it begins where the looked-at part ends"


@pytest.mark.parametrize("text", LASTING)
def test_what_is_no_volatile_span_stays(text: str) -> None:
    assert masked(text.encode()) == text.encode()
    assert not has_volatile(text.encode(), len(text))


def test_every_span_of_a_text_is_masked() -> None:
    text = " | ".join(VOLATILE).encode()
    assert masked(text) == b" | ".join([b"\0"] * len(VOLATILE))


def test_spans_of_different_length_leave_the_same() -> None:
    texts = [
        f"at {clock} in {zone}".encode()
        for clock in ("9:59", "10:00", "10:00:01", "1764411303")
        for zone in ("7", "7")
    ]
    assert {masked(text) for text in texts} == {b"at \0 in 7"}


@example(b"0:00")
@given(st.binary(max_size=80) | st.text("0123456789-:/. TZabf", max_size=60).map(str.encode))
def test_masking_finds_something_exactly_where_looking_does(text: bytes) -> None:
    """Any bytes; and what was masked has nothing left to mask that stood whole in it."""
    assert (masked(text) != text) == has_volatile(text, len(text))
    assert len(masked(text)) <= len(text)


@given(
    span=st.sampled_from(VOLATILE),
    before=st.text("abc xyz\n", max_size=20),
    after=st.text("abc xyz\n", max_size=100),
)
def test_a_span_that_begins_before_the_end_is_seen_whole(span: str, before: str, after: str) -> None:
    text = f"{before} {span} {after}".encode()
    for end in range(len(before) + 2, len(text)):
        assert has_volatile(text[: end + LONGEST], end)
