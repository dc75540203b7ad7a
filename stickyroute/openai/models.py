"""One list of models out of the lists of many backends.

Owns the union. Knows nothing of which backend said what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from stickyroute.errors import NotFound

__all__ = ["merge_models", "unknown_model"]

_NAME_CHARS = 100


def merge_models(listings: Iterable[Iterable[Mapping[str, Any]]], only: str | None = None) -> bytes:
    """The body of `/v1/models`, or of `/v1/models/{only}`.

    `listings` holds each backend's rows. A model that several backends list appears once, in the place and
    with the values of the first, plus whatever fields only the others have; of a row that cannot be written, such as
    one that is nested too deep, its name alone. `only` may be percent-encoded, as it stands in a path. Raises NotFound
    when nobody lists it.
    """
    merged: dict[str, dict[str, Any]] = {}
    for rows in listings:
        for row in rows:
            name = row.get("id")
            if not isinstance(name, str):
                continue
            known = merged.get(name)
            if known is None:
                merged[name] = dict(row)
            else:
                for field, value in row.items():
                    known.setdefault(field, value)
    if only is None:
        return b'{"object":"list","data":[%b]}' % b",".join(map(_row, merged.values()))
    found = merged.get(only) or merged.get(unquote(only))
    if found is None:
        raise unknown_model(unquote(only))
    return _row(found)


def _row(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row)
    except orjson.JSONEncodeError:
        return orjson.dumps({"id": row["id"], "object": "model"})


def unknown_model(name: str) -> NotFound:
    """The error for a model that nobody serves; a name longer than that of any model is cut."""
    told = name if len(name) <= _NAME_CHARS else name[:_NAME_CHARS] + "..."
    return NotFound(f"The model `{told}` does not exist.", code="model_not_found", param="model")
