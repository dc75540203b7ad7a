"""A request's keys: what ties it to a backend, and its prompt as a chain of block hashes.

Owns the order of sources, what counts as a value, and the scope: tenant, model (which is the adapter's name
where there is one) and the fields by which engines keep cache entries apart. A key that a client names is
equal in every process and on every machine; so is the chain. A request without one is known by its prompt:
by the last turn of its conversation, else by its anchor. Looks at header fields and real JSON fields only,
never for a name in text; knows of backends only how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_64_intdigest

from stickyroute import defaults
from stickyroute.openai.prompt import NO_PROMPT, Prompt, measure, normalize
from stickyroute.openai.request import Asked
from stickyroute.openai.routes import Shape
from stickyroute.routing.anchor import Anchors
from stickyroute.routing.keys import NO_KEYS, Needs, RequestKeys, made, second_key
from stickyroute.routing.prefix import Prefixes
from stickyroute.routing.sessions import Sessions

if TYPE_CHECKING:
    from stickyroute.settings import Settings

__all__ = ["AffinityRule", "build_affinity"]

# Different on every request, so they would spread one user over the whole fleet. Without "x-", with dashes.
_PER_REQUEST = frozenset({
    "amzn-requestid", "amzn-trace-id", "b3", "b3-spanid", "b3-traceid", "client-request-id",
    "cloud-trace-context", "correlation-id", "correlationid", "datadog-parent-id", "datadog-trace-id",
    "idempotency-key", "request-id", "requestid", "rid", "span-id", "trace-id", "traceid", "traceparent",
    "tracestate", "uber-trace-id",
})  # fmt: skip

# Engines keep prefixes with different values of these apart: equal prompts share nothing across them.
_NAMESPACES = ("cache_salt", "extra_key", "lora_path")
_SCOPES: Final = 1024  # models whose scope is kept spelt out, if it has no more than so many bytes
_SCOPE_BYTES: Final = 512
_KEPT: Final = 1024  # chains of long prompts, of 4 KB each at 32 KB: what comes again is not hashed anew

_NOT_IN_A_NAME = frozenset(' \t\r\n":,;()<>[]{}@/\\?=')


# A text prompt does not say where its turns end; a continuation is looked for at so many of its last blocks.
_LAST_BLOCKS: Final = 16
# A body so short is nearly all prompt: to know its size better costs more than that is worth.
_GUESSED_BYTES: Final = 16 * 1024
_TEXT_SHAPES: Final = frozenset({Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES})  # never token ids
_UNTOLD_TURNS: Final = frozenset({Shape.COMPLETIONS, Shape.EMBEDDINGS})


class AffinityRule:
    """`sources` in order of preference: "header:NAME", "body:FIELD" (dots reach inside fields), "prefix".

    `tenant_header` names a header that adds to the tenant. `needs` is what the policy reads of the keys; the
    rest is not computed. `prefixes`, `anchors` and `sessions` are by default those of the default settings.
    Raises ValueError for a source that is malformed or differs on every request.
    """

    __slots__ = (
        "_chain",
        "_fields",
        "_headers",
        "_key",
        "_limit",
        "_scopes",
        "_size",
        "_sources",
        "_tenant_header",
        "_to_look_at",
        "anchors",
        "needs",
        "prefixes",
        "sessions",
    )

    def __init__(
        self,
        sources: Sequence[str],
        tenant_header: str | None = None,
        *,
        needs: Needs = Needs.KEY,
        prefixes: Prefixes | None = None,
        anchors: Anchors | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self._sources = tuple(_Source(source) for source in sources)
        # Most requests have none of the names, or only of one kind, which two looks can tell.
        self._headers = frozenset(source.header for source in self._sources if source.header)
        self._fields = frozenset(source.path[0] for source in self._sources if source.path)
        self._to_look_at = {
            (headers, fields): tuple(
                source
                for source in self._sources
                if (headers or not source.header) and (fields or not source.path)
            )
            for headers in (True, False)
            for fields in (True, False)
        }
        self._tenant_header = tenant_header.lower().encode() if tenant_header else None
        self._need(needs)
        if prefixes is None:
            prefixes = Prefixes(defaults.PREFIX_BLOCK_BYTES, defaults.PREFIX_PROMPT_BYTES, kept=_KEPT)
        if anchors is None:
            anchors = Anchors(prefixes, defaults.PREFIX_ANCHOR_CELLS, defaults.PREFIX_MASKED_BYTES)
        self.prefixes = prefixes
        self.anchors = anchors
        self.sessions = Sessions(defaults.PREFIX_SESSIONS) if sessions is None else sessions
        self._limit = prefixes.limit_bytes
        self._scopes: dict[str | None, tuple[int, bytes]] = {}

    def keys(
        self,
        headers: Mapping[bytes, bytes],
        shape: Shape,
        asked: Asked,
        tenant: str,
        pool: tuple[int, ...] = (),
    ) -> RequestKeys:
        """A request's keys.

        `headers` have lower-case names; `tenant` is a gateway key's name or empty; `pool` are the slots of
        the backends that could take it: they are counted, and tell one pool's traffic from another's.
        """
        body = asked.body
        if self._key:
            self.anchors.record(pool)
        by_header = not headers.keys().isdisjoint(self._headers)
        by_field = body is not None and not body.keys().isdisjoint(self._fields)
        for source in self._to_look_at[by_header, by_field]:
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
                if not self._key:
                    continue
                prompt = normalize(shape, body, self._limit, asked.body_bytes)
                if not prompt.text:
                    continue
                root = self._scope(asked)[0]
                chain: Sequence[int] = self.prefixes.chain(prompt.text, root)
                place = self._place(shape, prompt, chain, root, pool)
                affinity = self._of_tenant(headers, tenant, place)
                if not self._size:
                    return RequestKeys(affinity, source.label)
                return self._complete(affinity, source.label, prompt, chain, pool)
            root, spelt = self._scope(asked)
            affinity = self._hash(headers, spelt, tenant, source.name, value)
            if not self._size:
                return RequestKeys(affinity, source.label)
            prompt, chain = self._prompt(shape, asked, root)
            return self._complete(affinity, source.label, prompt, chain, pool)
        if not self._size:
            return NO_KEYS
        prompt, chain = self._prompt(shape, asked, self._scope(asked)[0])
        return self._complete(None, "", prompt, chain, pool)

    def peek(
        self,
        headers: Mapping[bytes, bytes],
        shape: Shape,
        asked: Asked,
        tenant: str,
        pool: tuple[int, ...] = (),
        needs: Needs | None = None,
    ) -> RequestKeys:
        """The keys that `keys` would give a request that came now. It is not traffic: nothing is counted,
        remembered or touched. `needs` in place of the rule's own, where another policy asks."""
        dry = AffinityRule(
            [source.label for source in self._sources],
            self._tenant_header.decode() if self._tenant_header is not None else None,
            needs=self.needs if needs is None else needs,
            prefixes=self.prefixes,
            anchors=self.anchors.dry(),
            sessions=self.sessions.dry(),
        )
        return dry.keys(headers, shape, asked, tenant, pool)

    def chained(self, keys: RequestKeys, shape: Shape, asked: Asked) -> RequestKeys:
        """`keys` that this rule made, with the prompt's chain and size, for whoever needs more than the policy does.
        It is not traffic: nothing is counted."""
        if keys.chain or asked.body is None:
            return keys
        prompt = normalize(shape, asked.body, self._limit, asked.body_bytes)
        chain = self.prefixes.chain(prompt.text, self._scope(asked)[0])
        second = None if keys.affinity is None else second_key(keys.affinity)
        ends = self.prefixes.ends[: len(chain)]
        return RequestKeys(
            keys.affinity, keys.source, chain, ends, prompt.size_bytes, prompt.tokens, second, keys.spread
        )

    def _need(self, needs: Needs) -> None:
        self.needs = needs
        # Plain truths: asking a flag for its bits costs half a microsecond each time.
        self._key = bool(needs & Needs.KEY)
        self._size = bool(needs & Needs.SIZE)
        self._chain = needs == Needs.CHAIN

    def _prompt(self, shape: Shape, asked: Asked, root: int) -> tuple[Prompt, Sequence[int]]:
        if asked.body is None:
            return NO_PROMPT, ()
        if not self._chain:
            whole = asked.body_bytes
            if whole is not None and whole <= _GUESSED_BYTES and shape in _TEXT_SHAPES:
                return Prompt(b"", (), whole, None), ()
            size_bytes, tokens = measure(shape, asked.body, self._limit, asked.body_bytes)
            return Prompt(b"", (), size_bytes, tokens), ()
        prompt = normalize(shape, asked.body, self._limit, asked.body_bytes)
        return prompt, self.prefixes.chain(prompt.text, root)

    def _complete(
        self, affinity: int | None, label: str, prompt: Prompt, chain: Sequence[int], pool: tuple[int, ...]
    ) -> RequestKeys:
        _, _, size_bytes, tokens = prompt
        ends = self.prefixes.ends[: len(chain)]
        if affinity is None or not self._chain:
            return RequestKeys(affinity, label, chain, ends, size_bytes, tokens)
        second = second_key(affinity)
        # Counted under its second name: the first may be a block's hash, which the anchors count.
        spread = self.anchors.spread(second, pool)
        return made(RequestKeys, (affinity, label, chain, ends, size_bytes, tokens, second, spread))

    def _place(
        self, shape: Shape, prompt: Prompt, chain: Sequence[int], root: int, pool: tuple[int, ...]
    ) -> int:
        """What a request without a key is known by: its conversation's key, else its anchor."""
        text, turns, size_bytes, _ = prompt
        prefixes, sessions = self.prefixes, self.sessions
        anchor, shared = self.anchors.find(text, chain, root, pool)
        whole = prefixes.hash_at(text, chain, len(text), root)
        key = sessions.find(whole)  # sent again
        if key is not None:
            return key
        for turn in turns:
            key = sessions.follow(prefixes.hash_at(text, chain, turn, root))
            if key is not None:
                break
        else:
            if shape in _UNTOLD_TURNS:
                for block in chain[: -_LAST_BLOCKS - 1 : -1]:
                    key = sessions.follow(block)
                    if key is not None:
                        break
        if key is None:
            key = anchor
        if size_bytes == len(text):
            sessions.remember(whole, key)
        if shared and chain and shape in _UNTOLD_TURNS:
            sessions.remember(chain[-1], key)
        return key

    def _of_tenant(self, headers: Mapping[bytes, bytes], tenant: str, key: int) -> int:
        named = headers.get(self._tenant_header, b"") if self._tenant_header is not None else b""
        if not tenant and not named:
            return key
        owner = tenant.encode("utf-8", "surrogatepass")
        return xxh3_64_intdigest(b"%d:%b%b" % (len(owner), owner, named), key)

    def _hash(
        self, headers: Mapping[bytes, bytes], scope: bytes, tenant: str, source: bytes, value: bytes | str
    ) -> int:
        """Every part but the last after its length: no two different requests spell the same bytes."""
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        named = headers.get(self._tenant_header, b"") if self._tenant_header is not None else b""
        owner = b"0:0:"
        if tenant or named:
            owner = tenant.encode("utf-8", "surrogatepass")
            owner = b"%d:%b%d:%b" % (len(owner), owner, len(named), named)
        return xxh3_64_intdigest(b"%b%b%b%b" % (owner, scope, source, value))

    def _scope(self, asked: Asked) -> tuple[int, bytes]:
        """What engines keep cache entries apart by: the hash that every chain of it starts from, and as bytes."""
        if asked.body is None or asked.body.keys().isdisjoint(_NAMESPACES):
            scope = self._scopes.get(asked.model)
            if scope is None:
                scope = _spell_scope(asked.model, b"")
                if len(scope[1]) < _SCOPE_BYTES:
                    if len(self._scopes) >= _SCOPES:
                        self._scopes.clear()
                    self._scopes[asked.model] = scope
            return scope
        return _spell_scope(asked.model, _namespace(asked.body))


