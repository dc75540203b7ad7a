"""Masked secrets: what `GET /config` shows in their place, and how one that is sent back becomes a secret again.

Owns what belongs to what: items of lists are the same by name, or by where they look.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretStr

from stickyroute.settings.discovery import DiscoverySettings
from stickyroute.settings.groups import BackendSettings, GatewayKey

__all__ = ["masks", "unmasked"]

MASK = "**********"
"""As pydantic shows a secret."""


_PLACE = ("kind", "path", "host", "service", "selector", "namespace", "port")
"""What tells one place of discovery from another."""


def unmasked(given: Any, present: Any) -> Any:
    """`given` with the secrets of `present` wherever it has a mask."""
    if given == MASK and isinstance(present, SecretStr):
        return present.get_secret_value()
    if isinstance(given, dict) and isinstance(present, BaseModel):
        return {key: unmasked(value, getattr(present, str(key), None)) for key, value in given.items()}
    if isinstance(given, list) and isinstance(present, tuple):
        return [unmasked(item, next((one for one in present if _same(item, one)), None)) for item in given]
    return given


def _same(given: Any, present: Any) -> bool:
    """Whether an item of a list is the one that is there: never by its place, or a secret might go to a stranger."""
    if not isinstance(given, dict):
        return False
    if isinstance(present, BackendSettings | GatewayKey):
        return given.get("name") == present.name
    if isinstance(present, DiscoverySettings):
        return all(_text(given.get(name)) == _text(getattr(present, name)) for name in _PLACE)
    return False


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def masks(given: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of masks that are left."""
    if given == MASK:
        yield path
    elif isinstance(given, dict):
        for key, value in given.items():
            yield from masks(value, (*path, str(key)))
    elif isinstance(given, list):
        for index, item in enumerate(given):
            yield from masks(item, (*path, index))
