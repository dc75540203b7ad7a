"""One list of models out of the lists of many backends.

Owns the union. Knows nothing of which backend said what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from stickyroute.errors import NotFound

__all__ = ["merge_models"]


def merge_models(listings: Iterable[Iterable[Mapping[str, Any]]], only: str | None = None) -> bytes:
    """The body of `/v1/models`, or of `/v1/models/{only}`.

    `listings` holds each backend's rows. A model that several backends list appears once, in the place and
    with the values of the first, plus whatever fields only the others have. `only` may be percent-encoded, as
    it stands in a path. Raises NotFound when nobody lists it.
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
        return orjson.dumps({"object": "list", "data": list(merged.values())})
    found = merged.get(only) or merged.get(unquote(only))
    if found is None:
        raise NotFound("The model does not exist.", code="model_not_found", param="model")
    return orjson.dumps(found)
