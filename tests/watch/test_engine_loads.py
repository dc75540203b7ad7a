"""SGLang's /v1/loads, in the shape its source writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet.sample import Sample
from stickyroute.watch.engine_loads import read_loads


def rank(number, **fields):
    return {
        "dp_rank": number,
        "num_running_reqs": 3,
        "num_waiting_reqs": 1,
        "num_waiting_uncached_tokens": 700,
        "num_used_tokens": 1024,
        "max_total_num_tokens": 4096,
        "token_usage": 0.25,
        **fields,
    }


def page(*loads):
    return json.dumps({"timestamp": 1.0, "version": "0.5.23", "loads": list(loads)}).encode()


def test_ranks_add_up_and_the_fullest_counts():
    sample = read_loads(page(rank(0), rank(1, token_usage=0.75, num_waiting_reqs=0)))
    assert sample == Sample(
        kv_utilization=0.75, running=6, waiting=1, capacity_tokens=8192, ranks=2, dialect="sglang"
    )


def test_a_scheduler_that_has_not_reported_has_no_capacity():
    assert read_loads(page(rank(0, max_total_num_tokens=0))).capacity_tokens is None


def test_what_one_rank_does_not_tell_is_unknown_for_all():
    sample = read_loads(page(rank(0), rank(1, num_running_reqs=None)))
    assert (sample.running, sample.waiting) == (None, 2)


@pytest.mark.parametrize(
    "body", [b"", b"no", b"[]", b"{}", page(), page(1, None), b'{"loads":{"num_running_reqs":1}}', b'"loads"']
)
def test_anything_else_is_unknown(body):
    assert read_loads(body) == Sample()


@given(
    st.dictionaries(st.sampled_from(list(rank(0))), st.none() | st.booleans() | st.integers() | st.floats())
)
def test_values_of_any_kind_never_raise(fields):
    sample = read_loads(page(fields, rank(1)))
    assert sample.kv_utilization is None or 0.0 <= sample.kv_utilization <= 1.0
