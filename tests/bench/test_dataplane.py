"""The cost rig: the fake fleet answers what routers probe, and a round runs from end to end."""

import asyncio
import http.client
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.dataplane import report, rig
from bench.dataplane.cpu import cpu_s, rss_bytes
from bench.dataplane.fleet import serve
from bench.drivers import DRIVERS, Driver, DriverError
from bench.drivers.stickyroute import OFF, ON, Stickyroute

Reply = tuple[int, dict[str, str], bytes]

PROBES = [
    "GET /health",
    "GET /health_generate",
    "GET /version",
    "GET /v1/models",
    "GET /v1/models/sim",
    "GET /metrics",
    "GET /server_info",
    "GET /get_server_info",
    "GET /model_info",
    "GET /get_model_info",
    "GET /get_load",
    "GET /loads?model=sim",
    "GET /v1/loads?include=core,disagg,queues,memory",
    "POST /v1/chat/completions/render",
    "POST /v1/completions/render",
    "POST /v1/chat/completions",
    "POST /v1/completions",
]


@asynccontextmanager
async def fleet_of_one(spread: bool = False) -> AsyncIterator[int]:
    """The port of one fake engine, in this process."""
    servers, (port,) = await serve(1, spread)
    try:
        yield port
    finally:
        servers[0].close()
        await servers[0].wait_closed()


async def exchange(port: int, sent: bytes) -> bytes:
    """Everything that comes back until the engine has closed, after our half is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    received = await reader.read()
    writer.close()
    return received


async def ask(port: int, line: str, body: bytes = b"{}", *fields: str) -> Reply:
    """One request on one connection; a chunked body comes back joined."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = [f"{line} HTTP/1.1", "host: fake", *(fields or [f"content-length: {len(body)}"]), "", ""]
    writer.write("\r\n".join(head).encode() + body)
    answer = await read_reply(reader)
    writer.close()
    return answer


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in head[1:] if line)
    status = int(head[0].split(" ")[1])
    if "content-length" in fields:
        return status, fields, await reader.readexactly(int(fields["content-length"]))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return status, fields, body


def chat(content: str, stream: bool) -> bytes:
    return json.dumps(
        {"model": "sim", "messages": [{"role": "user", "content": content}], "stream": stream}
    ).encode()


@pytest.mark.parametrize("line", PROBES)
async def test_every_probe_of_the_routers_is_answered(line: str) -> None:
    async with fleet_of_one() as port:
        status, _, body = await ask(port, line)
    assert status == 200
    if line in ("GET /version", "GET /v1/models", "GET /server_info", "POST /v1/chat/completions/render"):
        assert json.loads(body)


async def test_metrics_carry_vllms_names() -> None:
    async with fleet_of_one() as port:
        _, _, body = await ask(port, "GET /metrics")
    for name in (
        "kv_cache_usage_perc",
        "gpu_cache_usage_perc",
        "num_requests_running",
        "num_requests_waiting",
    ):
        assert f"vllm:{name}{{".encode() in body


@pytest.mark.parametrize(
    "line", ["GET /nothing", "POST /health", "POST /flush_cache", "GET /v1/chat/completions"]
)
async def test_what_the_fleet_does_not_know_is_404(line: str) -> None:
    async with fleet_of_one() as port:
        assert (await ask(port, line))[0] == 404


async def test_an_http2_preface_is_survived() -> None:
    async with fleet_of_one() as port:
        answered = await exchange(
            port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
        )
        assert answered.startswith(b"HTTP/1.1 505 ")
        assert (await ask(port, "GET /health"))[0] == 200


async def test_a_chunked_body_after_100_continue_then_a_second_request() -> None:
    body = chat("[tokens=3 every_ms=0] hello", stream=True)
    async with fleet_of_one() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\n"
            b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:]))
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        status, _, events = await read_reply(reader)
        assert (status, events.count(b"data: ")) == (200, 4)
        assert (await read_reply(reader))[0] == 200
        writer.close()


async def test_streamed_and_not_as_the_body_says_and_as_the_prompt_says() -> None:
    async with fleet_of_one() as port:
        path = "POST /v1/chat/completions"
        status, fields, body = await ask(port, path, chat("hello", stream=False))
        assert (status, fields["content-type"]) == (200, "application/json")
        assert json.loads(body)["choices"][0]["message"]["role"] == "assistant"
        _, fields, body = await ask(port, path, chat("hello", stream=True))
        assert fields["transfer-encoding"] == "chunked"
        assert body.endswith(b"data: [DONE]\n\n")
        _, _, body = await ask(port, path, chat("[tokens=64 every_ms=0] hello", stream=True))
        assert body.count(b"data: ") == 65


