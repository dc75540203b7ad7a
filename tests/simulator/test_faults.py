import asyncio

import pytest

from stickyroute.simulator.faults import KINDS, Fault, Faults, from_mapping
from stickyroute.simulator.faults import parse as parse_fault
from tests.simulator.client import ask, chat, metrics, parse
from tests.simulator.test_server import cached, opened, stream_request, until


def test_a_fault_hits_as_many_requests_as_it_says():
    faults = Faults()
    faults.turn_on(Fault("busy", count=2))
    assert [faults.take("busy") is not None for _ in range(3)] == [True, True, False]
    assert faults.kinds() == []
    faults.turn_on(Fault("reset"))
    assert all(faults.take("hang_mid_stream", "reset") for _ in range(9))
    faults.turn_off()
    assert faults.take("reset") is None


def test_faults_are_written_as_words_and_options():
    assert parse_fault("crash") == Fault("crash")
    assert parse_fault("close:count=2,after_tokens=5") == Fault("close", count=2, after_tokens=5)
    assert parse_fault("slow:factor=3,for_s=1.5") == Fault("slow", factor=3.0, for_s=1.5)
    for wrong in ("nonsense", "close:nonsense=1", "close:count=x"):
        with pytest.raises(ValueError):
            parse_fault(wrong)
    with pytest.raises(ValueError, match="known: crash"):
        from_mapping({"kind": "nonsense"})


async def test_the_admin_route_turns_faults_on_and_off(start):
    engine = await start()
    reply = await ask(engine, "POST", "/sim/faults", {"kind": "busy", "count": 1})
    assert reply.json() == {"on": ["busy"]}
    assert (await chat(engine, max_tokens=1)).status == 503
    assert (await chat(engine, max_tokens=1)).status == 200
    await ask(engine, "POST", "/sim/faults", {"kind": "metrics_missing"})
    assert (await ask(engine, "GET", "/metrics")).status == 404
    assert (await ask(engine, "DELETE", "/sim/faults")).json() == {"on": []}
    assert (await ask(engine, "GET", "/metrics")).status == 200
    wrong = await ask(engine, "POST", "/sim/faults", {"kind": "nonsense"})
    assert wrong.status == 400
    assert all(kind in wrong.json()["error"]["message"] for kind in KINDS)


async def test_a_schedule_turns_faults_on(start):
    engine = await start(faults=((0.0, "lost_cache"), (0.0, "metrics_missing")), speedup=1000.0)
    await until(lambda: "metrics_missing" in engine.faults)
    assert (await ask(engine, "GET", "/metrics")).status == 404


async def test_a_fault_can_end_by_itself(start):
    engine = await start()
    engine.inject(Fault("busy", for_s=0.01))
    await until(lambda: "busy" not in engine.faults)
    assert (await chat(engine, max_tokens=1)).status == 200


@pytest.mark.parametrize(("kind", "error"), [("reset", ConnectionResetError), ("close", None)])
async def test_a_stream_is_cut_after_some_tokens(start, kind, error):
    engine = await start()
    engine.inject(Fault(kind, after_tokens=3, count=1))
    reader, writer = await opened(engine, stream_request(tokens=50))
    data = b""
    with pytest.raises(error) if error else pytest.raises(asyncio.IncompleteReadError):
        while True:
            data += await reader.readexactly(1)
    assert not parse(data).complete
    assert data.count(b'"content":"') == (4 if error is None else data.count(b'"content":"'))
    assert engine.engine.running == 0
    writer.close()
    assert (await chat(engine, max_tokens=2, stream=True)).complete


async def test_a_stream_goes_silent_and_its_connection_stays(start):
    engine = await start()
    engine.inject(Fault("hang_mid_stream", after_tokens=2))
    reader, writer = await opened(engine, stream_request(tokens=40))
    data = await reader.readuntil(b'"token_ids":null}]}\n\n')
    data += await reader.readuntil(b'"token_ids":null}]}\n\n')
    await until(lambda: engine.engine.counters.generated == 40)  # the engine went on
    await until(lambda: engine.engine.running == 0)
    assert data.count(b'"content":"') == 3  # the opening and two tokens
    assert not reader.at_eof()
    writer.close()
    await until(lambda: engine.observed.in_flight == 0)


async def test_requests_are_read_and_never_answered(start):
    engine = await start()
    engine.inject(Fault("hang_before_headers", count=1))
    reader, writer = await opened(engine, stream_request(tokens=2))
    assert (await chat(engine, max_tokens=1)).status == 200  # the next one is
    assert engine.observed.in_flight == 0
    writer.close()
    assert await reader.read() == b""


