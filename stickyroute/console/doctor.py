"""`stickyroute doctor`: what the proxy's prefix doctor found, or what one finds in a log of requests.

Owns the reading of logs. Keys and tenants come from requests as they do in the proxy, by the same rule. Exit codes:
0 nothing breaks prefixes, 1 something does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TextIO

import orjson

from stickyroute import defaults
from stickyroute.console.client import Refused, open_admin
from stickyroute.control.doctor_report import as_text, report
from stickyroute.errors import ConfigError
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Shape
from stickyroute.routing.affinity import AffinityRule
from stickyroute.routing.doctor import Doctor
from stickyroute.settings import load_settings

__all__ = ["doctor", "examine", "read_log"]

_SHAPES: Final = {
    "/v1/chat/completions": Shape.CHAT,
    "/v1/completions": Shape.COMPLETIONS,
    "/v1/messages": Shape.MESSAGES,
    "/v1/responses": Shape.RESPONSES,
}
_MILLISECONDS: Final = 1e11  # a time past that many seconds is told in milliseconds
_TOLD: Final = 3  # lines that could not be read
_KEYS: Final = 1_000_000


class Logged(NamedTuple):
    """One request of a log. `time_s` is None where the line has none."""

    shape: Shape
    body: Mapping[str, Any]
    headers: Mapping[bytes, bytes]
    time_s: float | None
    tenant: str


def doctor(flags: argparse.Namespace, out: TextIO | None = None) -> int:
    """Run the command. Raises ConfigError, and OSError for a file that cannot be read."""
    out = out if out is not None else sys.stdout
    if flags.file is None:
        admin = open_admin(flags)
        try:
            told = admin.get("/doctor" + ("?samples=1" if flags.samples else ""))
        except Refused as refused:
            print(f"stickyroute: {refused}", file=sys.stderr)
            return 1
        finally:
            admin.close()
    else:
        affinity = load_settings(flags.config).affinity if flags.config is not None else None
        sources = affinity.sources if affinity is not None else defaults.AFFINITY_SOURCES
        tenant_header = affinity.tenant_header if affinity is not None else None
        problems: list[str] = []
        if flags.file == "-":
            told = examine(read_log(sys.stdin.buffer, problems), sources, tenant_header, flags)
        else:
            with open(flags.file, "rb") as lines:
                told = examine(read_log(lines, problems), sources, tenant_header, flags)
        for problem in problems[:_TOLD]:
            print(f"stickyroute: {flags.file}: {problem}", file=sys.stderr)
        if len(problems) > _TOLD:
            print(f"stickyroute: {flags.file}: and {len(problems) - _TOLD} more such lines", file=sys.stderr)
        if not told["requests"]:
            raise ConfigError(f"{flags.file}: no line of it is a request with a prompt")
    print(
        json.dumps(told, indent=2) if flags.json else as_text(told), end="\n" if flags.json else "", file=out
    )
    return 1 if told["findings"] else 0


def examine(
    log: Iterable[Logged], sources: tuple[str, ...], tenant_header: str | None, flags: argparse.Namespace
) -> dict[str, Any]:
    """The report on a log. Keys come from `sources`; where they say nothing, a conversation is known by its first
    message."""
    named = AffinityRule([source for source in sources if source != "prefix"])
    header = tenant_header.lower().encode() if tenant_header else None
    patient: Doctor | None = None
    now_s = first_s = 0.0
    timed = False
    for number, request in enumerate(log):
        if request.time_s is not None:
            timed = True
            now_s = max(now_s, request.time_s)
        elif not timed:
            now_s = float(number)
        if patient is None:
            first_s = now_s
            patient = Doctor(_KEYS, first_s, flags.samples)
        tenant = request.tenant
        if not tenant and header is not None:
            tenant = request.headers.get(header, b"").decode("utf-8", "replace")
        model = request.body.get("model")
        asked = Asked(model if isinstance(model, str) else None, False, dict(request.body))
        key = named.keys(request.headers, request.shape, asked, tenant).affinity
        pool = asked.model or "(no model)"
        patient.see(key, tenant, pool, request.shape, request.body, now_s, 1.0 / flags.bytes_per_token)
    if patient is None:
        patient = Doctor(1, 0.0)
    return report(patient, now_s, samples=flags.samples, timed=timed and now_s > first_s)


def read_log(lines: Iterable[bytes], problems: list[str]) -> Iterator[Logged]:
    """The requests of a log, one JSON object a line; a line that is none is told in `problems`, once each."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problems.append(f"line {number} is not JSON: {error.msg}")
            continue
        request = _request(value)
        if request is None:
            problems.append(f"line {number} is neither a request's body nor an object with one as `body`")
        else:
            yield request


def _request(value: Any) -> Logged | None:
    if not isinstance(value, dict):
        return None
    body: Any = value
    outer: dict[str, Any] = {}
    if "body" in value and "messages" not in value:
        outer, body = value, value["body"]
        if isinstance(body, str):
            try:
                body = orjson.loads(body)
            except orjson.JSONDecodeError:
                return None
    if not isinstance(body, dict):
        return None
    path = outer.get("path") or outer.get("url") or ""
    shape = _SHAPES.get(path.partition("?")[0] if isinstance(path, str) else "") or _shape(body)
    if shape is None:
        return None
    given = outer.get("headers")
    headers = {
        str(name).lower().encode("utf-8", "replace"): str(text).encode("utf-8", "replace")
        for name, text in (given.items() if isinstance(given, dict) else ())
    }
    tenant = outer.get("tenant")
    return Logged(
        shape, body, headers, _seconds(outer.get("time")), tenant if isinstance(tenant, str) else ""
    )


def _shape(body: Mapping[str, Any]) -> Shape | None:
    if isinstance(body.get("messages"), list):
        return Shape.MESSAGES if "system" in body else Shape.CHAT
    if "input" in body:
        return Shape.RESPONSES
    return Shape.COMPLETIONS if "prompt" in body else None


def _seconds(value: Any) -> float | None:
    """A time as seconds: a number of seconds or milliseconds, or an ISO date and time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value / 1000 if value > _MILLISECONDS else float(value)
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    return None
