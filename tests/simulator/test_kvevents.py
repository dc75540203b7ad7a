import struct
from dataclasses import replace

import msgspec
import pytest
import zmq
import zmq.asyncio

from stickyroute.errors import ConfigError
from stickyroute.simulator.profiles import DEMO
from tests.simulator.client import ask, chat

SMALL = replace(DEMO, blocks=21, block_size=16)  # twenty blocks


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def replay(context, engine, start=0):
    """Every batch since `start`, as (number, events), through the replay socket."""
    dealer = context.socket(zmq.DEALER)
    dealer.connect(engine.kv_events.replay_endpoint)
    await dealer.send_multipart([b"", struct.pack(">Q", start)])
    batches = []
    while True:
        empty, topic, number, payload = await dealer.recv_multipart()
        assert empty == b""
        if number == b"\xff" * 8:
            assert (topic, payload) == (b"", b"")
            return batches
        assert topic == b"kv@tiny"
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        batches.append((int.from_bytes(number, "big"), events))


def resident(batches):
    """What a reader of the events believes to be cached."""
    keys = set()
    for _, events in batches:
        for event in events:
            if event["type"] == "BlockStored":
                keys |= set(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                keys -= set(event["block_hashes"])
            else:
                keys.clear()
    return keys


@pytest.fixture
def kv(tmp_path):
    return {
        "kv_events": f"ipc://{tmp_path}/kv",
        "kv_replay": f"ipc://{tmp_path}/replay",
        "kv_topic": "kv@tiny",
    }


async def test_events_tell_exactly_what_is_resident(start, context, kv):
    engine = await start(profile=SMALL, **kv)
    for turn in range(12):
        await chat(engine, f"{turn % 4} " * 150, max_tokens=20)
        assert resident(await replay(context, engine)) == engine.engine.cache.resident()
    batches = await replay(context, engine)
    assert [number for number, _ in batches] == list(range(len(batches)))
    kinds = {event["type"] for _, events in batches for event in events}
    assert kinds == {"BlockStored", "BlockRemoved"}
    later = await replay(context, engine, start=3)
    assert later == batches[3:]
    await ask(engine, "POST", "/reset_prefix_cache")
    batches = await replay(context, engine)
    assert batches[-1][1] == [{"type": "AllBlocksCleared"}]


async def test_a_stored_event_has_the_fields_of_vllm(start, context, kv):
    engine = await start(adapters=("law",), **kv)
    await chat(engine, "word " * 20, max_tokens=1, cache_salt="s", model="law")
    ((_, (event,)),) = await replay(context, engine)
    assert list(event) == [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ]
    assert len(event["token_ids"]) == 16 * len(event["block_hashes"]) == 32
    assert event["parent_block_hash"] is None
    assert event["lora_name"] == "law"
    assert event["extra_keys"] == [[["lora", "law", "law"], ["cache_salt", "s"]], [["lora", "law", "law"]]]


async def test_a_subscriber_gets_three_frames(start, context, kv):
    engine = await start(**kv)
    subscriber = context.socket(zmq.SUB)
    subscriber.connect(engine.kv_events.endpoint)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
    sources = (await ask(engine, "GET", "/kv_event_sources")).json()
    assert sources["0"]["topic"] == "kv@tiny"
    poller = zmq.asyncio.Poller()
    poller.register(subscriber, zmq.POLLIN)
    turn = 0
    while not await poller.poll(20):  # what is published before the subscription arrives is lost
        turn += 1
        await chat(engine, f"prompt {turn} " * 20, max_tokens=1)
    topic, number, payload = await subscriber.recv_multipart()
    assert (topic, len(number)) == (b"kv@tiny", 8)
    assert msgspec.msgpack.decode(payload)[1][0]["type"] == "BlockStored"


async def test_sglang_has_signed_hashes_and_fewer_fields(start, context, kv):
    engine = await start(dialect="sglang", profile=SMALL, page_size=16, **kv)
    for turn in range(8):
        await chat(engine, f"{turn} " * 150, max_tokens=1)
    batches = await replay(context, engine)
    stored = [event for _, events in batches for event in events if event["type"] == "BlockStored"]
    assert list(stored[0]) == [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
    ]
    hashes = [key for event in stored for key in event["block_hashes"]]
    assert any(key < 0 for key in hashes)
    assert all(-(2**63) <= key < 2**63 for key in hashes)
    removed = [event for _, events in batches for event in events if event["type"] == "BlockRemoved"]
    assert any(len(event["block_hashes"]) > 1 for event in removed)
    assert resident(batches) == {
        key - 2**64 if key >= 2**63 else key for key in engine.engine.cache.resident()
    }


async def test_a_crash_starts_the_numbers_again(start, context, kv):
    engine = await start(**kv)
    await chat(engine, "word " * 100, max_tokens=1)
    engine.crash()
    await engine.restart()
    assert await replay(context, engine) == []
    await chat(engine, "other " * 100, max_tokens=1)
    assert (await replay(context, engine))[0][0] == 0


async def test_an_address_that_cannot_be_used_is_a_wrong_configuration(start, tmp_path):
    with pytest.raises(ConfigError, match="nonsense"):
        await start(kv_events="nonsense://*")
    with pytest.raises(ConfigError, match="replayed on"):
        await start(kv_events=f"ipc://{tmp_path}/kv", kv_replay="nonsense://")
