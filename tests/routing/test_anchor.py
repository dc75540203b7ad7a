"""The anchor: past what everybody has, before what makes one request; steady, masked, of bounded cost."""

from __future__ import annotations

import hashlib
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute import defaults
from stickyroute.routing.anchor import Anchors
from stickyroute.routing.prefix import Prefixes
from tests.support.traced import traced_bytes

PREFIXES = Prefixes(defaults.PREFIX_BLOCK_BYTES, defaults.PREFIX_PROMPT_BYTES)
ROOT = 7
EIGHT = tuple(range(8))
HALF_LIFE = 256  # requests: short, so that tests are


LETTERS = b"abcdefghijklmnopqrstuvwxyz ,.\n?!" * 8


def words(seed: object, size_bytes: int) -> bytes:
    """Text that differs from the first bytes on."""
    return hashlib.shake_128(repr(seed).encode()).digest(size_bytes).translate(LETTERS)


HEAD = words("head", 3000)


class Seen:
    """Anchors, fed with texts."""

    def __init__(
        self,
        cells: int = defaults.PREFIX_ANCHOR_CELLS,
        masked_bytes: int = defaults.PREFIX_MASKED_BYTES,
        pool: tuple[int, ...] = EIGHT,
    ) -> None:
        self.anchors = Anchors(PREFIXES, cells, masked_bytes, HALF_LIFE)
        self.pool = pool

    def find(self, text: bytes, root: int = ROOT) -> int:
        return self.shared(text, root)[0]

    def shared(self, text: bytes, root: int = ROOT) -> tuple[int, bool]:
        self.anchors.record(self.pool)
        return self.anchors.find(text, PREFIXES.chain(text, root), root, self.pool)

    def homes(self, texts: Iterable[bytes]) -> list[int]:
        return [self.find(text) for text in texts]


def strangers(count: int, size_bytes: int = 2000, head: bytes = HEAD, name: str = "") -> list[bytes]:
    return [head + words((name, number), size_bytes) for number in range(count)]


# The rule.


@given(
    backends=st.integers(2, 64),
    blocks=st.integers(1, 32),
    own_bytes=st.integers(300, 3000),
    count=st.integers(1, 60),
)
def test_a_common_head_ties_three_strangers_together_and_never_more(
    backends: int, blocks: int, own_bytes: int, count: int
) -> None:
    """From the first request on, with no other traffic, whatever the size of the fleet."""
    seen = Seen(pool=tuple(range(backends)))
    places = Counter(seen.homes(strangers(count, own_bytes, words("head", 256 * blocks))))
    assert places.most_common(1)[0][1] <= 3
    assert len(places) >= count - 2
    if count > 1:
        assert places.most_common(1)[0][1] >= 2, "two that begin alike may belong together"


@given(backends=st.integers(2, 8), seed=st.integers(0, 2**32))
def test_documents_have_one_place_each_once_there_were_some_requests(backends: int, seed: int) -> None:
    """Eight documents a backend, which anybody asks about: what looked common by chance at first soon does not."""
    seen = Seen(pool=tuple(range(backends)))
    rand = random.Random(seed)
    documents = strangers(8 * backends, 3000, head=HEAD[:600])
    places: dict[int, set[int]] = {}
    for number in range(60 * backends):
        chosen = rand.randrange(len(documents))
        place = seen.find(documents[chosen] + words(("question", number), 400))
        if number >= 40 * backends:
            places.setdefault(chosen, set()).add(place)
    assert all(len(found) == 1 for found in places.values())
    found = set().union(*places.values())
    assert len(found) == len(places)


def test_a_head_that_everybody_has_is_no_anchor() -> None:
    """Mooncake's conversations: every request has the same first 2 KB."""
    seen = Seen()
    head = words("mooncake", 2048)
    anchors = seen.homes(strangers(400, head=head))
    after = anchors[20:]
    assert len(set(after)) == len(after), "each stranger has a place of its own"
    first = PREFIXES.chain(head + words(("", 399), 2000), ROOT)
    assert anchors[-1] == first[8], "that of the first block after the head"


def test_conversations_keep_their_place_as_they_grow() -> None:
    seen = Seen()
    talks = strangers(40)
    seen.homes(strangers(100, name="others"))
    places = seen.homes(talks)
    assert len(set(places)) == 40
    for turn in range(5):
        talks = [talk + words((turn, number), 900) for number, talk in enumerate(talks)]
        assert seen.homes(talks) == places


def test_a_document_keeps_its_place_whatever_is_asked_about_it() -> None:
    seen = Seen()
    documents = strangers(40, 6000)
    rand = random.Random(3)
    places: dict[int, set[int]] = {}
    for number in range(1200):
        chosen = rand.randrange(40)
        anchor = seen.find(documents[chosen] + words(("question", number), 500))
        if number >= 200:
            places.setdefault(chosen, set()).add(anchor)
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 40


