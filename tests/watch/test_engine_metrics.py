"""Metrics pages of real engines, of other versions (by hand, from their sources), and of none."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stickyroute.fleet.sample import Sample
from stickyroute.watch.engine_metrics import PageReader, read_sample

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
PAGES = ["vllm2-metrics-after-evict.txt", "sglang-metrics-after-evict.txt", "llamacpp-metrics-after.txt"]


def page(*lines):
    return "\n".join((*lines, "")).encode()


def test_a_real_vllm():
    assert read_sample((CAPTURES / PAGES[0]).read_bytes()) == Sample(
        kv_utilization=0.0,
        running=0,
        waiting=0,
        preemptions=12,
        queries_tokens=21905,
        hits_tokens=6496,
        blocks=140,
        block_size_tokens=32,
        prefix_caching=True,
        started_s=1.79595988955e09,
        capacity_tokens=4480,
        ranks=1,
        dialect="vllm",
    )


def test_a_real_sglang():
    assert read_sample((CAPTURES / PAGES[1]).read_bytes()) == Sample(
        kv_utilization=0.34,
        running=0,
        waiting=0,
        preemptions=0,
        queries_tokens=6920,
        hits_tokens=1376,
        blocks=256,
        block_size_tokens=16,
        max_model_len=32768,
        capacity_tokens=4096,
        ranks=1,
        dialect="sglang",
    )


def test_a_real_llama_cpp():
    sample = read_sample((CAPTURES / PAGES[2]).read_bytes())
    assert sample == Sample(
        running=0, waiting=0, queries_tokens=311 + 316, hits_tokens=316, dialect="llamacpp"
    )


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# HELP x y\n# TYPE x gauge\n", b"up 1\n", b"<html></html>"])
def test_nothing_known_is_unknown(text):
    assert read_sample(text) == Sample()
    assert read_sample(text).running is None


def test_only_what_stands_on_a_page_is_known():
    sample = read_sample(page('vllm:num_requests_running{engine="0"} 3.0'))
    assert sample == Sample(running=3, ranks=1, dialect="vllm")


def test_the_ranks_of_a_vllm_server_together():
    """Requests and counters add up, the fullest rank counts, blocks are those of all ranks already."""
    info = (
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="%d",num_gpu_blocks="400"'
    )
    sample = read_sample(
        page(
            *(f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {rank}.0' for rank in range(4)),
            *(f'vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} 2.0' for rank in range(4)),
            *(f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.{rank}5' for rank in range(4)),
            *(f'vllm:prefix_cache_queries_total{{engine="{rank}"}} 100.0' for rank in range(4)),
            *(f'vllm:prefix_cache_hits_total{{engine="{rank}"}} 1e+01' for rank in range(4)),
            *(info % rank + "} 1.0" for rank in range(4)),
        )
    )
    assert sample == Sample(
        kv_utilization=0.35,
        running=0 + 1 + 2 + 3,
        waiting=8,
        queries_tokens=400,
        hits_tokens=40,
        blocks=400,
        block_size_tokens=16,
        prefix_caching=True,
        capacity_tokens=400 * 16,
        ranks=4,
        dialect="vllm",
    )
    told = page(*(info % rank + ',kv_cache_size_tokens="1500"} 1.0' for rank in range(4)))
    assert read_sample(told).capacity_tokens == 4 * 1500  # each rank tells its own; a hybrid model's is less


def test_the_names_of_vllm_0_9():
    sample = read_sample(
        page(
            'vllm:gpu_cache_usage_perc{engine="0"} 0.5',
            'vllm:kv_cache_usage_perc{engine="0",pid="7"} 0.4',
            'vllm:kv_cache_usage_perc{engine="0",pid="8"} 0.6',
            'vllm:gpu_prefix_cache_queries_total{engine="0"} 30',
            'vllm:gpu_prefix_cache_hits_total{engine="0"} 20',
        )
    )
    assert sample == Sample(kv_utilization=0.6, queries_tokens=30, hits_tokens=20, ranks=1, dialect="vllm")
    old = read_sample(page('vllm:gpu_cache_usage_perc{engine="0"} 0.5'))
    assert old.kv_utilization == 0.5


def test_prefix_caching_that_is_off_and_values_that_are_none():
    sample = read_sample(
        page(
            'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="None"} 1.0'
        )
    )
    assert (sample.prefix_caching, sample.blocks, sample.block_size_tokens) == (False, None, 16)
    assert sample.capacity_tokens is None


def test_a_counter_tells_the_start_where_the_process_does_not():
    sample = read_sample(page('vllm:num_preemptions_created{engine="0"} 1.7e+09'))
    assert sample.started_s == 1.7e09


def test_a_vllm_behind_ray():
    assert read_sample(page('ray_vllm_num_requests_waiting{engine="0"} 4')).waiting == 4


def test_the_ranks_of_an_sglang_server_and_the_copies_among_them():
    """Data-parallel ranks add up; the tensor-parallel ranks of one report the same thing again."""
    labels = 'model_name="m",dp_rank="%d",tp_rank="%d",pp_rank="0"'
    both = [(dp, tp) for dp in range(2) for tp in range(4)]
    sample = read_sample(
        page(
            *(f"sglang:num_running_reqs{{{labels % one}}} 5.0" for one in both),
            *(f"sglang:token_usage{{{labels % one}}} 0.{one[0]}7" for one in both),
            *(f"sglang:max_total_num_tokens{{{labels % one}}} 4096.0" for one in both),
            *(f"sglang:page_size{{{labels % one}}} 16.0" for one in both),
            *(f"sglang:num_pages{{{labels % one}}} 256.0" for one in both),
        )
    )
    assert sample == Sample(
        kv_utilization=0.17,
        running=10,
        blocks=512,
        block_size_tokens=16,
        capacity_tokens=8192,
        ranks=2,
        dialect="sglang",
    )


def test_sglang_with_priorities_tells_the_total_apart():
    sample = read_sample(
        page(
            'sglang:num_queue_reqs{priority=""} 9.0',
            'sglang:num_queue_reqs{priority="1"} 4.0',
            'sglang:num_queue_reqs{priority="2"} 5.0',
        )
    )
    assert sample.waiting == 9


def test_the_counters_of_sglang_in_their_parts():
    sample = read_sample(
        page(
            'sglang:prompt_tokens_total{is_streaming="true"} 60',
            'sglang:prompt_tokens_total{is_streaming="false"} 40',
            'sglang:cached_tokens_total{cache_source="device"} 10',
            'sglang:cached_tokens_total{cache_source="host"} 5',
        )
    )
    assert (sample.queries_tokens, sample.hits_tokens) == (100, 15)


def test_the_names_of_older_sglangs():
    sample = read_sample(
        page(
            'sglang:cache_config_info{page_size="64",num_pages="100"} 1.0',
            'sglang:total_retracted_reqs{model_name="m"} 3.0',
        )
    )
    assert (sample.blocks, sample.block_size_tokens, sample.capacity_tokens) == (100, 64, 6400)
    assert sample.preemptions == 3
    capacity_only = read_sample(page("sglang:max_total_num_tokens 8192.0", "sglang:token_usage 0.5"))
    assert (capacity_only.capacity_tokens, capacity_only.blocks) == (8192, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0", "1e30", "", "many", "0x1", "1 2 3"])
def test_a_value_that_says_nothing(value):
    sample = read_sample(page(f"vllm:num_requests_running {value}", f"vllm:kv_cache_usage_perc {value}"))
    assert sample.running is None
    assert sample.kv_utilization is None


def test_labels_may_hold_anything():
    line = r'vllm:num_requests_running{engine="0",model_name="a}\" b{c"} 2.0 1700000000000'
    assert read_sample(page(line)).running == 2


@given(st.sampled_from(PAGES), st.data())
def test_a_page_cut_or_spoilt_anywhere_never_raises(name, data):
    text = bytearray((CAPTURES / name).read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=20)):
        text[at] = data.draw(st.integers(0, 255))
    read_sample(bytes(text[: data.draw(st.integers(0, len(text)))]))
    read_sample(bytes(text))


@given(st.binary(max_size=200))
def test_garbage_never_raises(tail):
    read_sample(b'vllm:cache_config_info{block_size="16"' + tail)
    read_sample(b"sglang:token_usage" + tail)


@pytest.mark.parametrize("name", ["vllm2-metrics-after-evict.txt", "sglang-metrics-after-evict.txt"])
def test_a_reader_that_remembers_says_what_one_without_memory_says(name: str) -> None:
    page = (CAPTURES / name).read_bytes()
    known = next(
        line for line in page.splitlines() if re.match(rb"\w+:num_running_reqs|\w+:num_requests_run", line)
    )
    begin = known.rpartition(b" ")[0]
    moved = page.replace(known, begin + b" 17.0")
    gone = page.replace(known + b"\n", b"")
    other = page.replace(known, begin.replace(b'model_name="', b'model_name="x') + b" 3.0")
    reader = PageReader()
    for seen in (page, page, moved, gone, page, other, moved, b"", page, *[moved] * 25):
        assert reader.read(seen) == read_sample(seen)
    assert read_sample(moved) != read_sample(page) != read_sample(gone)
