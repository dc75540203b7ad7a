"""The affinity key: the first configured source that has a value, hashed together with its scope.

Owns the order of sources, what counts as a value, and the scope: tenant, model (which is the adapter's name
where there is one) and the fields by which engines keep cache entries apart. Equal in every process and on
every machine. Looks at header fields and real JSON fields only, never into text; knows nothing of backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from stickyroute.openai.request import Asked, prompt_head
from stickyroute.openai.routes import Shape
from stickyroute.routing.keys import NO_KEYS, RequestKeys

__all__ = ["AffinityRule"]

# Different on every request, so they would spread one user over the whole fleet. Without "x-", with dashes.
_PER_REQUEST = frozenset({
    "amzn-requestid", "amzn-trace-id", "b3", "b3-spanid", "b3-traceid", "client-request-id",
    "cloud-trace-context", "correlation-id", "correlationid", "datadog-parent-id", "datadog-trace-id",
    "idempotency-key", "request-id", "requestid", "rid", "span-id", "trace-id", "traceid", "traceparent",
    "tracestate", "uber-trace-id",
})  # fmt: skip

# Engines keep prefixes with different values of these apart: equal prompts share nothing across them.
_NAMESPACES = ("cache_salt", "extra_key", "lora_path")

_NOT_IN_A_NAME = frozenset(' \t\r\n":,;()<>[]{}@/\\?=')


class AffinityRule:
    """`sources` in order of preference: "header:NAME", "body:FIELD" (dots reach inside fields), "prefix".

    `tenant_header` names a header that adds to the tenant; `prefix_bytes` is how much of the normalized
    prompt makes the key of "prefix". Raises ValueError for a source that is malformed or differs on every
    request.
    """

    __slots__ = ("_prefix_bytes", "_sources", "_tenant_header")

    def __init__(
        self, sources: Sequence[str], tenant_header: str | None = None, prefix_bytes: int = 1024
    ) -> None:
        if prefix_bytes < 1:
            raise ValueError("prefix_bytes must be at least 1")
        self._sources = tuple(_Source(source) for source in sources)
        self._tenant_header = tenant_header.lower().encode() if tenant_header else None
        self._prefix_bytes = prefix_bytes

    def keys(self, headers: Mapping[bytes, bytes], shape: Shape, asked: Asked, tenant: str) -> RequestKeys:
        """A request's key. `headers` have lower-case names; `tenant` is a gateway key's name or empty."""
        body = asked.body
        for source in self._sources:
            value: bytes | str | None
            if source.header is not None:
                value = headers.get(source.header)
                if value is None or not (value := value.strip()):
                    continue
            elif body is None:
                continue
            elif source.path is not None:
                value = _field(body, source.path)
                if value is None:
                    continue
            else:
                value = prompt_head(shape, body, self._prefix_bytes)
                if not value:
                    continue
            return RequestKeys(self._hash(headers, asked, tenant, source.name, value), source.label)
        return NO_KEYS

    def _hash(
        self, headers: Mapping[bytes, bytes], asked: Asked, tenant: str, source: bytes, value: bytes | str
    ) -> int:
        """Every part but the last after its length: no two different requests spell the same bytes."""
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        owner = tenant.encode("utf-8", "surrogatepass") if tenant else b""
        named = headers.get(self._tenant_header, b"") if self._tenant_header is not None else b""
        model = asked.model.encode("utf-8", "surrogatepass") if asked.model is not None else b""
        space = _namespace(asked.body) if asked.body is not None else b""
        return xxh3_64_intdigest(
            b"%d:%b%d:%b%d:%b%d:%b%d:%b%b"
            % (
                *(len(owner), owner, len(named), named, len(model), model),
                *(len(space), space, len(source), source, value),
            )
        )


class _Source:
    """One source, taken apart: `header` or `path` is set, neither for the prefix."""

    __slots__ = ("header", "label", "name", "path")

    def __init__(self, source: str) -> None:
        kind, _, rest = source.partition(":")
        self.header: bytes | None = None
        self.path: tuple[str, ...] | None = None
        if kind == "header" and rest and rest.isascii() and _NOT_IN_A_NAME.isdisjoint(rest):
            self.header = rest.lower().encode()
        elif kind == "body" and rest and all(rest.split(".")):
            self.path = tuple(rest.split("."))
        elif source != "prefix":
            raise ValueError(f"affinity source {source!r}: write header:NAME, body:FIELD or prefix")
        if _differs_per_request(rest.rpartition(".")[2]):
            raise ValueError(f"affinity source {source!r} differs on every request: it keeps nobody in place")
        self.label = f"header:{rest.lower()}" if self.header is not None else source
        self.name = self.label.encode()


def _differs_per_request(name: str) -> bool:
    return name.lower().replace("_", "-").removeprefix("x-") in _PER_REQUEST


def _field(body: Mapping[str, Any], path: tuple[str, ...]) -> str | None:
    """A text or number inside the body; null, blank, true, lists and objects count as absent."""
    value: Any = body
    for name in path:
        if type(value) is not dict:
            return None
        value = value.get(name)
    if type(value) is str:
        return value if value and not value.isspace() else None
    if type(value) is int or type(value) is float:
        return repr(value)
    return None


def _namespace(body: Mapping[str, Any]) -> bytes:
    space = b""
    for name in _NAMESPACES:
        if name in body:
            value = body[name]
            if type(value) is str and value:
                piece = value.encode("utf-8", "surrogatepass")
                space += b"%b=%d:%b" % (name.encode(), len(piece), piece)
    return space
