"""explain, doctor and kv as commands: what they print, how they exit, and what they say of what is wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stickyroute.cli import main
from stickyroute.routing.doctor.advice import ADVICE
from tests.support.fake_backend import fakes
from tests.support.raw_client import chat
from tests.support.run_proxy import run_proxy

CONFIG = """
backends:
  - {name: a, url: "http://127.0.0.1:1", models: [m]}
  - {name: b, url: "http://127.0.0.1:2", models: [m]}
  - {name: c, url: "http://127.0.0.1:3", models: [other]}
policy: sticky
api_keys: [{name: team, key: a-secret-of-theirs}]
affinity: {tenant_header: x-team}
"""
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}  # fmt: skip
DOCUMENT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
TEXT = "Bread is baked each morning. " * 20


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "stickyroute.yaml"
    path.write_text(CONFIG)
    return str(path)


def written(path: Path, *lines: Any) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


# explain


def test_explain_against_a_configuration(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(chat(TEXT, user="alice"))
    assert main(["explain", str(body), "--config", config, "--tenant", "team"]) == 0
    text = capsys.readouterr().out
    assert "from body:user" in text
    assert "alice" not in text
    assert "does not serve m" in text
    assert main(["explain", str(body), "--config", config, "--reveal", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["key"]["value"] == "alice"
    assert {row["name"] for row in told["backends"]} == {"a", "b", "c"}
    assert told["choice"]["reason"] == "home"


def test_explain_offline_says_what_it_cannot_know_of_discovery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, found = tmp_path / "stickyroute.yaml", written(tmp_path / "found.json", ["http://127.0.0.1:4"])
    config.write_text(
        f"discovery: [{{kind: file, path: {found}}}, {{kind: kubernetes, service: vllm, namespace: llm}}]"
    )
    body = written(tmp_path / "body.json", json.loads(chat()))
    assert main(["explain", body, "--config", str(config)]) == 0
    text = capsys.readouterr().out
    assert "* choice    127.0.0.1:4 (home)" in text
    assert (
        "note: Backends that kubernetes:llm/vllm finds are not known here: leave out --config to ask the "
        "running proxy.\n"
    ) in text


def test_explain_what_would_be_refused(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(chat(model="nobody's"))
    assert main(["explain", str(body), "--config", config]) == 1
    assert "404 model_not_found" in capsys.readouterr().out


async def test_explain_asks_a_running_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(chat(TEXT))
    async with fakes("a", "b") as two, run_proxy(two, policy="sticky", response_headers=True) as proxy:
        arguments = ["explain", str(body), "--admin", f"http://127.0.0.1:{proxy.admin_port}", "--json"]
        asking = [*arguments, "--header", "X-Session-Id: alice"]
        assert await asyncio.to_thread(main, asking) == 0
        told = json.loads(capsys.readouterr().out)
        answer = await proxy.ask(body.read_bytes(), headers={"X-Session-Id": "alice"})
        assert answer.get("x-stickyroute-backend") == told["choice"]["backend"]
        assert told["key"]["source"] == "header:x-session-id"


def test_explain_says_what_is_wrong(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "none.json"), "--config", config]) == 2
    body = written(tmp_path / "body.json", {"body": {}, "headers": 3})
    assert main(["explain", body, "--config", config]) == 2
    body = written(tmp_path / "body.json", {})
    assert main(["explain", body, "--config", config, "--header", "alice"]) == 2
    assert main(["explain", body, "--admin", "http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "No such file" in said
    assert '"headers" must be an object' in said
    assert "write NAME:VALUE" in said
    assert "no answer from http://127.0.0.1:1" in said


# doctor


def turn(number: int, clock: bool) -> dict[str, Any]:
    system = (f"It is 2026-11-29T12:00:{number:02}Z. " if clock else "") + TEXT
    asked = [
        {"role": "user", "content": f"Tell me of day {day} of the week, if you would."}
        for day in range(number)
    ]
    return {"model": "m", "messages": [{"role": "system", "content": system}, *asked]}


@pytest.mark.parametrize("form", ["body", "batch", "text"])
def test_doctor_reads_a_log(
    tmp_path: Path, form: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[Any] = []
    for number in range(1, 5):
        for user, clock in (("good", False), ("clocked", True)):
            body = {**turn(number, clock), "user": user}
            about = {"time": f"2026-11-29T12:0{number}:00+00:00", "headers": {"X-Team": user}}
            if form == "body":
                lines.append(body)
            elif form == "batch":
                lines.append(
                    {**about, "custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
                )
            else:
                lines.append({**about, "time": 1_764_000_000_000 + 60_000 * number, "body": json.dumps(body)})
    log = written(tmp_path / "log.jsonl", *lines)
    assert main(["doctor", log, "--config", config, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (found,) = told["findings"]
    assert (found["place"], found["kind"], found["breaks"]) == ("system", "timestamp or date", 3)
    assert told["requests"] == 8
    if form == "body":
        assert found["tenant"] is None
        assert found["lost_tokens_per_hour"] is None
    else:
        assert found["tenant"] == "clocked"
        assert found["lost_tokens_per_hour"] > 0
        assert told["since_s"] == 180.0
    assert main(["doctor", log]) == 1
    text = capsys.readouterr().out
    assert "Take the clock out of the system prompt" in text
    assert "It is 2026" not in text
    assert main(["doctor", log, "--samples"]) == 1
    assert "It is 2026" in capsys.readouterr().out


def test_doctor_finds_nothing_where_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path / "log.jsonl", *(turn(number, clock=False) for number in range(1, 5)))
    assert main(["doctor", log]) == 0
    assert "Nothing breaks a prefix." in capsys.readouterr().out


def test_doctor_says_which_lines_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(f'{{\n\n[]\n{{"body": "{{"}}\n{json.dumps(turn(1, clock=False))}\n{{"a": 1}}\n')
    assert main(["doctor", str(log)]) == 0
    said = capsys.readouterr().err
    assert "line 1 is not JSON" in said
    assert "line 3 is neither" in said
    assert "and 1 more" in said
    log.write_text("{}\n")
    assert main(["doctor", str(log)]) == 2
    assert "no line of it is a request" in capsys.readouterr().err


async def test_doctor_asks_a_running_proxy(capsys: pytest.CaptureFixture[str]) -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        arguments = ["doctor", "--admin", f"http://127.0.0.1:{proxy.admin_port}"]
        assert await asyncio.to_thread(main, arguments) == 0
    assert "0 requests" in capsys.readouterr().out


# kv


def test_kv_tells_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "config.json", LLAMA)
    assert main(["kv", "--model-config", path, "--gpu-memory", "80GiB"]) == 0
    text = capsys.readouterr().out
    assert "128 KiB (bfloat16)" in text
    assert "55 with 8,192 tokens each (1.0 GiB)" in text
    assert (
        main(["kv", "--model-config", str(tmp_path), "--gpu-memory", "80 GB", "--kv-dtype", "fp8", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["token_bytes"] == 64 * 1024


def test_what_the_documentation_shows_is_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "config.json", LLAMA)
    main(["kv", "--model-config", path, "--gpu-memory", "80GiB"])
    assert capsys.readouterr().out in DOCUMENT
    for kind, text in ADVICE.items():
        assert f"| {kind} |" in DOCUMENT, text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--gpu-memory", "8GiB"], "do not fit into 1 x 8 GiB"),
        (["--gpu-memory", "80GiB", "--kv-dtype", "fp7"], "--kv-dtype: 'fp7'"),
        (["--gpu-memory", "80GiB", "--context", "200000"], "past what the model can do (131072 tokens)"),
    ],
)
def test_kv_says_what_is_wrong(
    tmp_path: Path, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "config.json", LLAMA)
    assert main(["kv", "--model-config", path, *more]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("memory", ["80", "big", "0GiB", "-3GiB"])
def test_kv_wants_a_size(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kv", "--model-config", "x", f"--gpu-memory={memory}"])
    assert "give a size" in capsys.readouterr().err