@pytest.mark.parametrize("spread", [False, True])
async def test_a_paced_stream_sends_each_token_and_an_end(spread: bool) -> None:
    async with fleet_of_one(spread) as port:
        _, _, body = await ask(
            port, "POST /v1/completions", b'{"stream": true, "prompt": "[tokens=5 every_ms=1]"}'
        )
    events = body.split(b"\n\n")
    assert [json.loads(event[6:])["choices"][0]["text"] for event in events[:5]] == [" token"] * 5
    assert events[5:] == [b"data: [DONE]", b""]


def test_cpu_and_memory_of_this_process_and_of_two() -> None:
    me = [os.getpid()]
    before = cpu_s(me)
    sum(range(200_000))
    assert cpu_s(me) > before
    assert cpu_s(me * 2) > cpu_s(me)
    assert rss_bytes(me * 2) > rss_bytes(me) > 2**20


PASS_THROUGH = """\
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def relay(reader, writer):
    upstream = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(reader, upstream[1]), pump(upstream[0], writer), return_exceptions=True)

async def main():
    server = await asyncio.start_server(relay, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
"""


class PassThrough(Driver):
    """A router that routes nothing: bytes in, bytes out, to the first backend."""

    name = "pass-through"
    default_policy = "none"

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        script = folder / "relay.py"
        script.write_text(PASS_THROUGH)
        return [self.program, str(script), str(port), backends[0].rpartition(":")[2]]


class Broken(PassThrough):
    """A router that dies at once."""

    name = "broken"

    def command(self, port: int, backends: list[str], folder: Path) -> list[str]:
        return [self.program, "-c", "raise SystemExit('no such luck')"]


def test_a_round_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig, "SLICES", 2)  # and one to warm up
    driver = PassThrough(sys.executable, "1")
    said: list[str] = []
    samples = rig.run([driver], repeats=1, scale=0.02, pin=False, say=said.append)
    assert samples["pass-through"].failures == []
    _, row = report.rows(samples)
    for phase in report.COSTS:
        assert len(row.known(phase)) + row.disturbed.get(phase, 0) == rig.SLICES
        assert all(cost > 0 for cost in row.known(phase))
    assert row.disturbed.keys() <= {"token"}  # the only phase that a stall of the machine can spoil
    assert row.p50_ms is not None
    assert (row.idle_rss_mib or 0) > 1
    assert "pass-through 1, none" in report.text(samples)


def test_a_router_that_does_not_start_is_a_failure_not_a_number() -> None:
    samples = rig.run([Broken(sys.executable, "1")], repeats=1, scale=0.02, pin=False, say=lambda line: None)
    assert "no such luck" in samples["broken"].failures[0]
    assert "no such luck" in report.text(samples)
    assert report.rows(samples)[1].cost_us("unary_1k") is None


def test_a_driver_says_why_a_router_did_not_start(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="exited with 1: no such luck"):
        Broken(sys.executable, "1").start(["http://127.0.0.1:9"], tmp_path)


def test_every_launcher_writes_its_backends_where_its_router_reads_them(tmp_path: Path) -> None:
    backends = ["http://127.0.0.1:8101", "http://127.0.0.1:8102"]
    for name, driver in DRIVERS.items():
        folder = tmp_path / name
        folder.mkdir()
        command = driver("program", "1").command(18080, backends, folder)
        read = " ".join(command) + "".join(file.read_text() for file in folder.iterdir())
        for wanted in ("127.0.0.1:8101", "127.0.0.1:8102", "18080"):
            assert wanted in read, name


def slices(*costs_us: float | None) -> list[dict[str, float] | None]:
    return [None if cost is None else {"cpu_s": cost * 100 / 1e6, "requests": 100} for cost in costs_us]


def test_ratios_pair_the_slices_and_skip_those_that_failed() -> None:
    ours, theirs = rig.Samples("ours"), rig.Samples("theirs")
    # Slice 2 was slow for both, slice 3 went wrong for us: 10/20, 100/200 and 30/50 remain, median 0.5.
    ours.slices["unary_1k"] = slices(10, 100, None, 30)
    theirs.slices["unary_1k"] = slices(20, 200, 40, 50)
    left, right = report.rows({"stickyroute": ours, "sglang-router": theirs})
    assert report.ratio(left, right, "unary_1k") == pytest.approx(0.5)
    assert left.cost_us("unary_1k") == pytest.approx(30)
    assert "unary 1 KB: at most 0.85 x sglang-router: 0.50, met" in report.verdicts([left, right])
    assert "unary 32 KB: at most 0.75 x sglang-router: not measured" in report.verdicts([left, right])


