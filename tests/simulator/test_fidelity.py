"""Our caches against event logs recorded from real engines: the same prompts give the same hits, the same
blocks stored and the same blocks evicted in the same order. (`test_fidelity_real.py` does it with an
engine that runs.)"""

import json
import re
from dataclasses import replace
from pathlib import Path

from stickyroute.simulator.cache import BlockCache
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.keys import block_keys, namespace, token_buffer
from stickyroute.simulator.profiles import DEMO
from stickyroute.simulator.radix import RadixCache

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


def recorded(name):
    """The log with our keys for the engine's hashes, and the prompts in it: first key -> tokens of full
    blocks."""
    ours = {}  # the engine's hash -> our key
    log = []
    prompts = {}
    chains = {}  # our key of a block -> all tokens up to its end
    for event in json.loads((CAPTURES / name).read_text()):
        if "removed" in event:
            log += [("removed", ours[one]) for one in event["removed"]]
            continue
        before = chains[ours[event["parent"]]] if event["parent"] is not None else []
        tokens = before + event["tokens"]
        keys = block_keys(token_buffer(tokens), event["size"], namespace("tiny"))
        new = keys[len(before) // event["size"] :]
        assert len(new) == len(event["stored"])
        for engine_hash, key in zip(event["stored"], new, strict=True):
            assert ours.setdefault(engine_hash, key) == key  # one hash of theirs is one key of ours, and back
        for index, key in enumerate(keys):
            chains[key] = tokens[: (index + 1) * event["size"]]
        log.append(("stored", tuple(new)))
        if len(tokens) > len(prompts.get(keys[0], ())):
            prompts[keys[0]] = tokens
    assert len(set(ours.values())) == len(ours)
    return log, list(prompts.values())


class Log(list):
    """What a cache does, written down as the recorded log is."""

    def stored(self, held, first, last):
        self.append(("stored", tuple(held.keys[first:last])))

    def removed(self, key):
        self.append(("removed", key))


def ask(engine, tokens, prompt_tokens, output_tokens, at_s):
    """One request: the recorded full blocks, and beyond them tokens that nobody else has."""
    size = engine.cache.block_size
    whole = tokens + [2**31 + i for i in range(prompt_tokens + output_tokens - len(tokens))]
    engine.advance(at_s)
    return engine.submit(
        at_s, block_keys(token_buffer(whole), size, namespace("tiny")), prompt_tokens, output_tokens
    )


def vllm(blocks, log):
    profile = replace(
        DEMO, blocks=blocks, block_size=32, batched_tokens=2048, sequences=16, context_tokens=4096
    )
    return Engine(profile, BlockCache(blocks, 32, log.stored, log.removed))


def test_vllm_evicts_what_ours_evicts_in_the_same_order():
    events, prompts = recorded("vllm-evict-events.json")
    answers = re.findall(
        r"^(\w) \((\d+), {'cached_tokens': (\d+)", (CAPTURES / "vllm2-evict.txt").read_text(), re.M
    )
    assert [name for name, _, _ in answers] == list("AABACAB")
    by_name = dict(zip("ABC", prompts, strict=True))
    log = Log()
    engine = vllm(140, log)
    found = []
    for turn, (name, tokens, _) in enumerate(answers):
        found.append(ask(engine, by_name[name], int(tokens), 8, turn * 10.0))
    engine.advance(1e9)
    assert [one.cached_tokens for one in found] == [int(cached) for _, _, cached in answers]
    assert log == events
    # Then 24 prompts of 301 or 302 tokens at once, which fill the cache: the counters of the real engine.
    for number in range(24):
        ask(engine, [number * 1000 + i for i in range(301)], 301 + (number < 16), 300, 100.0)
    engine.advance(1e9)
    assert engine.counters.queries == 21905
    assert engine.counters.hits == 6496
    assert engine.counters.preemptions > 0


def test_a_long_prompt_is_stored_in_the_chunks_of_vllm_and_found_again():
    events, (tokens,) = recorded("vllm-long-prompt-events.json")
    log = Log()
    engine = vllm(512, log)
    for turn in (1, 2):
        usage = json.loads((CAPTURES / f"vllm-longprompt-{turn}.json").read_text().split(" time=")[0])[
            "usage"
        ]
        sequence = ask(engine, tokens, usage["prompt_tokens"], usage["completion_tokens"], turn * 10.0)
        engine.advance(turn * 10.0 + 5.0)
        assert sequence.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
    assert log == events


def test_sglang_evicts_whole_leaves_as_ours_does():
    events, prompts = recorded("sglang-evict-events.json")
    first, second, third = prompts
    log = Log()
    profile = replace(DEMO, context_tokens=4096)
    engine = Engine(profile, RadixCache(4096, 16, log.stored, log.removed))
    # From its metrics: five prompts of 1,384 tokens, one of which found 1,376 cached.
    found = [
        ask(engine, tokens, 1384, 8, turn * 10.0)
        for turn, tokens in enumerate((first, first, second, third, first))
    ]
    engine.advance(1e9)
    assert [one.cached_tokens for one in found] == [0, 1376, 0, 0, 0]
    assert log == events
