"""Fields of a model's config.json under any of their names, and the sizes of number types.

Owns the errors: each names the field and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stickyroute.errors import ConfigError

__all__ = ["Fields", "type_bytes"]

_TYPES: Final = {
    "float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "auto": 2.0,
    "float8_e4m3fn": 1.0, "float8_e5m2": 1.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0,
    "nvfp4": 0.5625, "mxfp4": 0.53125, "int4": 0.5, "fp4": 0.5,
}  # fmt: skip


def type_bytes(name: str, what: str) -> float:
    """Bytes of one number. Raises ConfigError."""
    try:
        return _TYPES[name.lower().removeprefix("torch.")]
    except KeyError:
        known = ", ".join(sorted(_TYPES))
        raise ConfigError(f"{what}: {name!r} is no type that is known; one of {known}") from None


class Fields:
    """The fields of a configuration under any of their names."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.all = fields

    def whole(self, *names: str, least: int = 1) -> int | None:
        for name in names:
            value = self.all.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be a whole number from {least} on, not {value!r}")
            return value
        return None

    def need(self, *names: str) -> int:
        value = self.whole(*names)
        if value is None:
            raise ConfigError(
                f"{names[0]} is missing{_or(names[1:])}; give the config.json of a text model, as published with it"
            )
        return value

    def get(self, name: str) -> Any:
        return self.all.get(name)


def _or(names: Sequence[str]) -> str:
    return f" (or {', '.join(names)})" if names else ""
