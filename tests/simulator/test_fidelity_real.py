"""Our cache beside a real vLLM that runs: the same requests, then the same hits, counters and resident
blocks.

Part of `make test-real` (docs/engines.md). The answers differ, since only one of the two has a model, so ours
is told the real one's.
"""

import json
import os
import random
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec
import pytest
import zmq

from stickyroute.simulator.cache import BlockCache
from stickyroute.simulator.engine import Engine
from stickyroute.simulator.keys import block_keys, namespace, token_buffer
from stickyroute.simulator.profiles import DEMO
from tests.support.real.engines import build_tiny, fetch, until
from tests.support.real.vllm import START_S, vllm_venv

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BLOCKS, BLOCK_SIZE, CONTEXT = 140, 32, 4096
PROFILE = replace(
    DEMO, blocks=BLOCKS, block_size=BLOCK_SIZE, batched_tokens=2048, sequences=16, context_tokens=CONTEXT
)
ROOT = namespace("tiny")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@dataclass
class Vllm:
    """A real server, its cache empty after `reset`."""

    url: str
    replay: str

    def complete(self, tokens, count):
        """One greedy request: (cached tokens, the answer's tokens)."""
        body = {
            "model": "tiny",
            "prompt": tokens,
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        reply = fetch(self.url, "/v1/completions", body)
        assert reply.status == 200, reply.body
        value = reply.json()
        assert value["usage"]["prompt_tokens"] == len(tokens)
        return value["usage"]["prompt_tokens_details"]["cached_tokens"], value["choices"][0]["token_ids"]

    def counters(self):
        """(prefix cache queries, hits) so far, in tokens."""
        found = {}
        for line in fetch(self.url, "/metrics").body.decode().splitlines():
            for name in ("queries", "hits"):
                if line.startswith(f"vllm:prefix_cache_{name}_total{{"):
                    found[name] = int(float(line.split()[-1]))
        return found["queries"], found["hits"]

    def resident(self):
        """Our keys of what its KV events say is cached."""
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(self.replay)
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        ours, keys = {}, set()
        while dealer.poll(10_000):
            frames = dealer.recv_multipart()
            if not frames[-1]:
                break
            for event in msgspec.msgpack.decode(frames[-1])[1]:
                if event["type"] == "AllBlocksCleared":
                    keys.clear()
                elif event["type"] == "BlockRemoved":
                    keys -= {ours[one] for one in event["block_hashes"]}
                else:
                    parent = event["parent_block_hash"]
                    chain = block_keys(
                        token_buffer(event["token_ids"]), BLOCK_SIZE, ROOT if parent is None else ours[parent]
                    )
                    ours |= dict(zip(event["block_hashes"], chain, strict=True))
                    keys |= set(chain)
        context.destroy(linger=0)
        return keys

    def reset(self):
        assert fetch(self.url, "/reset_prefix_cache", {}).status == 200


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    program = vllm_venv() / "bin" / "vllm"
    folder = tmp_path_factory.mktemp("vllm")
    model, _ = build_tiny(folder)
    port, replay = free_port(), free_port()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/kv",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
        "topic": "kv@tiny",
    }
    options = (
        f"--served-model-name tiny --host 127.0.0.1 --port {port} --dtype float32 --max-model-len {CONTEXT} "
        f"--max-num-seqs {PROFILE.sequences} --max-num-batched-tokens {PROFILE.batched_tokens} "
        f"--enforce-eager "
        f"--block-size {BLOCK_SIZE} --num-gpu-blocks-override {BLOCKS} --enable-prefix-caching "
        "--enable-prompt-tokens-details --kv-events-config"
    )
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", model, *options.split(), json.dumps(events)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        url = f"http://127.0.0.1:{port}"

        def healthy():
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            try:
                return fetch(url, "/health").status == 200
            except OSError:
                return False

        try:
            until(healthy, "vLLM's /health", timeout_s=START_S)
            yield Vllm(url, f"tcp://127.0.0.1:{replay}")
        finally:
            process.terminate()
            process.wait(60)


