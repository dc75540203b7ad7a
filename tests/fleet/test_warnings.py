"""Warnings: one of each kind a backend, with the flag to set, and none when it is over."""

from __future__ import annotations

import pytest

from stickyroute.fleet import Fleet
from stickyroute.fleet.sample import Sample
from stickyroute.fleet.warnings import CODES
from stickyroute.routing.keys import RequestKeys
from tests.fleet.specs import fleet, spec


def codes(some: Fleet, slot: int = 0) -> list[str]:
    return [warning.code for warning in some.warnings(slot)]


def text(some: Fleet) -> str:
    (warning,) = some.warnings(0)
    return warning.text


def events(some: Fleet) -> list[tuple[int, str, bool]]:
    return [(event.slot, event.code, event.good) for event in some.take_events()]


def turns(some: Fleet, count: int, keys: int) -> None:
    for i in range(count):
        lease = some.lease(0, RequestKeys(i % keys + 1, "test"), 0.0)
        assert lease is not None
        lease.release()


def test_nothing_known_is_nothing_to_warn_of() -> None:
    some = fleet("a")
    for now_s in range(0, 1000, 5):
        some.record_sample(0, Sample(running=1), float(now_s))
    assert codes(some) == []
    assert events(some) == []


def test_preemptions_that_rise_are_told_once_and_go_away() -> None:
    some = fleet("a")
    for i in range(20):
        some.record_sample(0, Sample(preemptions=1000 + i, dialect="vllm"), 5.0 * i)
        assert (codes(some) == ["preemptions"]) == (i >= 4), i
    assert "--max-num-seqs" in text(some)
    assert events(some) == [(0, "preemptions", False)]
    for i in range(60):
        some.record_sample(0, Sample(preemptions=1019), 100.0 + 5.0 * i)
    assert codes(some) == []
    assert events(some) == [(0, "preemptions", True)]


def test_many_preemptions_long_ago_are_no_warning() -> None:
    some = fleet("a")
    for i in range(10):
        some.record_sample(0, Sample(preemptions=50_000), 5.0 * i)
    some.record_sample(0, Sample(preemptions=3), 60.0)  # it was started anew
    assert codes(some) == []


def test_a_full_cache_for_a_minute() -> None:
    some = fleet("a")
    for now_s in (0.0, 30.0, 59.0):
        some.record_sample(0, Sample(kv_utilization=0.9), now_s)
        assert codes(some) == []
    some.record_sample(0, Sample(kv_utilization=0.79), 60.0)
    for now_s in (65.0, 100.0, 124.0):
        some.record_sample(0, Sample(kv_utilization=0.81), now_s)
        assert codes(some) == []
    some.record_sample(0, Sample(kv_utilization=0.95), 125.0)
    assert "--gpu-memory-utilization" in text(some)
    some.record_sample(0, Sample(kv_utilization=0.78), 130.0)
    assert codes(some) == ["kv_full"], "hysteresis"
    some.record_sample(0, Sample(kv_utilization=0.7), 135.0)
    assert codes(some) == []
    assert events(some) == [(0, "kv_full", False), (0, "kv_full", True)]


@pytest.mark.parametrize(
    ("dialect", "flag"), [("vllm", "--enable-prefix-caching"), ("sglang", "--disable-radix-cache")]
)
def test_prefix_caching_found_off(dialect: str, flag: str) -> None:
    some = fleet("a")
    for now_s in (0.0, 5.0, 10.0):
        some.record_sample(0, Sample(prefix_caching=False, dialect=dialect), now_s)
    assert flag in text(some)
    assert len(some.take_events()) == 1
    some.record_sample(0, Sample(prefix_caching=True, dialect=dialect), 15.0)
    assert codes(some) == []


def test_few_hits_though_conversations_come_back() -> None:
    some = fleet("a")
    some.record_sample(0, Sample(queries_tokens=0, hits_tokens=0), 0.0)
    turns(some, 100, keys=10)
    some.record_sample(0, Sample(queries_tokens=100_000, hits_tokens=20_000, dialect="sglang"), 5.0)
    assert codes(some) == ["low_hit_rate"]
    assert "20%" in text(some)
    assert "--enable-hierarchical-cache" in text(some)
    turns(some, 100, keys=10)
    some.record_sample(0, Sample(queries_tokens=400_000, hits_tokens=300_000), 10.0)
    assert codes(some) == []


@pytest.mark.parametrize(
    ("requests", "keys", "tokens"),
    [
        pytest.param(100, 100, 100_000, id="everybody comes once"),
        pytest.param(10, 1, 100_000, id="too few requests"),
        pytest.param(100, 10, 5_000, id="too few tokens"),
    ],
)
def test_few_hits_that_say_nothing(requests: int, keys: int, tokens: int) -> None:
    some = fleet("a")
    some.record_sample(0, Sample(queries_tokens=0, hits_tokens=0), 0.0)
    turns(some, requests, keys)
    some.record_sample(0, Sample(queries_tokens=tokens, hits_tokens=0), 5.0)
    assert codes(some) == []


def test_a_restart_is_no_rise_and_no_fall() -> None:
    some = fleet("a")
    for i, started_s in enumerate((100.0, 100.0, 500.0, 500.0)):
        some.record_sample(
            0,
            Sample(started_s=started_s, preemptions=2 if started_s > 100 else 9000, queries_tokens=10 * i),
            5.0 * i,
        )
    assert codes(some) == []


def test_somebody_else_in_the_slot_starts_without() -> None:
    some = fleet("a", "b")
    some.record_sample(0, Sample(prefix_caching=False), 0.0)
    assert codes(some) == ["no_prefix_caching"]
    for names in ("b", "bc"):
        some.apply(some.plan([spec(name) for name in names]), 1.0)
    assert some.at(0).name == "c"
    assert codes(some) == []


def test_all_are_in_the_snapshot_in_words() -> None:
    some = fleet("a")
    some.record_sample(0, Sample(prefix_caching=False), 10.0)
    (told,) = some.snapshot(25.0)["backends"][0]["warnings"]
    assert (told["code"], told["for_s"]) == ("no_prefix_caching", 15.0)
    assert told["code"] in CODES
