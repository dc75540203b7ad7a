"""What KV events mean: the payload of one message, as vLLM and SGLang encode it, to events of `routing.exact`.

Owns the encodings. A batch is an array `[time, events, rank]` or a map; an event is an array that begins with
its kind (vLLM up to 0.20, SGLang up to 0.5.9) or a map with `type` (later ones, fields at their default left
out). Read from released wheels and recorded messages: docs/engines.md. No sockets, no state.

Left out, since no request can be matched to it: blocks outside the GPU, and groups of layers that do not keep
the whole prefix (sliding windows). An event of an unknown kind, or with fields that do not fit, is passed over
alone; what is no batch at all raises `Garbled`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from stickyroute.errors import ConfigError
from stickyroute.routing.exact import Cleared, Event, Hash, Removed, Stored, scope

__all__ = ["Decoder", "Garbled", "missing_extra"]

_STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_REMOVED = ("block_hashes", "medium", "group_idx")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "BlockStored": _STORED,
    "BlockRemoved": _REMOVED,
    "AllBlocksCleared": (),
}
_WHOLE_PREFIX = "full_attention"
_BLOCK_TOKENS = 1 << 16


class Garbled(ValueError):
    """A payload that is no batch of events."""


def missing_extra() -> ConfigError:
    return ConfigError("backends[].events needs two more packages: pip install 'stickyroute[events]'")


class Decoder:
    """Reads the batches of one source. Raises ConfigError without the packages of the extra `events`.

    It remembers which groups of layers do not keep the whole prefix, since only stored events tell.
    """

    def __init__(self) -> None:
        try:
            msgpack: Any = import_module("msgspec.msgpack")
        except ModuleNotFoundError:
            raise missing_extra() from None
        self._decode = msgpack.Decoder().decode
        self._partial: set[object] = set()
        self.passed_over = 0
        """Events that could not be read."""

    def batch(self, payload: bytes) -> list[Event]:
        """The events of one message. Raises Garbled."""
        try:
            value = self._decode(payload)
        except (ValueError, RecursionError) as failure:  # msgspec.DecodeError is a ValueError
            raise Garbled(str(failure)) from None
        if isinstance(value, dict):
            items = value.get("events")
        else:
            items = value[1] if isinstance(value, list) and len(value) > 1 else None
        if not isinstance(items, list):
            raise Garbled("neither an array with events nor a map")
        events: list[Event] = []
        for item in items:
            try:
                event = self._event(item)
            except (TypeError, ValueError, OverflowError, KeyError):
                self.passed_over += 1
                continue
            if event is not None:
                events.append(event)
        return events

    def _event(self, item: object) -> Event | None:
        """None for what is not ours to know. Raises TypeError, ValueError, OverflowError or KeyError."""
        kind, fields = _fields(item)
        if kind == "AllBlocksCleared":
            return Cleared()
        group = fields.get("group_idx")
        if fields.get("medium") not in (None, "GPU"):
            return None
        if kind == "BlockRemoved":
            return None if group in self._partial else Removed(_hashes(fields["block_hashes"]))
        if fields.get("kv_cache_spec_kind") not in (None, _WHOLE_PREFIX):
            if len(self._partial) < 64 and isinstance(group, int):
                self._partial.add(group)
            return None
        return _stored(fields)


def _fields(item: object) -> tuple[str, Mapping[str, Any]]:
    if isinstance(item, dict):
        kind = item["type"]
        _FIELDS[kind]
        return kind, item
    if isinstance(item, list):
        kind = item[0] if item else None
        if not isinstance(kind, str):
            raise TypeError("an event without a kind")
        return kind, dict(zip(_FIELDS[kind], item[1:], strict=False))
    raise TypeError("neither array nor map")


def _hashes(value: object) -> Sequence[Hash]:
    if not isinstance(value, list) or not all(type(one) is int or type(one) is bytes for one in value):
        raise TypeError("hashes must be numbers or bytes")
    return value


def _stored(fields: Mapping[str, Any]) -> Stored:
    hashes = _hashes(fields["block_hashes"])
    parent = fields.get("parent_block_hash")
    if parent is not None and type(parent) is not int and type(parent) is not bytes:
        raise TypeError("a parent must be a number or bytes")
    size = fields["block_size"]
    ids = fields["token_ids"]
    if not isinstance(ids, list):
        raise TypeError("tokens must be a list")  # bytes would be taken for machine words
    tokens = array("I", ids)
    if type(size) is not int or not 0 < size <= _BLOCK_TOKENS or len(tokens) != size * len(hashes):
        raise ValueError("tokens do not fill the blocks")
    adapter = _adapter(fields)
    salt, extras = _extras(fields.get("extra_keys"), len(hashes), adapter)
    own_salt = fields.get("cache_salt")  # SGLang's own field
    if isinstance(own_salt, str):
        salt = own_salt
    return Stored(hashes, parent, tokens, size, scope(adapter, salt), extras)


def _adapter(fields: Mapping[str, Any]) -> str:
    name, number = fields.get("lora_name"), fields.get("lora_id")
    if isinstance(name, str):
        return name
    return "" if number is None else f"lora_id {number}"  # matches no request, which knows names only


def _extras(value: object, count: int, adapter: str) -> tuple[str, Sequence[bytes]]:
    """The salt, and for each block what else is part of its hash. Adapter and salt belong to the scope."""
    if not isinstance(value, list):
        return "", ()
    if len(value) != count:
        raise ValueError("not one extra key a block")
    salt = ""
    extras: list[bytes] = []
    for index, keys in enumerate(value):
        rest = []
        for key in keys or ():
            if isinstance(key, list | tuple) and key and key[0] == "lora":
                continue
            if isinstance(key, list | tuple) and len(key) == 2 and key[0] == "cache_salt":
                salt = str(key[1])
            elif isinstance(key, str):  # up to vLLM 0.24: adapter and salt untagged, the salt at the front
                if key != adapter and index == 0:
                    salt = key
            else:
                rest.append(key)
        extras.append(repr(rest).encode("utf-8", "surrogatepass") if rest else b"")
    return salt, extras if any(extras) else ()
