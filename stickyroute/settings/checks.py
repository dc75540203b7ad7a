"""What a single value must look like: the types of settings with their checks.

Owns the grammar of each value. Messages say what to write and never repeat what was written, since it
may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from stickyroute.settings.addresses import parse_backend_url, split_host_port

_NAME = re.compile(r"[!#-\[\]-~]{1,128}")  # printable ASCII without space, quote, backslash
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BODY_FIELD = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ZMQ_ENDPOINT = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):(\d{1,5}|\*)|ipc://\S+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")
# The same grammar as openai.routes, which this floor can't see; a test holds the two together.
_SEGMENT = r"(\{id\}|(?!\.{1,2}(/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]+)"
_ROUTE = re.compile(rf"(GET|HEAD|POST|PUT|PATCH|DELETE) /({_SEGMENT}(/{_SEGMENT})*/?)?")
_SIZE = re.compile(r"\s*(\d+)\s*(B|KiB|MiB|GiB)?\s*")
_SIZE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Without "x-", with dashes. The same as in routing.affinity, and more; a test holds the two together.
_PER_REQUEST = frozenset({
    "amzn-requestid", "amzn-trace-id", "b3", "b3-spanid", "b3-traceid", "client-request-id",
    "cloud-trace-context", "content-length", "correlation-id", "correlationid", "datadog-parent-id",
    "datadog-trace-id", "date", "idempotency-key", "request-id", "requestid", "rid", "span-id", "trace-id",
    "traceid", "traceparent", "tracestate", "uber-trace-id",
})  # fmt: skip


Items = TypeVar("Items", bound=Sequence[object])


class Problem(NamedTuple):
    """One mistake: where it stands (keys and list indexes) and what to do about it."""

    path: tuple[str | int, ...]
    what: str


class Problems(ValueError):
    """Several mistakes found by one check."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.what for problem in self.problems))


def _no_booleans(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _size(value: object) -> object:
    """Bytes as a number, or as text with a unit: `64MiB`."""
    if isinstance(value, str):
        matched = _SIZE.fullmatch(value)
        if matched is None:
            raise ValueError("must be a number of bytes, or one with a unit: 65536, 64KiB, 64MiB, 1GiB")
        return int(matched[1]) * _SIZE_UNITS[matched[2]]
    return _no_booleans(value)


def split_commas(value: object) -> object:
    """A list, or its items in one text (environment variables and flags have no lists)."""
    if isinstance(value, str):
        return tuple(item for item in (part.strip() for part in value.split(",")) if item)
    return value


def off_is_a_word(value: object) -> object:
    return "off" if value is False else value  # YAML reads a bare `off` as false


def _is_text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(
            "must be HOST:PORT, such as 0.0.0.0:8080; put an IPv6 address in quotes: '[::]:8080'"
        )
    return value


def _address(value: str) -> str:
    return str(split_host_port(value))


def _url(value: str) -> str:
    return str(parse_backend_url(value))


def _zmq_endpoint(value: str) -> str:
    if not _ZMQ_ENDPOINT.fullmatch(value):
        raise ValueError("must be tcp://HOST:PORT, such as tcp://10.0.0.11:5557, or ipc://PATH")
    return value


def _source(value: str) -> str:
    kind, _, rest = value.partition(":")
    if rest.rpartition(".")[2].lower().replace("_", "-").removeprefix("x-") in _PER_REQUEST:
        raise ValueError(f"names a {kind} field that differs on every request: it keeps nobody in one place")
    if kind == "header" and _FIELD_NAME.fullmatch(rest):
        return f"header:{rest.lower()}"
    if kind == "body" and _BODY_FIELD.fullmatch(rest):
        return value
    if value == "prefix":
        return value
    raise ValueError("must be header:NAME, body:FIELD (dots for fields inside fields), or prefix")


def _header_name(value: str) -> str:
    if not _FIELD_NAME.fullmatch(value):
        raise ValueError("is not a header name")
    return value.lower()


def _key(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or any(not 0x21 <= ord(char) <= 0x7E for char in text):
        raise ValueError("must be printable ASCII without spaces, and not empty")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            "must be up to 128 printable ASCII characters without spaces, quotes and backslashes"
        )
    return value


def _origin(value: str) -> str:
    if value != "*" and not _ORIGIN.fullmatch(value):
        raise ValueError("must be * or an origin such as https://app.example.com, with no path")
    return value


def _route(value: str) -> str:
    method, _, path = value.strip().partition(" ")
    route = f"{method.upper()} {path.strip()}"
    if not _ROUTE.fullmatch(route):
        raise ValueError("must be METHOD /path, such as POST /v1/x/{id}, with no query and no % encoding")
    return route


def _readable_file(value: Path) -> Path:
    if not value.is_file():
        raise ValueError("names no file")
    if not os.access(value, os.R_OK):
        raise ValueError("names a file that this user may not read")
    return value


def not_empty(values: Items) -> Items:
    """The values, of which there must be some."""
    if not values:
        raise ValueError("must not be empty")
    return values


def _distinct(values: Sequence[str]) -> Sequence[str]:
    if len(set(values)) != len(values):
        raise ValueError("names the same thing twice")
    return values


WholeNumber = Annotated[int, BeforeValidator(_no_booleans)]
Number = Annotated[float, BeforeValidator(_no_booleans), Field(allow_inf_nan=False)]
Count = Annotated[WholeNumber, Field(ge=1)]
Seconds = Annotated[Number, Field(gt=0)]
Size = Annotated[int, BeforeValidator(_size)]
Listen = Annotated[str, BeforeValidator(_is_text), AfterValidator(_address)]
HostPort = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, AfterValidator(_url)]
Endpoint = Annotated[str, AfterValidator(_zmq_endpoint)]
Key = Annotated[SecretStr, AfterValidator(_key)]
Name = Annotated[str, AfterValidator(_name)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
ReadableFile = Annotated[Path, AfterValidator(_readable_file)]
Sources = Annotated[
    tuple[Annotated[str, AfterValidator(_source)], ...],
    BeforeValidator(split_commas),
    AfterValidator(not_empty),
    AfterValidator(_distinct),
]
Models = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(split_commas),
    AfterValidator(not_empty),
    AfterValidator(_distinct),
]
Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_origin)], ...],
    BeforeValidator(split_commas),
    AfterValidator(_distinct),
]
Routes = Annotated[
    tuple[Annotated[str, AfterValidator(_route)], ...],
    BeforeValidator(split_commas),
    AfterValidator(_distinct),
]