def test_a_disturbed_slice_gives_no_number_and_is_no_failure() -> None:
    samples = rig.Samples("label")
    good = {"errors": 0, "missing_events": 0, "cpu_s": 1.0, "tokens": 10, "reads": 10, "rss_bytes": 1}
    samples.add("token", {**good, "disturbed": True})
    samples.add("token", {**good, "disturbed": False})
    assert len(samples.good("token")) == 1
    assert samples.failures == []
    assert "- router: {'token': 1}" in report.text({"router": samples})


def test_a_slice_with_errors_gives_no_number() -> None:
    samples = rig.Samples("label")
    samples.add("unary_1k", {"errors": 1, "missing_events": 0, "cpu_s": 1.0, "requests": 10})
    samples.add("unary_1k", {"errors": 0, "missing_events": 3, "cpu_s": 1.0, "requests": 10})
    samples.add("unary_1k", {"failed": "TimeoutError()"})
    assert samples.good("unary_1k") == []
    assert len(samples.failures) == 3


def test_stickyroute_runs_from_its_launcher_until_standard_input_closes() -> None:
    with rig.child("bench.dataplane.fleet", ["--engines", "2"], None) as fleet:
        backends = [f"--backend=http://127.0.0.1:{port}" for port in fleet.hear()["ports"]]
        launcher = rig.Child("bench.drivers", ["stickyroute", *backends], None)
        try:
            ready = launcher.hear()
            assert ready["label"].endswith(", sticky")
            assert len(ready["pids"]) == 1
            connection = http.client.HTTPConnection("127.0.0.1", ready["port"], timeout=30)
            connection.request("POST", "/v1/chat/completions", chat("[tokens=3 every_ms=1]", stream=True))
            reply = connection.getresponse()
            assert reply.read().count(b"data: ") == 4
            assert reply.headers["x-request-id"]
            connection.close()
        finally:
            launcher.stop()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", ready["port"], timeout=30).connect()


def test_each_checkout_of_ours_is_measured_against_itself(tmp_path: Path) -> None:
    (tmp_path / "stickyroute/routing").mkdir(parents=True)
    (tmp_path / "stickyroute/routing/index.cpython-311-x86_64-linux-gnu.so").touch()
    ours = Stickyroute("python", "1.0", checkout=tmp_path)
    assert ours.label == "stickyroute 1.0 compiled, sticky"
    assert ours.folder_to_run_in(tmp_path / "run") == tmp_path
    on, off = (replace(ours, watching=watching) for watching in (ON, OFF))
    rows = [
        report.Row(
            one.key,
            one.label,
            {phase: [cost] for phase in report.COSTS},
            None,
            None,
            None,
            None,
            None,
            (),
            {},
        )
        for one, cost in ((on, 110.0), (off, 100.0), (Stickyroute("python", "1.0", watching=OFF), 50.0))
    ]
    (verdict, *_) = report.watching_verdicts(rows)
    assert "1.10, met" in verdict


def test_the_range_of_a_median_is_that_of_the_binomial_tables() -> None:
    assert report.median_range([1.0] * 7) is None
    assert report.median_range([float(number) for number in range(8, 0, -1)]) == (1, 8)
    assert report.median_range([float(number) for number in range(1, 46)]) == (15, 31)


def test_no_router_always_goes_first() -> None:
    asked: list[int] = []

    class Load:
        def ask(self, question: dict[str, Any]) -> dict[str, Any]:
            asked.append(question["port"])
            return {"cpu_s": 1.0, "requests": 1, "errors": 0, "missing_events": 0}

    class Router:
        def __init__(self, port: int) -> None:
            self.port = port

        def pids(self) -> list[int]:
            return [os.getpid()]

    routers: Any = {"a": Router(1), "b": Router(2)}
    samples = {name: rig.Samples(name) for name in routers}
    rig.measure(routers, 0, Load(), [rig.Phase("unary_1k", {}, slices=3)], samples, print)  # type: ignore[arg-type]
    assert asked == [1, 2, 2, 1, 1, 2, 2, 1]
    assert [len(one.good("unary_1k")) for one in samples.values()] == [3, 3]
