"""What each backend says, or the configuration says for it, that it serves.

Owns the rows of `/v1/models` by slot, and which model names follow from them. Bounds both, so that no backend
can make the pools grow without end. Knows no pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stickyroute.fleet.pools import Models

__all__ = ["MODELS_PER_BACKEND", "MODEL_NAME_CHARS", "Listed"]

MODELS_PER_BACKEND = 1000
"""Further models a backend lists are ignored."""
MODEL_NAME_CHARS = 256
"""A model with a longer name is ignored."""


class Listed:
    """By slot: `rows` to show to clients, and `served`, None while a backend's models are unknown."""

    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []
        self.served: list[Models | None] = []

    def grow(self, count: int) -> None:
        """There are `count` slots now."""
        while len(self.rows) < count:
            self.rows.append([])
            self.served.append(None)

    def configure(self, slot: int, names: tuple[str, ...] | None) -> None:
        """The configuration names its models, or leaves it to the backend: until it tells, they are unknown."""
        self.rows[slot] = _configured_rows(names, [])
        self.served[slot] = None if names is None else Models(names)

    def record(self, slot: int, names: tuple[str, ...] | None, rows: Iterable[Mapping[str, Any]]) -> bool:
        """What the backend lists, where `names` are those of the configuration. Whether it serves others than it
        did. An empty list says nothing: its models are then unknown."""
        usable = [dict(row) for row in rows if _is_usable(row)][:MODELS_PER_BACKEND]
        self.rows[slot] = usable if names is None else _configured_rows(names, usable)
        adapters = any(row.get("owned_by") == "sglang" for row in usable)
        known = names if names is not None else tuple(dict.fromkeys(row["id"] for row in usable))
        served = Models(known, adapters) if known else None
        changed = served != self.served[slot]
        self.served[slot] = served
        return changed


def _is_usable(row: Mapping[str, Any]) -> bool:
    name = row.get("id")
    return isinstance(name, str) and 0 < len(name) <= MODEL_NAME_CHARS


def _configured_rows(names: Sequence[str] | None, listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each configured model: the backend's own, or what OpenAI's clients need at least."""
    by_name = {row["id"]: row for row in listed}
    return [
        by_name.get(name, {"id": name, "object": "model", "created": 0, "owned_by": "stickyroute"})
        for name in names or ()
    ]
