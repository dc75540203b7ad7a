"""What differs between two configurations, which of it takes effect at once, and how that is told.

Owns the table of what is live. Pure; secrets never reach a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr

from stickyroute.settings import Settings

__all__ = ["LIVE", "Change", "changes", "in_force"]

LIVE = frozenset({
    "access_log_sample", "admin_token", "affinity", "api_keys", "backends", "bounded_ring", "cors",
    "decisions", "discovery", "doctor", "extra_routes", "health", "hold", "limits", "log_level",
    "models_interval_s", "policy", "prices", "probe", "reload_on_change", "response_headers", "retries",
    "room", "scrape", "shadow", "shadow_share", "sticky.bound", "sticky.floor_tokens", "sticky.tolerance",
    "strict_json", "strict_models", "timeouts", "tls", "usage",
})  # fmt: skip
"""Settings, and groups of them, that take effect while the process runs. All others wait for a restart."""

_SECRET = "(secret)"  # noqa: S105 - what stands in its place
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One setting with another value. `before` and `after` are JSON values, None for what is not there."""

    path: str
    before: Any
    after: Any
    live: bool

    def __str__(self) -> str:
        if self.before is None and isinstance(self.after, dict):
            return f"{self.path} added"
        if self.after is None and isinstance(self.before, dict):
            return f"{self.path} removed"
        return f"{self.path} {_told(self.before)} -> {_told(self.after)}"


def changes(old: Settings, new: Settings) -> tuple[Change, ...]:
    """Every difference, in the order of the settings. Backends, keys and places of discovery go by their names."""
    found: list[Change] = []
    for name in type(new).model_fields:
        for path, before, after in _differences(name, getattr(old, name), getattr(new, name)):
            found.append(Change(path, before, after, _is_live(path, old, new)))
    return tuple(found)


def in_force(old: Settings, new: Settings) -> Settings:
    """`new`, but with the values of `old` wherever a restart is needed."""
    update: dict[str, Any] = {}
    for name in type(new).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if _is_live(name, old, new):
            continue
        below = [key.partition(".")[2] for key in LIVE if key.startswith(name + ".")]
        if below and isinstance(before, BaseModel):
            update[name] = before.model_copy(update={key: getattr(after, key) for key in below})
        else:
            update[name] = before
    return new.model_copy(update=update)


def _is_live(path: str, old: Settings, new: Settings) -> bool:
    if path.partition(".")[0] == "tls" and (old.tls is None) != (new.tls is None):
        return False  # a certificate may be another one, but a port either speaks TLS or does not
    first, _, rest = path.partition(".")
    return first in LIVE or f"{first}.{rest.partition('.')[0]}" in LIVE


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if before == after:
        return
    if isinstance(before, BaseModel) and isinstance(after, BaseModel):
        for name in type(after).model_fields:
            yield from _differences(f"{path}.{name}", getattr(before, name), getattr(after, name))
        return
    if isinstance(before, tuple) and isinstance(after, tuple):
        named_before, named_after = _named(before), _named(after)
        if named_before is not None and named_after is not None:
            for name in dict.fromkeys((*named_before, *named_after)):
                yield from _differences(
                    f"{path}.{name}", named_before.get(name, _MISSING), named_after.get(name, _MISSING)
                )
            return
    yield path, _plain(before), _plain(after)


def _named(values: tuple[Any, ...]) -> Mapping[str, Any] | None:
    names = [getattr(value, "name", None) or getattr(value, "label", None) for value in values]
    if None in names or len(set(names)) != len(names):
        return None
    return dict(zip(names, values, strict=True))  # type: ignore[arg-type]  # no name is None


def _plain(value: Any) -> Any:
    if value is _MISSING or value is None:
        return None
    if isinstance(value, SecretStr):
        return _SECRET
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _told(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) or "[]" if isinstance(value, list) else str(value)
