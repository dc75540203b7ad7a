"""The fleet's state: leases, backoff, models and pools, and that nothing of it leaks."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet import Fleet, Lease
from stickyroute.fleet.listed import MODEL_NAME_CHARS, MODELS_PER_BACKEND
from tests.fleet.specs import fleet, members, rows, spec

# Leases.


def test_a_lease_counts_until_its_first_release() -> None:
    two = fleet("a", "b")
    leases = [two.lease(0), two.lease(1), two.lease(1)]
    assert list(two.in_flight) == [1, 2]
    for lease in leases:
        assert lease is not None
        lease.release()
        lease.release()
    assert list(two.in_flight) == [0, 0]


def test_max_in_flight_is_a_hard_limit() -> None:
    one = fleet(spec("a", max_in_flight=2), "b")
    first, second = one.lease(0), one.lease(0)
    assert first is not None
    assert second is not None
    assert one.lease(0) is None
    assert one.lease(1) is not None
    assert list(one.in_flight) == [2, 1]
    first.release()
    assert one.lease(0) is not None


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_in_flight_is_the_leases_held_and_returns_to_zero(steps: list[tuple[int, bool]]) -> None:
    three = fleet("a", spec("b", max_in_flight=3), "c")
    held: list[Lease] = []
    for slot, take in steps:
        if take:
            lease = three.lease(slot)
            if lease is not None:
                held.append(lease)
        elif held:
            held.pop(slot % len(held)).release()
        assert list(three.in_flight) == [sum(lease.slot == slot for lease in held) for slot in range(3)]
        assert three.in_flight[1] <= 3
    for lease in held:
        lease.release()
    assert list(three.in_flight) == [0, 0, 0]


# Reachability.


def test_everybody_is_available_until_they_refuse() -> None:
    two = fleet("a", "b")
    assert list(two.available) == [1, 1]
    assert two.next_retry_s(100.0) == 0
    two.record_refused(1, 100.0, 0.0)
    assert list(two.available) == [1, 0]
    assert not two.retry_due(0, 1e9)


def test_backoff_doubles_from_a_quarter_second_to_five() -> None:
    """0.25, 0.5, 1, 2, then 2.5: without jitter half the longest, with full jitter the longest."""
    one = fleet("a")
    now_s = 100.0
    waits = []
    for jitter in (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0):
        one.record_refused(0, now_s, jitter)
        waits.append(one.next_retry_s(now_s))
        now_s += waits[-1]
        assert one.retry_due(0, now_s)
    assert waits == pytest.approx([0.25, 0.5, 1, 2, 2.5, 5, 5])


def test_the_first_wait_with_jitter() -> None:
    one = fleet("a")
    one.record_refused(0, 100.0, 1.0)
    assert one.next_retry_s(100.0) == 0.5
    assert not one.retry_due(0, 100.49)
    assert one.retry_due(0, 100.5)


def test_a_burst_of_refusals_is_one_outage() -> None:
    """Fifty requests in flight find the same backend gone: that is one step of backoff, not fifty."""
    one = fleet("a")
    for i in range(50):
        one.record_refused(0, 100.0 + i / 1000, 0.0)
    assert one.next_retry_s(100.0) == 0.25
    assert one.snapshot()["backends"][0]["failures"] == 1


def test_reachable_again_starts_over() -> None:
    one = fleet("a")
    for now_s in (100.0, 101.0, 102.0):
        one.record_refused(0, now_s, 0.0)
    one.record_reachable(0)
    assert one.available[0]
    assert not one.retry_due(0, 1e9)
    one.record_refused(0, 200.0, 0.0)
    assert one.next_retry_s(200.0) == 0.25


def test_when_one_backend_is_looked_at_again() -> None:
    two = fleet("a", "b")
    two.record_refused(1, 100.0, 0.0)
    assert two.retry_in_s(0, 100.0) is None
    assert [two.retry_in_s(1, now_s) for now_s in (100.0, 100.25, 200.0)] == [0.25, 0, 0]


def test_next_retry_is_the_soonest_and_never_negative() -> None:
    three = fleet("a", "b", "c")
    three.record_refused(0, 100.0, 1.0)
    three.record_refused(1, 100.0, 0.0)
    assert three.next_retry_s(100.0) == 0.25
    assert three.next_retry_s(200.0) == 0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), min_size=1, max_size=40))
def test_no_wait_is_shorter_than_a_quarter_second_or_longer_than_five(
    steps: list[tuple[float, float]],
) -> None:
    one = fleet("a")
    now_s = 0.0
    for later_s, jitter in steps:
        now_s += later_s
        fresh = one.available[0] or one.retry_due(0, now_s)
        one.record_refused(0, now_s, jitter)
        assert not one.available[0]
        wait_s = one.next_retry_s(now_s)
        assert 0 < wait_s <= 5.0 + 1e-9
        assert not fresh or wait_s >= 0.25 - 1e-9


def test_refusals_and_leases_do_not_touch_each_other() -> None:
    one = fleet("a")
    lease = one.lease(0)
    one.record_refused(0, 1.0, 0.0)
    assert one.in_flight[0] == 1
    assert lease is not None
    lease.release()
    assert (one.in_flight[0], one.available[0]) == (0, 0)


# Models and pools.


def test_unknown_models_serve_any_model_under_one_label() -> None:
    two = fleet("a", "b")
    assert members(two, "whatever") == ["a", "b"]
    assert members(two, None) == ["a", "b"]
    assert {pool.label for pool in (two.pool("x"), two.pool("y"), two.pool(None)) if pool} == {"other"}
    assert not two.many_pools


def test_known_models_make_pools() -> None:
    three = fleet("a", "b", "c")
    three.record_models(0, rows("m1"))
    three.record_models(1, rows("m1", "m2"))
    assert members(three, "m1") == ["a", "b", "c"], "c may serve anything"
    assert members(three, "m2") == ["b", "c"]
    assert members(three, "m3") == ["c"]
    three.record_models(2, rows("m2"))
    assert members(three, "m1") == ["a", "b"]
    assert members(three, "m2") == ["b", "c"]
    assert members(three, "m3") is None
    assert members(three, None) == ["a", "b", "c"]
    pool = three.pool("m2")
    assert pool is not None
    assert pool.label == "m2"
    assert three.many_pools


def test_one_model_everywhere_is_one_pool() -> None:
    two = fleet("a", "b")
    for slot in (0, 1):
        two.record_models(slot, rows("m1", "alias"))
    assert not two.many_pools
    pools = [two.pool(name) for name in ("m1", "alias", None)]
    assert len({id(pool.view) for pool in pools if pool}) == 1, "one candidate set, one ring, one rotation"


def test_a_pool_is_swapped_only_when_its_members_change() -> None:
    two = fleet("a", "b")
    for slot in (0, 1):
        two.record_models(slot, rows("m1"))
    pool = two.pool("m1")
    assert pool is not None
    view = pool.view
    two.record_models(0, rows("m1", max_model_len=8192))
    two.record_models(0, [*rows("m1"), *rows("m1")])
    two.record_models(0, rows("m1", "m2"))
    assert pool.view is view, "m2 came; who serves m1 did not change"
    two.record_models(0, rows("m2"))
    assert members(two, "m1") == ["b"]
    assert pool is two.pool("m1"), "who holds it sees the new members"
    assert view.slots == (0, 1), "a view in use is never changed"


def test_a_backend_that_is_down_keeps_its_models() -> None:
    """Case B69: a known model without a live backend is a 503, not a 404."""
    one = fleet("a")
    one.record_models(0, rows("m1"))
    one.record_refused(0, 1.0, 0.0)
    assert members(one, "m1") == ["a"]
    assert members(one, "m2") is None
    assert one.models() == []
    one.record_reachable(0)
    assert one.models() == [rows("m1")]


def test_an_empty_list_says_nothing() -> None:
    one = fleet("a")
    one.record_models(0, rows("m1"))
    one.record_models(0, [])
    assert members(one, "m2") == ["a"]


def test_configured_models_stand_whatever_the_backend_lists() -> None:
    one = fleet(spec("a", models=("m1", "m2")))
    assert members(one, "m1") == ["a"]
    assert members(one, "m3") is None
    assert [row["id"] for row in one.models()[0]] == ["m1", "m2"]
    one.record_models(0, [*rows("m1", max_model_len=4096), *rows("m3")])
    assert members(one, "m3") is None
    first, second = one.models()[0]
    assert first == {"id": "m1", "object": "model", "max_model_len": 4096}
    assert (second["id"], second["object"]) == ("m2", "model")
    one.record_models(0, [])
    assert members(one, "m1") == ["a"]


def test_an_adapter_of_a_model_that_sglang_serves() -> None:
    """SGLang takes "model:adapter"; vLLM lists its adapters and knows no others."""
    two = fleet("sglang", "vllm")
    two.record_models(0, rows("m1", owned_by="sglang"))
    two.record_models(1, rows("m1", "m1-lora", owned_by="vllm"))
    assert members(two, "m1") == ["sglang", "vllm"]
    assert members(two, "m1:poet") == ["sglang"]
    assert members(two, "m1-lora") == ["vllm"]
    assert members(two, "m2:poet") is None
    assert members(two, "m1-lora:poet") is None
    three = fleet("sglang", "starting", "vllm")
    three.record_models(0, rows("m1", owned_by="sglang"))
    three.record_models(2, rows("m1", owned_by="vllm"))
    assert members(three, "m1:poet") == ["sglang", "starting"]
    pool = two.pool("m1:poet")
    assert pool is not None
    assert pool.label == "m1", "a label never comes from a client"


def test_what_backends_list_is_bounded() -> None:
    """Case B83: neither a backend nor a client makes the pools grow without end."""
    one = fleet("a")
    one.record_models(0, rows(*(f"m{i}" for i in range(MODELS_PER_BACKEND + 500)), "x" * 10_000))
    assert len(one.snapshot()["pools"]) == MODELS_PER_BACKEND
    for i in range(2000):
        one.pool(f"typo{i}")
    assert len(one.snapshot()["pools"]) == MODELS_PER_BACKEND
    one.record_models(0, rows("m" * MODEL_NAME_CHARS, "n" * (MODEL_NAME_CHARS + 1)))
    assert members(one, "m" * MODEL_NAME_CHARS) == ["a"]
    assert members(one, "n" * (MODEL_NAME_CHARS + 1)) is None


@given(
    reports=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from(["m1", "m2", "m3", "m4"]), max_size=3)),
        max_size=10,
    )
)
def test_pools_follow_the_last_report_of_each_backend(reports: list[tuple[int, list[str]]]) -> None:
    three = fleet("a", "b", "c")
    last: dict[int, set[str]] = {}
    for slot, names in reports:
        three.record_models(slot, rows(*names))
        last[slot] = set(names)
    for model in ("m1", "m2", "m3", "m4", "m5"):
        serving = [slot for slot in range(3) if not last.get(slot) or model in last[slot]]
        pool = three.pool(model)
        assert (list(pool.view.slots) if pool else []) == serving
    assert members(three, None) == ["a", "b", "c"]


# The whole.


def test_two_backends_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        fleet("a", "a")


def test_a_fleet_of_nobody() -> None:
    none = Fleet([], 16)
    assert none.pool("m") is none.pool(None), "nobody can say yet that there is no such model"
    assert none.models() == []
    assert none.next_retry_s(0.0) == 0
    assert none.snapshot()["backends"] == []


def test_names_not_addresses_are_on_the_ring() -> None:
    before = fleet(spec("a", host="10.0.0.1"), spec("b", host="10.0.0.2"))
    after = fleet(spec("a", host="10.0.9.9", port=1234), spec("b", host="10.0.0.2"))
    assert before.snapshot()["ring_fingerprint"] == after.snapshot()["ring_fingerprint"]


def test_the_snapshot_is_json_without_secrets() -> None:
    two = fleet(
        spec("a", api_key="engine-secret", base_path="/base/", weight=3, max_in_flight=9),
        spec("b", scheme="https", host="::1", port=8443, models=("m1",)),
    )
    two.lease(0)
    two.record_refused(1, 1.0, 0.0)
    shown = orjson.loads(orjson.dumps(two.snapshot()))
    a, b = shown["backends"]
    shares = a.pop("ring_share"), b.pop("ring_share")
    for one in (a, b):  # the rest has tests of its own
        for name in ("drain", "for_s", "paused_s", "room", "sample", "trying", "warming", "warnings", "why"):
            del one[name]
    assert sum(shares) == pytest.approx(1, abs=0.001)
    assert a == {
        "name": "a",
        "url": "http://127.0.0.1:8000/base",
        "weight": 3,
        "available": True,
        "operator": "active",
        "health": "unknown",
        "ejected": False,
        "in_flight": 1,
        "max_in_flight": 9,
        "failures": 0,
        "models": None,
    }
    assert b == {
        "name": "b",
        "url": "https://[::1]:8443",
        "weight": 1,
        "available": False,
        "operator": "active",
        "health": "unknown",
        "ejected": True,
        "in_flight": 0,
        "max_in_flight": None,
        "failures": 1,
        "models": ["m1"],
    }
    assert shown["pools"] == [{"model": "m1", "backends": ["a", "b"]}]
    assert "engine-secret" not in repr(two.backends) + str(shown)


def test_one_that_has_not_told_its_models_is_not_used_for_want_of_others_of_its_kind() -> None:
    """Found by bench/chaos: a backend renamed while it hung was a group of its own, and all of that were out."""
    fleet = Fleet([spec("a"), spec("b"), spec("c")], 16)
    for slot in (0, 1):
        fleet.record_models(slot, [{"id": "m"}])
    for second in range(3):
        fleet.record_probe(2, False, float(second), "no answer in time")
    assert list(fleet.available) == [1, 1, 0]