def test_a_document_that_carries_too_much_is_left_behind_too() -> None:
    """Half of all requests ask about one document: with eight backends that is four backends' work."""
    seen = Seen()
    rare = strangers(40, 6000)
    hot = HEAD + words("hot", 6000)
    rand = random.Random(3)
    hot_places, rare_places = set(), set()
    for number in range(1200):
        question = words(("question", number), 1500)
        if rand.random() < 0.5:
            place = seen.find(hot + question)
            if number > 400:
                hot_places.add(place)
        else:
            place = seen.find(rand.choice(rare) + question)
            if number > 400:
                rare_places.add(place)
    assert len(hot_places) > 300
    assert len(rare_places) == 40


@pytest.mark.parametrize(("backends", "common"), [(1, False), (2, True), (8, True), (64, True)])
def test_one_backend_has_nothing_to_spread(backends: int, common: bool) -> None:
    seen = Seen(pool=tuple(range(backends)))
    anchors = seen.homes(strangers(300))
    assert (len(set(anchors[50:])) > 200) is common


def test_the_share_decides_and_two_shares_of_hysteresis_lie_between() -> None:
    """Eight backends: 1/16 of traffic is the threshold, so a block becomes common above 1/8, rare below 1/32."""
    seen = Seen()
    ours = words("ours", 2000)
    first = PREFIXES.chain(ours, ROOT)[0]

    def run(share: float, requests: int, name: str) -> float:
        """How often `ours` was anchored at its first block in the second half."""
        due, kept = 0.0, []
        for number in range(requests):
            due += share
            if due >= 1:
                due -= 1
                place = seen.find(ours + words((name, number), 300))
                if number > requests // 2:
                    kept.append(place == first)
            else:
                seen.find(words((name, "other", number), 300))
        return sum(kept) / len(kept)

    assert run(0.08, 1500, "between, from below") == 1
    assert run(0.20, 1500, "above") == 0
    assert run(0.08, 1500, "between, from above") == 0
    assert run(0.05, 1500, "still between") == 0
    assert run(0.02, 3000, "below") == 1
    assert run(0.08, 1500, "between, from below again") == 1


def test_what_is_no_longer_asked_is_forgotten_by_requests_not_by_time() -> None:
    seen = Seen()
    seen.homes(strangers(200))
    first = PREFIXES.chain(HEAD, ROOT)[0]
    assert first in seen.anchors.common
    seen.homes(strangers(2000, head=b"", name="of another kind"))
    assert seen.find(HEAD + words("late", 500)) == first
    assert first not in seen.anchors.common


# Pools.


def test_each_pool_is_judged_by_its_own_traffic() -> None:
    """A model with a twentieth of the requests has a system prompt of its own, which all of them begin with."""
    seen = Seen()
    small = (8, 9, 10, 11)
    places = []
    for number in range(2000):
        text = HEAD + words(number, 1000)
        if number % 20:
            seen.pool = EIGHT
            seen.find(text, root=1)
        else:
            seen.pool = small
            places.append(seen.find(text, root=2))
    assert len(set(places[40:])) == len(places[40:])


def test_a_backend_more_moves_nobody() -> None:
    seen = Seen()
    documents = strangers(60, 4000)
    seen.homes(strangers(200, name="others"))
    before = [seen.homes(documents) for _ in range(3)][-1]
    seen.pool = (*EIGHT, 8)
    assert seen.homes(documents) == before
    assert seen.homes(documents) == before


def test_requests_with_a_key_of_their_own_count_as_traffic() -> None:
    """Where one in fifty has no key, their common head is a fiftieth of the traffic: one backend can have it."""
    seen = Seen()
    places = []
    for number in range(3000):
        if number % 50:
            seen.anchors.record(EIGHT)
        else:
            places.append(seen.find(HEAD + words(number, 1000)))
    assert set(places) == {PREFIXES.chain(HEAD, ROOT)[0]}


def test_the_share_of_a_key() -> None:
    anchors = Anchors(PREFIXES, 1024, 0, HALF_LIFE)
    shares = []
    for number in range(1000):
        anchors.record(EIGHT)
        if number % 4 == 0:
            shares.append(anchors.share(99, EIGHT))
        else:
            anchors.share(1000 + number, EIGHT)
    assert shares[:15] == [0.0] * 15, "too few to tell"
    assert 0.2 < shares[-1] < 0.3
    anchors.record(EIGHT)
    assert anchors.share(98, EIGHT) < 0.05


# Volatile spans.

CLOCKS = ["9:59:01", "10:00", "2026-11-29T10:15:03Z", "1764411303", "123e4567-e89b-12d3-a456-426614174000"]


