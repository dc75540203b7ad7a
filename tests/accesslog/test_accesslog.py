"""The access log: what a line says, what it never says, and that the loop never waits for its output."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from stickyroute import accesslog
from stickyroute.accesslog import AccessLog, form
from stickyroute.errors import ConfigError

LINE: dict[str, Any] = {
    "request_id": b"req-1",
    "peer": "127.0.0.1",
    "method": b"POST",
    "route": "/v1/chat/completions",
    "pool": "llama",
    "key": 0xABC,
    "key_source": "header:x-session-id",
    "backend": "gpu-0",
    "reason": "home",
    "attempts": 1,
    "status": 200,
    "ttft_s": 0.0123456789,
    "duration_s": 1.5,
    "bytes_in": 120,
    "bytes_out": 3400,
    "prompt_tokens": 2000,
    "cached_tokens": 1900,
    "expected_tokens": 1888.4,
    "answer_tokens": 30,
    "end": "complete",
}


def write_all(mode: str, path: Path, *lines: dict[str, Any]) -> list[str]:
    log = AccessLog(mode, path)
    for line in lines:
        log.write(**{**LINE, **line})
    log.close()
    assert log.dropped == 0
    return path.read_text().splitlines()


def test_json_line_says_everything_once(tmp_path: Path) -> None:
    (line,) = write_all("json", tmp_path / "log", {})
    said = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said.pop("ts"))
    assert said == {
        "request_id": "req-1",
        "peer": "127.0.0.1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "model": None,
        "pool": "llama",
        "key": "0000000000000abc",
        "key_source": "header:x-session-id",
        "backend": "gpu-0",
        "reason": "home",
        "attempts": 1,
        "status": 200,
        "ttft_s": 0.012346,
        "duration_s": 1.5,
        "bytes_in": 120,
        "bytes_out": 3400,
        "prompt_tokens": 2000,
        "cached_tokens": 1900,
        "expected_tokens": 1888,
        "answer_tokens": 30,
        "end": "complete",
    }
    assert list(json.loads(line)) == list(form.FIELDS)


def test_text_line_says_the_same_in_the_same_order(tmp_path: Path) -> None:
    (line,) = write_all("text", tmp_path / "log", {})
    (as_json,) = write_all("json", tmp_path / "json", {})
    pairs = [pair.split("=", 1) for pair in line.split(" ")]
    said = json.loads(as_json)
    assert [name for name, _ in pairs] == list(said)
    for name, value in pairs[1:]:
        if isinstance(said[name], float):
            assert float(value) == said[name]
        else:
            assert value == ("-" if said[name] is None else str(said[name]))


def test_text_times_are_digits_down_to_the_microsecond(tmp_path: Path) -> None:
    line, long = write_all(
        "text", tmp_path / "log", {"duration_s": 0.0000981, "ttft_s": 4e-7}, {"duration_s": 86_400.0}
    )
    assert " ttft_s=0.000000 duration_s=0.000098 " in line
    assert " duration_s=86400.000000 " in long


def test_absent_values_are_a_dash_and_a_dash_is_quoted(tmp_path: Path) -> None:
    absent, dash = write_all(
        "text", tmp_path / "log", {"key": None, "ttft_s": None, "backend": ""}, {"backend": "-"}
    )
    assert " key=- " in absent
    assert " ttft_s=- " in absent
    assert " backend=- " in absent
    assert ' backend="-" ' in dash


@pytest.mark.parametrize("mode", ["text", "json"])
@pytest.mark.parametrize(
    "forged",
    [
        b"a\r\nts=2026-01-01 status=200",
        b"\x1b[2J",
        b"\x00\x07\x7f",
        b"\xff\xfe\x85",
        "u\u2028v\u0085w",
        "\ud800",
        'quote " and \\ and = and space',
        b"x" * 8192,
    ],
)
def test_text_from_a_client_forges_nothing(tmp_path: Path, mode: str, forged: bytes | str) -> None:
    log = AccessLog(mode, tmp_path / "log")
    log.write(**{**LINE, "request_id": forged, "model": forged})
    log.close()
    raw = (tmp_path / "log").read_bytes()
    assert raw.count(b"\n") == 1
    assert raw.endswith(b"\n")
    assert not re.search(rb"[^\n -~]", raw)
    assert len(raw) < 4096


def test_lines_come_in_the_order_they_were_written(tmp_path: Path) -> None:
    lines = write_all("json", tmp_path / "log", *({"bytes_in": n} for n in range(3 * accesslog.BATCH_LINES)))
    assert [json.loads(line)["bytes_in"] for line in lines] == list(range(3 * accesslog.BATCH_LINES))


def test_appends_to_the_file(tmp_path: Path) -> None:
    write_all("text", tmp_path / "log", {})
    assert len(write_all("text", tmp_path / "log", {})) == 2


def test_a_line_is_written_without_closing() -> None:
    read_fd, write_fd = os.pipe()
    log = AccessLog("json", Path(f"/dev/fd/{write_fd}"))
    log.write(**LINE)
    assert json.loads(os.read(read_fd, 65536))["request_id"] == "req-1"
    log.write(**LINE | {"request_id": "second"})
    assert json.loads(os.read(read_fd, 65536))["request_id"] == "second"
    log.close()
    os.close(write_fd)
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)


def test_a_pipe_that_nobody_reads_holds_nobody_and_memory_stays_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accesslog, "MAX_WAITING_LINES", 1000)
    read_fd, write_fd = os.pipe()
    log = AccessLog("json", Path(f"/dev/fd/{write_fd}"))
    for _ in range(20_000):
        log.write(**LINE)  # returns although the pipe holds 64 KiB only
    assert log.dropped >= 20_000 - 1000 - 2 * 1000 - 65536 // 200
    log.close(timeout_s=0.01)
    assert "stuck" in caplog.text

    kept = 20_000 - log.dropped
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as reader:
        assert sum(1 for _ in reader) == kept


def test_what_was_lost_is_logged_once_the_output_moves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    log = AccessLog("json", tmp_path / "log")
    monkeypatch.setattr(accesslog, "MAX_WAITING_LINES", 0)
    log.write(**LINE)
    monkeypatch.undo()
    log.write(**LINE)
    log.close()
    assert [record.message for record in caplog.records] == ["access log: 1 lines were lost so far"]


def test_a_full_disk_is_said_once_and_writing_goes_on_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    full = True
    tried = threading.Semaphore(0)
    really_write = os.write

    def write(fd: int, data: bytes) -> int:
        if threading.current_thread().name != "accesslog":
            return really_write(fd, data)
        tried.release()
        if full:
            raise OSError(28, "No space left on device")
        return really_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    log = AccessLog("text", tmp_path / "log")
    for _ in range(3):
        log.write(**LINE)
        assert tried.acquire(timeout=10)
    full = False
    log.write(**LINE)
    log.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert "No space left" in messages[0]
    assert messages[1] == "access log: 3 lines were lost so far"


def test_a_non_blocking_output_gets_everything() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    sent = b"".join(b"%d\n" % n for n in range(50_000))
    received: list[bytes] = []

    def read() -> None:
        with os.fdopen(read_fd, "rb") as reader:
            received.append(reader.read())

    reader = threading.Thread(target=read)
    reader.start()
    accesslog._write_all(write_fd, sent)
    os.close(write_fd)
    reader.join()
    assert received == [sent]


def test_unknown_numbers_are_null_or_a_dash(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("key", "ttft_s", "prompt_tokens", "cached_tokens", "answer_tokens"))
    (line,) = write_all("json", tmp_path / "json", {**unknown, "expected_tokens": None})
    assert {name for name, value in json.loads(line).items() if value is None} == {
        *unknown, "expected_tokens", "model",
    }  # fmt: skip
    (line,) = write_all("text", tmp_path / "text", {**unknown, "expected_tokens": None})
    assert " prompt_tokens=- cached_tokens=- expected_tokens=- answer_tokens=- end=complete" in line


def test_the_usual_line_and_the_odd_one_say_the_same(tmp_path: Path) -> None:
    """Text in place of bytes, or a long one, takes the other way."""
    usual, odd, long = write_all(
        "json", tmp_path / "log", {"model": "m"}, {"model": "m", "method": "POST"}, {"model": "m" * 300}
    )
    said = json.loads(usual)
    assert {**json.loads(odd), "ts": said["ts"]} == said
    assert {**json.loads(long), "ts": said["ts"]} == {**said, "model": "m" * form.MAX_TEXT}
    assert (form.FIELDS[form.STATUS], form.FIELDS[form.END]) == ("status", "end")


def test_a_sample_is_a_share_of_what_went_well_and_all_of_the_rest(tmp_path: Path) -> None:
    log = AccessLog("json", tmp_path / "log", sample=0.25)
    for _ in range(100):
        log.write(**LINE)
    log.write(**LINE | {"status": 503})
    log.write(**LINE | {"end": "client_left"})
    log.retune(0.0)
    for _ in range(100):
        log.write(**LINE)
    log.close()
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["status"], line["end"]) for line in said[-2:]] == [(503, "complete"), (200, "client_left")]
    assert len(said) == 25 + 2


def test_a_file_that_was_moved_away_is_opened_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    written = threading.Semaphore(0)
    really_write = os.write

    def write(fd: int, data: bytes) -> int:
        size = really_write(fd, data)
        written.release()
        return size

    monkeypatch.setattr(os, "write", write)
    log = AccessLog("json", path)
    log.write(**LINE)
    assert written.acquire(timeout=10)
    path.rename(moved)
    log.write(**LINE | {"request_id": "after"})
    log.close()
    assert len(moved.read_text().splitlines()) == 1
    assert json.loads(path.read_text())["request_id"] == "after"


def test_hostile_words_are_kept_in_a_bounded_cache(tmp_path: Path) -> None:
    write_all("json", tmp_path / "log", *({"model": f"{n}" + "x" * 5000} for n in range(3)))
    write_all("text", tmp_path / "text", *({"model": f"{n}" + "x" * 5000} for n in range(3)))
    assert form._kept_json.cache_info().maxsize == form._kept_plain.cache_info().maxsize == 512
    assert "x" * 300 not in (tmp_path / "log").read_text()


def test_a_path_that_cannot_be_opened_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access_log_path: .*nowhere.*No such file"):
        AccessLog("text", tmp_path / "nowhere" / "log")


def test_an_unknown_format_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="access_log: 'xml'"):
        AccessLog("xml")
