"""One HTTP message as values: what was received, which fields travel on, how a head is written.

Owns the hop-by-hop rules (RFC 9110 section 7.6.1) in both directions. Knows nothing of sockets.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

# Fields that describe one connection, never the message; each side of the proxy has its own (RFC 9110 7.6.1).
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)

# Request fields that do not travel as they came: written anew for the backend, or kept apart because the
# backend's own credential may have to take their place.
REQUEST_OWN: Final = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"x-request-id",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"authorization",
    b"x-api-key",
}

# Response fields we read or may write ourselves; all others are copied as they came.
RESPONSE_OWN: Final = HOP_BY_HOP | {
    b"content-length",
    b"content-type",
    b"cache-control",
    b"x-accel-buffering",
    b"x-request-id",
    b"x-stickyroute-backend",
    b"x-stickyroute-reason",
}

_PLAIN_CONNECTION: Final = frozenset({b"close", b"keep-alive", b"upgrade", b""})

# The heads of short chunks, ready made: a streamed token is one chunk.
SHORT_CHUNK: Final = 1024
CHUNK_HEADS: Final = tuple(b"%x\r\n" % size for size in range(SHORT_CHUNK))

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_LINES: Final = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in REASONS.items()}


def connection_tokens(value: bytes) -> frozenset[bytes]:
    """The lower-cased members of a Connection field."""
    return frozenset(token.strip().lower() for token in value.split(b","))


def nominated(value: bytes) -> frozenset[bytes]:
    """Field names that a Connection field declares hop-by-hop, beyond the standard ones."""
    return connection_tokens(value) - _PLAIN_CONNECTION


def without(lines: list[bytes], names: frozenset[bytes]) -> list[bytes]:
    """`lines` ("Name: value\\r\\n" each) less the fields named in `names` (lower case)."""
    return [line for line in lines if line.partition(b":")[0].strip().lower() not in names]


class Request:
    """A whole request: head and body received, nothing forwarded yet.

    `target` is what stood in the request line, in origin form; `path` is it up to the query. `headers` maps
    lower-cased names to values (the first of repeated ones); `lines` holds the end-to-end fields that travel
    on unchanged, each as "Name: value\\r\\n". `upgrade` is the lower-cased protocol the client asks to
    switch to.
    """

    __slots__ = (
        "body",
        "headers",
        "keep_alive",
        "lines",
        "method",
        "minor_version",
        "path",
        "request_id",
        "started_s",
        "target",
        "upgrade",
        "wire_bytes",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.path = b""
        self.minor_version = 1
        self.headers: dict[bytes, bytes] = {}
        self.lines: list[bytes] = []
        self.body = b""
        self.keep_alive = True
        self.upgrade = b""
        self.request_id = b""
        self.started_s = 0.0
        self.wire_bytes = 0

    @property
    def query(self) -> bytes:
        """The query string without its question mark."""
        return self.target[len(self.path) + 1 :]


def origin_form(target: bytes) -> bytes:
    """`target` as path and query. The authority of an absolute form is dropped: it chooses no backend."""
    if target.startswith(b"/"):
        return target
    scheme, mark, rest = target.partition(b"://")
    if mark and scheme.lower() in (b"http", b"https"):
        slash, question = rest.find(b"/"), rest.find(b"?")
        if slash >= 0 and (question < 0 or slash < question):
            return rest[slash:]
        return b"/" + rest[question:] if question >= 0 else b"/"
    return target


_ID_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-/+=@")
_ID_LIMIT: Final = 128


def sane_id(value: bytes) -> bool:
    """Whether a client's request id may be repeated in logs, to backends and in replies."""
    return 0 < len(value) <= _ID_LIMIT and _ID_BYTES.issuperset(value)


# The parser lets control characters pass in a reason phrase (RFC 9112 section 4 doesn't).
_UNPRINTABLE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


def status_line(status: int, reason: bytes) -> bytes:
    """The first line of a response head; a reason phrase that is absent or unprintable becomes the usual one."""
    usual = REASONS.get(status, b"Unknown")
    if not reason or reason == usual or _UNPRINTABLE(reason):
        line = _LINES.get(status)
        if line is not None:
            return line
        reason = usual
    return b"HTTP/1.1 %d %b\r\n" % (status, reason)