@pytest.mark.parametrize("place", [0, 100, 250, 255, 700, 2990])
def test_a_clock_in_the_system_prompt_moves_nobody(place: int) -> None:
    seen = Seen()
    rand = random.Random(5)
    talks = [words(number, 3000) for number in range(40)]
    places: dict[int, set[int]] = {}
    for number in range(700):
        clock = rand.choice(CLOCKS).encode()
        chosen = rand.randrange(40)
        anchor = seen.find(HEAD[:place] + b" " + clock + b" " + HEAD[place:] + talks[chosen])
        if number >= 300:
            places.setdefault(chosen, set()).add(anchor)
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 40


@pytest.mark.parametrize(
    "text", ["It is {}. {}", "x" * 240 + " it is {} and {}", "y" * 200 + "{}" + "z" * 900]
)
def test_a_clock_moves_nobody_before_anything_is_common_either(text: str) -> None:
    found = {Seen().find(text.format(f" {clock} ", "same").encode()) for clock in CLOCKS}
    assert len(found) == 1
    assert found != {Seen().find(text.format(" noon ", "same").encode())}


def test_masking_can_be_off_and_ends_where_it_is_told_to() -> None:
    texts = [b"It is 10:15, " + b"x" * 100 + b" " + clock.encode() + b" now" for clock in CLOCKS]
    for masked_bytes, places in ((0, 5), (60, 5), (200, 1)):
        assert len({Seen(masked_bytes=masked_bytes).find(text) for text in texts}) == places


def test_the_chain_is_never_masked() -> None:
    one, other = (b"It is " + clock + HEAD for clock in (b"10:15", b"10:16"))
    assert PREFIXES.chain(one, ROOT)[0] != PREFIXES.chain(other, ROOT)[0]


# Bounds.


@given(text=st.binary(max_size=2000), root=st.integers(0, 2**64 - 1))
def test_any_text_has_an_anchor_and_the_same_again(text: bytes, root: int) -> None:
    first = Seen().shared(text, root)
    assert Seen().shared(text, root) == first
    assert 0 <= first[0] < 2**64
    assert first[1] <= (len(text) >= PREFIXES.block_bytes)


def test_a_prompt_shorter_than_a_block_is_its_own_anchor() -> None:
    seen = Seen()
    assert seen.shared(b"hello") == seen.shared(b"hello")
    assert seen.find(b"hello") != seen.find(b"hello!") != seen.find(b"")
    assert not seen.shared(b"hello")[1], "nothing that another prompt could have"


def test_two_blocks_in_one_cell_only_deepen_anchors() -> None:
    """With a table far too small everything looks common; no two conversations ever share a place for it."""
    seen = Seen(cells=8)
    places = seen.homes(strangers(200))
    assert len(set(places[50:])) == 150


def test_memory_is_that_of_an_empty_one() -> None:
    """Case B18: flat over any number of distinct 4 KB prompts."""
    rand = random.Random(1)
    texts = (rand.randbytes(4096) for _ in range(400))
    seen = Seen(cells=1 << 14)
    tracemalloc.start()
    try:
        seen.homes(rand.randbytes(4096) for _ in range(100))
        early = traced_bytes(sys.modules[Anchors.__module__], sys.modules[__name__])
        seen.homes(texts)
        late = traced_bytes(sys.modules[Anchors.__module__], sys.modules[__name__])
    finally:
        tracemalloc.stop()
    assert late - early < 2000
    assert seen.anchors.cells == 1 << 14


def test_heads_of_yesterday_do_not_pile_up() -> None:
    """Case B20: after many prompts that were each everybody's for a while, few are still known."""
    seen = Seen(cells=1 << 9)
    ever: set[int] = set()
    for version in range(40):
        seen.homes(strangers(40, 300, head=words(("head", version), 2000), name=str(version)))
        assert len(seen.anchors.common) <= 1 << 6
        ever |= seen.anchors.common
    assert len(ever) > 1 << 6, "there were more than it may know"


def test_pools_of_yesterday_do_not_pile_up() -> None:
    anchors = Anchors(PREFIXES, 1024, 0, HALF_LIFE)
    for number in range(1000):
        anchors.record((number, number + 1))
    assert len(anchors._totals) <= 256


def test_numbers_stay_finite_and_shares_the_same_over_millions_of_requests() -> None:
    anchors = Anchors(PREFIXES, 1024, 0, half_life=1)  # a rescaling every 665 requests
    shares = Counter()
    for _ in range(3000):
        anchors.record(EIGHT)
        shares[round(anchors.share(5, EIGHT), 6)] += 1
    assert shares.keys() <= {0.0, 1.0}


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_a_table_of_nothing_is_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Anchors(PREFIXES, *arguments)
