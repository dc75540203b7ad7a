"""The request head for a backend: the client's end-to-end fields as they came, and our own.

Owns which fields travel and which are written anew. Chooses nothing and sends nothing.
"""

from __future__ import annotations

from typing import Final

from stickyroute.proxy.exchange import Exchange, Target

__all__ = ["request_head"]

_CREDENTIALS: Final = (b"authorization", b"x-api-key")


def request_head(exchange: Exchange, target: Target, trace: bytes, *, own_keys: bool) -> bytes:
    """`trace` are complete lines to add; `own_keys`: the client's credentials are meant for the backend."""
    request = exchange.request
    headers = request.headers
    parts = [
        b"%b %b%b HTTP/1.1\r\n" % (request.method, target.base_path, request.target),
        target.host_line,
        *request.lines,
        exchange.client.forwarded_for(headers.get(b"x-forwarded-for")),
        b"x-request-id: %b\r\n" % request.request_id,
        trace,
    ]
    host = headers.get(b"host")
    if host is not None:
        parts.append(b"X-Forwarded-Host: %b\r\n" % host)
    if target.credential is not None:
        parts.append(target.credential)
    elif own_keys:
        parts += [b"%b: %b\r\n" % (name, headers[name]) for name in _CREDENTIALS if name in headers]
    body = request.body
    if body or b"content-length" in headers or b"transfer-encoding" in headers:
        parts.append(b"content-length: %d\r\n" % len(body))
    parts.append(b"connection: upgrade\r\nupgrade: websocket\r\n\r\n" if request.upgrade else b"\r\n")
    return b"".join(parts)