async def test_garbage_instead_of_http(start):
    engine = await start()
    engine.inject(Fault("garbage", count=1))
    reader, writer = await opened(engine, stream_request(tokens=2))
    data = await reader.read()
    assert data
    assert not data.startswith(b"HTTP")
    writer.close()


async def test_a_slow_engine_takes_longer_by_its_own_clock(start):
    engine = await start()
    engine.inject(Fault("slow", factor=20.0))
    await chat(engine, max_tokens=1)
    slow_s = (await metrics(engine))["vllm:time_to_first_token_seconds_sum"]
    engine.heal("slow")
    await chat(engine, "another prompt of two words more", max_tokens=1)
    fast_s = (await metrics(engine))["vllm:time_to_first_token_seconds_sum"] - slow_s
    assert slow_s > 10 * fast_s


async def test_health_stays_green_while_generation_is_dead(start):
    engine = await start()
    engine.inject(Fault("dead"))
    reader, writer = await opened(engine, stream_request(tokens=2))
    assert (await ask(engine, "GET", "/health")).status == 200
    values = await metrics(engine)
    assert values["vllm:num_requests_running"] == 1
    assert values["vllm:generation_tokens_total"] == 0
    stood_s = engine.pace.now_s()
    engine.heal()
    assert parse(await reader.readuntil(b"0\r\n\r\n")).complete
    values = await metrics(engine)
    # By its own clock no time passed: two tokens, two steps of four milliseconds and a bit.
    assert engine.pace.now_s() >= stood_s
    assert values["vllm:e2e_request_latency_seconds_sum"] < stood_s + 0.02
    writer.close()


async def test_a_dead_engine_core_ends_streams_with_an_error_event(start):
    engine = await start(speedup=1.0)
    reader, writer = await opened(engine, stream_request(tokens=4000))
    await reader.readuntil(b"data: ")
    engine.inject(Fault("engine_error"))
    data = await reader.readuntil(b"0\r\n\r\n")
    assert data.endswith(
        b'a9\r\ndata: {"error": {"message": "EngineCore encountered an issue. '
        b'See stack trace (above) for the root cause.", '
        b'"type": "InternalServerError", "param": null, "code": 500}}\n\n\r\n'
        b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    )
    assert (await ask(engine, "GET", "/health")).status == 503
    assert (await chat(engine)).status == 500
    writer.close()


async def test_lost_cache(start):
    engine = await start()
    text = "word " * 100
    await chat(engine, text, max_tokens=1)
    assert cached(await chat(engine, text, max_tokens=1)) > 0
    await ask(engine, "POST", "/sim/faults", {"kind": "lost_cache"})
    assert cached(await chat(engine, text, max_tokens=1)) == 0


async def test_lying_metrics_say_idle_and_cold(start):
    engine = await start()
    for _ in range(2):
        await chat(engine, "word " * 100, max_tokens=1)
    assert (await metrics(engine))["vllm:prefix_cache_hits_total"] > 0
    engine.inject(Fault("metrics_lying"))
    values = await metrics(engine)
    assert values["vllm:prefix_cache_hits_total"] == values["vllm:generation_tokens_total"] == 0


async def test_a_crash_resets_everybody_and_a_restart_begins_cold(start):
    engine = await start()
    text = "word " * 100
    await chat(engine, text, max_tokens=1)
    engine.inject(Fault("dead"))
    reader, writer = await opened(engine, stream_request(text))
    await reader.readuntil(b"\r\n\r\n")
    port = engine.port
    with pytest.raises(ConnectionResetError):
        await ask(engine, "POST", "/sim/faults", {"kind": "crash"})
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(engine.host, port)
    assert not engine.alive
    await until(lambda: not engine.connections)
    assert engine.observed.in_flight == 0
    await engine.restart()
    assert engine.port == port
    reply = await chat(engine, text, max_tokens=1)
    assert cached(reply) == 0
    assert (await metrics(engine))["vllm:generation_tokens_total"] == 1
    writer.close()


async def test_a_draining_engine_finishes_streams_and_takes_no_more(start):
    engine = await start()
    reader, writer = await opened(engine, stream_request(tokens=40))
    await reader.readuntil(b"data: ")
    engine.inject(Fault("draining"))
    refused = await chat(engine)
    assert (refused.status, refused.json()["error"]["message"]) == (
        500,
        "cannot schedule new futures after shutdown",
    )
    assert (await ask(engine, "GET", "/health")).status == 200
    assert parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + await rest(reader)).complete
    writer.close()


async def rest(reader):
    """What is left of a stream, from the event whose first bytes were read."""
    data = await reader.readuntil(b"0\r\n\r\n")
    return data[data.index(b"\n\n\r\n") + 4 :]