def build_affinity(settings: Settings, needs: Needs, before: AffinityRule | None = None) -> AffinityRule:
    """The rule that the settings ask for. It remembers what `before` remembers, and cuts prompts as that does."""
    affinity, prefix = settings.affinity, settings.prefix
    if settings.shadow is not None:
        needs |= Needs.KEY  # it wants to know a conversation again, whatever the live policy needs
    if before is not None:
        return AffinityRule(
            affinity.sources,
            affinity.tenant_header,
            needs=needs,
            prefixes=before.prefixes,
            anchors=before.anchors,
            sessions=before.sessions,
        )
    prefixes = Prefixes(prefix.block_bytes, prefix.prompt_bytes, kept=_KEPT)
    return AffinityRule(
        affinity.sources,
        affinity.tenant_header,
        needs=needs,
        prefixes=prefixes,
        anchors=Anchors(prefixes, prefix.anchor_cells, prefix.masked_bytes),
        sessions=Sessions(prefix.sessions),
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
        name = self.label.encode()
        self.name = b"%d:%b" % (len(name), name)


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


def _spell_scope(name: str | None, space: bytes) -> tuple[int, bytes]:
    model = name.encode("utf-8", "surrogatepass") if name is not None else b""
    root = xxh3_64_intdigest(b"%d:%b%b" % (len(model), model, space))
    return root, b"%d:%b%d:%b" % (len(model), model, len(space), space)
