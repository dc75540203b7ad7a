import asyncio
import signal
import sys

import pytest

from stickyroute.simulator import cli
from stickyroute.simulator.config import EngineConfig
from stickyroute.simulator.profiles import H100_LLAMA_70B


def config(*flags):
    return cli.config_of(cli.parser().parse_args(flags))


def test_flags_become_a_config():
    assert config() == EngineConfig()
    made = config(
        *("--profile", "h100-llama-70b", "--speedup", "10", "--dialect", "sglang", "--model", "m"),
        *("--blocks", "99", "--block-size", "32", "--max-queued", "7", "--api-key", "k", "--no-cache-report"),
        *("--fault", "30:crash", "--fault", "5:close:count=2,after_tokens=3", "--adapter", "a"),
    )
    assert (made.profile.time, made.profile.blocks, made.profile.block_size) == (H100_LLAMA_70B.time, 99, 32)
    assert (made.dialect, made.model, made.speedup, made.max_queued) == ("sglang", "m", 10.0, 7)
    assert (made.api_key, made.report_cached, made.adapters) == ("k", False, ("a",))
    assert made.faults == ((30.0, "crash"), (5.0, "close:count=2,after_tokens=3"))


def test_each_engine_publishes_on_a_port_of_its_own():
    fleet = cli.fleet(config("--kv-events", "tcp://*:5557", "--kv-replay", "ipc:///tmp/replay"), 3)
    assert [one.kv_events for one in fleet] == ["tcp://*:5557", "tcp://*:5558", "tcp://*:5559"]
    assert [one.kv_replay for one in fleet] == [f"ipc:///tmp/replay{index}" for index in range(3)]
    free = cli.fleet(config("--kv-events", "tcp://127.0.0.1:*"), 2)
    assert [one.kv_events for one in free] == ["tcp://127.0.0.1:*"] * 2
    assert cli.fleet(config(), 2) == [EngineConfig()] * 2


def test_an_unknown_profile_is_refused():
    with pytest.raises(SystemExit):
        config("--profile", "nonsense")


def test_a_wrong_fault_is_an_error_not_a_traceback(capsys):
    assert cli.main(["--engines", "1", "--port", "0", "--fault", "1:nonsense"]) == 1
    assert "unknown fault" in capsys.readouterr().err


async def test_engines_run_until_they_are_told_to_stop():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from stickyroute.simulator.cli import main; raise SystemExit(main())"),
        *("--engines", "2", "--port", "0", "--model", "m"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode() for _ in range(2)]
    for line in lines:
        url = line.split()[0]
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b'"id":"m"' in await reader.read()
        writer.close()
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