class Ours:
    """Our engine, given the same prompts and the real one's answers, one request at a time."""

    def __init__(self):
        self.told = set()  # what a reader of our events would think resident
        cache = BlockCache(
            BLOCKS,
            BLOCK_SIZE,
            on_stored=lambda held, first, last: self.told.update(held.keys[first:last]),
            on_removed=self.told.discard,  # of two blocks with one key, too, as vLLM tells it
        )
        self.engine = Engine(PROFILE, cache)
        self._now_s = 0.0

    def complete(self, tokens, answer):
        self._now_s += 1000.0
        self.engine.advance(self._now_s)
        keys = block_keys(token_buffer([*tokens, *answer]), BLOCK_SIZE, ROOT)
        sequence = self.engine.submit(self._now_s, keys, len(tokens), len(answer))
        self.engine.advance(self._now_s + 999.0)
        assert sequence.done
        return sequence.cached_tokens


def compare(vllm, requests):
    """Run `requests` (a generator that is sent each answer) on both. Returns the differences of cached
    tokens."""
    vllm.reset()
    before = vllm.counters()
    ours = Ours()
    differences = []
    try:
        tokens, count = next(requests)
        while True:
            cached, answer = vllm.complete(tokens, count)
            differences.append(ours.complete(tokens, answer) - cached)
            tokens, count = requests.send(answer)
    except StopIteration:
        pass
    after = vllm.counters()
    counters = ours.engine.counters
    assert len(differences) >= 100
    assert differences == [0] * len(differences)  # not one request is off, by not one token
    assert (after[0] - before[0], after[1] - before[1]) == (counters.queries, counters.hits)
    assert counters.hits > 0
    assert vllm.resident() == ours.told


def text(rand, count):
    return [rand.randrange(8, 1024) for _ in range(count)]


def conversations(rand, users, turns, system):
    """Users who take turns at random and send their whole history again, behind one system prompt."""
    histories = [[*system, *text(rand, rand.randrange(10, 120))] for _ in range(users)]
    for _ in range(turns):
        user = rand.randrange(users)
        history = histories[user]
        count = rand.randrange(2, 60)
        if len(history) + count > 1500:
            history = [*system, *text(rand, rand.randrange(10, 120))]
        answer = yield history, count
        histories[user] = [*history, *answer, *text(rand, rand.randrange(5, 100))]


def test_multi_turn_conversations_that_fit(vllm):
    rand = random.Random(1)
    compare(vllm, conversations(rand, users=4, turns=110, system=text(rand, 100)))


def test_conversations_that_evict_each_other(vllm):
    rand = random.Random(2)
    compare(vllm, conversations(rand, users=14, turns=160, system=text(rand, 230)))


def test_documents_asked_about_again_and_exact_multiples_of_a_block(vllm):
    rand = random.Random(3)

    def questions():
        documents = [text(rand, size) for size in (640, 961, 1600, 320, 2048, 512)]
        for _ in range(140):
            document = rand.choice(documents)
            cut = rand.choice((len(document), len(document) // 2, BLOCK_SIZE * 7))
            yield document[:cut] + text(rand, rand.choice((0, 1, 31, 32, 33))), rand.choice((1, 2, 32, 33))

    compare(vllm, questions())


def test_identical_prompts_at_once_are_computed_once(vllm):
    vllm.reset()
    prompt = text(random.Random(4), 640)
    with ThreadPoolExecutor(6) as pool:
        real = sorted(cached for cached, _ in pool.map(lambda _: vllm.complete(prompt, 40), range(6)))
    ours = Ours()
    keys = block_keys(token_buffer(prompt), BLOCK_SIZE, ROOT)
    sequences = [ours.engine.submit(0.0, keys, 640, 40) for _ in range(6)]
    ours.engine.advance(1e9)
    assert sorted(sequence.cached_tokens for sequence in sequences) == real == [0, *[608] * 5]
