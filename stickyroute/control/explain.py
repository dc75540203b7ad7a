"""POST /explain on the admin port: the whole decision for one request, as JSON or as text.

Owns how a request is handed in and how the answer is printed; the decision is `proxy.explain`'s. Nothing is sent,
counted or remembered. The body is either the client's own, with its headers on this request and the route as
`?path=`, or an object {"path", "headers", "body", "tenant"}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from aiohttp import web

from stickyroute.control.answers import json_answer
from stickyroute.control.deps import Deps
from stickyroute.errors import BadRequest

__all__ = ["Asked", "add_routes", "as_text", "read_asked"]

PATH: Final = "/v1/chat/completions"
_WRAPPER: Final = frozenset({"path", "method", "headers", "body", "tenant", "time", "status"})
# What belongs to the way here and not to the request that is explained.
_OURS: Final = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "accept", "accept-encoding", "user-agent",
})  # fmt: skip


class Asked:
    """A request to explain, taken apart."""

    __slots__ = ("body", "headers", "method", "path", "tenant")

    def __init__(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.path = path
        self.method = "POST"
        self.headers = headers
        self.body = body
        self.tenant: str | None = None


def read_asked(data: bytes, path: str = PATH, headers: Mapping[str, str] | None = None) -> Asked:
    """`data` is a request's body, or an object with the parts of a request. Raises BadRequest."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return Asked(path, headers or {}, data)  # what the proxy would say of it is the answer
    if not isinstance(value, dict) or "body" not in value or not value.keys() <= _WRAPPER:
        return Asked(path, headers or {}, data)
    given = value.get("headers", {})
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise BadRequest('"headers" must be an object of texts.', param="headers")
    for name in ("path", "method", "tenant"):
        if value.get(name) is not None and not isinstance(value[name], str):
            raise BadRequest(f'"{name}" must be a text.', param=name)
    body = value["body"]
    try:
        sent = body.encode() if isinstance(body, str) else orjson.dumps(body)
    except orjson.JSONEncodeError:
        raise BadRequest(
            '"body" is nested too deep to be written; send it as a text.', param="body"
        ) from None
    asked = Asked(value.get("path") or path, given, sent)
    asked.method = value.get("method") or "POST"
    asked.tenant = value.get("tenant")
    return asked


def add_routes(app: web.Application, deps: Deps) -> None:
    """POST /explain?path=&format=text&reveal=1."""
    explainer = deps.explainer
    if explainer is None:
        return

    async def explain(request: web.Request) -> web.Response:
        query = request.query
        # The admin's own token travels as Authorization; a client's key is named as "tenant" or in the object.
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _OURS and name.lower() != "authorization"
        }
        asked = read_asked(await request.read(), query.get("path", PATH), headers)
        answer = explainer.explain(
            asked.path,
            asked.headers,
            asked.body,
            method=asked.method,
            tenant=asked.tenant if asked.tenant is not None else query.get("tenant"),
            reveal=query.get("reveal", "") in ("1", "true", "yes"),
        )
        accept = request.headers.get("Accept", "")
        if query.get("format", "") == "text" or (accept.startswith("text/plain") and "format" not in query):
            return web.Response(text=as_text(answer), headers={"Cache-Control": "no-store"})
        return json_answer(answer)

    app.router.add_post("/explain", explain)


# As text.


def as_text(answer: Mapping[str, Any]) -> str:
    """The answer for a person: what was asked, the table of backends, who was chosen and why."""
    request = answer["request"]
    lines = [f"{request['method']} {request['path']}, {request['body_bytes']} bytes"]
    if "model" in request:
        pool = f" (pool {request['pool']})" if "pool" in request else ""
        lines.append(f"model     {request['model'] or 'not named'}{pool}")
    if request.get("tenant"):
        lines.append(f"tenant    {request['tenant']}")
    lines += [*_key_lines(answer), f"policy    {answer['policy']}"]
    if answer["refused"] is not None:
        refused = answer["refused"]
        lines.append(f"refused   {refused['status']} {refused['code']}: {refused['message']}")
    backends = answer.get("backends")
    if backends:
        lines += ["", *_table(answer, backends), "", *_verdict(answer)]
    return "\n".join([*lines, *(f"note: {note}" for note in answer["notes"])]) + "\n"


def _key_lines(answer: Mapping[str, Any]) -> list[str]:
    key, prompt = answer.get("key"), answer.get("prompt")
    if key is None or prompt is None:
        return []
    if key["hash"] is None:
        told = "none"
    else:
        told = f"{key['hash']} from {key['source']}"
        if "value" in key:
            told += f" = {key['value']!r}"
        if not key["used"]:
            told += " (this policy does not look at it)"
    about = "" if prompt["tokens_are"] == "exact" else "about "
    return [
        f"key       {told}",
        f"prompt    {prompt['bytes']} bytes, {about}{prompt['tokens']} tokens, {prompt['blocks']} blocks",
    ]


def _table(answer: Mapping[str, Any], backends: Sequence[Mapping[str, Any]]) -> list[str]:
    chosen = (answer["choice"] or {}).get("backend")
    second = (answer["runner_up"] or {}).get("backend")
    terms = list(next((row["terms"] for row in backends if "terms" in row), {}))
    head = ["", "backend", "ring", "in flight", "backlog", "held", "overlap", "ttft ms"]
    head += (
        [name.removesuffix("_s") + " ms" for name in terms] + (["cost ms"] if terms else []) + ["excluded"]
    )
    rows = [head]
    for row in sorted(
        backends, key=lambda row: (row.get("place") is None, row.get("place") or 0, row["name"])
    ):
        mark = "*" if row["name"] == chosen else "2" if row["name"] == second else ""
        cells = [mark, row["name"]]
        if "weight" in row:
            own = row.get("terms")
            cells += [
                str(row["place"] or "-"),
                str(row["in_flight"]),
                f"{row['backlog_tokens']:.0f}",
                f"{row['held_tokens']:.0f}",
                f"{row['overlap']:.0%}",
                _ms(row["predicted_ttft_s"]),
                *(_ms(own[name]) if own else "-" for name in terms),
                *([_ms(row["cost_s"]) if row["cost_s"] is not None else "-"] if terms else []),
            ]
        else:
            cells += ["-"] * (len(head) - 3)
        rows.append([*cells, row["excluded"] or ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    last = len(head) - 1
    return [
        "  ".join(
            cell.ljust(width) if column in (0, 1, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _verdict(answer: Mapping[str, Any]) -> list[str]:
    lines = []
    for mark, name in (("*", "choice"), ("2", "runner_up")):
        found = answer[name]
        if found is not None:
            why = f" ({found['reason']})" if found["reason"] else ""
            lines.append(
                f"{mark} {name.replace('_', '-'):9} {found['backend']}{why}, "
                f"first token in about {_ms(found['predicted_ttft_s'])} ms, {found['overlap']:.0%} of the prompt held"
            )
    if answer["looks_at"]:
        lines.append(f"{answer['policy']} looks at: {', '.join(answer['looks_at'])}")
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
