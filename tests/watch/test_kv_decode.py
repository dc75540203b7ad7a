"""Every encoding of KV events, those recorded from real engines among them, and what is none."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.routing.exact import Cleared, Removed, Resident, Stored, scope
from stickyroute.watch.kv_decode import Decoder, Garbled
from tests.watch.kv_logs import batch, recorded, removed, stored

PLAIN = scope("", "")


class Nobody:
    def held(self, slot: int, block: int) -> None: ...
    def lost(self, slot: int, block: int) -> None: ...
    def emptied(self, slot: int) -> None: ...


def resident(sources: int = 1) -> Resident:
    return Resident(range(sources), Nobody(), limit_blocks=100_000, silence_s=10.0)


def one(event: object) -> object:
    (found,) = Decoder().batch(batch(event))
    return found


def test_a_map_and_an_array_mean_the_same() -> None:
    same = Stored([7, 8], 6, array("I", [1, 2, 3, 4]), 2, PLAIN)
    assert one(stored([7, 8], [1, 2, 3, 4], 6)) == same
    assert one(["BlockStored", [7, 8], 6, [1, 2, 3, 4], 2]) == same
    assert one(["BlockStored", [7, 8], 6, [1, 2, 3, 4], 2, None, "GPU"]) == same
    assert one(["BlockStored", [7, 8], 6, [1, 2, 3, 4], 2, None, "GPU", None, [None, None], 0]) == same
    assert one(["BlockRemoved", [7]]) == one(removed(7, medium="GPU", group_idx=0)) == Removed([7])
    assert one(["AllBlocksCleared"]) == one({"type": "AllBlocksCleared"}) == Cleared()


def test_a_batch_may_be_a_map_too() -> None:
    payload = msgspec.msgpack.encode({"ts": 1.0, "events": [removed(1)], "data_parallel_rank": 3})
    assert Decoder().batch(payload) == [Removed([1])]


def test_hashes_are_numbers_of_either_sign_or_bytes() -> None:
    hashes = [-5, 2**64 - 1, b"\xff" * 32]
    assert one(removed(*hashes)) == Removed(hashes)
    assert one(stored(hashes, [1, 2, 3], parent=b"\x01" * 32)).hashes == hashes


def test_what_is_not_on_the_gpu_is_left_out() -> None:
    elsewhere = [
        stored([1], [1, 2], medium="CPU"),
        removed(1, medium="CPU_PINNED"),
        stored([1], [1], medium="DISK"),
    ]
    assert Decoder().batch(batch(*elsewhere)) == []


def test_layers_that_keep_no_whole_prefix_are_left_out_with_their_removals() -> None:
    decoder = Decoder()
    events = decoder.batch(
        batch(
            stored([1], [1, 2], group_idx=0, kv_cache_spec_kind="full_attention"),
            stored([1], [1, 2], group_idx=1, kv_cache_spec_kind="sliding_window"),
            removed(1, group_idx=1),
            removed(1, group_idx=0),
        )
    )
    assert [type(event) for event in events] == [Stored, Removed]


def test_adapter_and_salt_are_the_scope_in_every_spelling() -> None:
    wanted = scope("law", "s")
    tagged = [[["lora", "law", "/path"], ["cache_salt", "s"]], [["lora", "law", "/path"]]]
    for keys in (tagged, [["law", "s"], ["law"]]):
        event = one(stored([1, 2], [1, 2], lora_name="law", extra_keys=keys))
        assert (event.scope, event.extras) == (wanted, ())
    assert one(stored([1], [1], cache_salt="s", lora_name="law")).scope == wanted
    assert scope("law", "") != scope("", "law") != PLAIN


def test_an_image_is_an_extra_of_its_block() -> None:
    event = one(stored([1, 2], [1, 2], extra_keys=[None, [["mm", "abc", 0]]]))
    assert event.scope == PLAIN
    assert event.extras[0] == b""
    assert b"abc" in event.extras[1]


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "BlockMoved"},
        ["BlockMoved", 1],
        {"block_hashes": [1]},
        [],
        [["BlockStored"]],
        17,
        None,
        stored(["seven"], [1]),
        stored([1], [-1]),
        stored([1], [2**32]),
        stored([1], ["a"]),
        stored([1], [1.5]),
        {**stored([1], [1, 2]), "block_size": 3},
        {**stored([1], [1]), "token_ids": b"\x01\x02\x03\x04"},
        {**stored([1], [1]), "block_size": True},
        stored([1], [1], parent="x"),
        stored([1], [1], extra_keys=[None, None]),
        removed([1]),
        removed(1, group_idx=[]),
    ],
)
def test_an_odd_event_is_passed_over_alone(odd: object) -> None:
    decoder = Decoder()
    assert decoder.batch(batch(odd, removed(9))) == [Removed([9])]
    assert decoder.passed_over == 1


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x00", b"[]", b"\x91" * 5000, batch()[:-3], msgspec.msgpack.encode([1.0, {}])]
)
def test_what_is_no_batch_is_told(payload: bytes) -> None:
    with pytest.raises(Garbled):
        Decoder().batch(payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_batch_or_garbled(payload: bytes) -> None:
    try:
        events = Decoder().batch(payload)
    except Garbled:
        return
    assert all(isinstance(event, Stored | Removed | Cleared) for event in events)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.binary(max_size=8),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(stored([1], [1], lora_name=None, lora_id=None, extra_keys=None))), VALUES
    )
)
def test_any_values_in_the_fields_harm_neither_reader_nor_set(fields: dict[str, object]) -> None:
    held = resident()
    event = {**stored([1, 2], [1, 2]), **fields, "type": "BlockStored"}
    for found in Decoder().batch(batch(event, removed(1, 2))):
        held.apply(0, found)
    assert held.blocks == len(held.blocks_of(0)) <= 4


@given(VALUES)
def test_any_value_as_an_event_is_read_or_passed_over(value: object) -> None:
    assert Decoder().batch(batch(value)) in ([], [Cleared()])


def test_vllm_as_recorded() -> None:
    """Prompts A, A, B, A, C, A, B of 2,095 tokens: the last B found 256 tokens cached (vllm2-evict.txt)."""
    decoder, held = Decoder(), resident()
    prompts = []
    log = recorded("vllm-evict")
    for number, payload in log:
        if number == 6:  # the last B begins here
            assert held.lookup(prompts[0] + array("I", [1]), PLAIN) == {0: 2048 + 32}
            assert held.lookup(prompts[1], PLAIN) == {0: 256}
        for event in decoder.batch(payload):
            if isinstance(event, Stored) and len(event.hashes) == 1 and number in (1, 3, 5):
                prompts[-1].extend(event.tokens)
            elif isinstance(event, Stored) and event.parent is None and number < 6:
                prompts.append(event.tokens[:])
            held.apply(0, event)
    assert len(log) == 223
    assert decoder.passed_over == 0
    assert 100 < held.blocks <= 139  # of 140 blocks vLLM uses 139
    assert held.block_sizes == {32}


def test_sglang_as_recorded() -> None:
    decoder, held = Decoder(), resident()
    for _, payload in recorded("sglang"):
        for event in decoder.batch(payload):
            held.apply(0, event)
    assert decoder.passed_over == 0
    assert held.blocks == 2 * 86  # the third and fourth prompt each evicted one of the first two
    assert held.block_sizes == {16}
