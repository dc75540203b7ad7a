"""YAML and JSON as plain values, read strictly, with messages that say where a mistake is.

Owns the reading of a file or a text; what the values mean is nothing to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stickyroute.errors import ConfigError

__all__ = ["as_group", "parse", "read_content"]

_DEPTH = 32
"""No setting is nested so deeply."""
_VALUES = 200_000
"""More than ten thousand backends with every option; aliases of aliases make any number out of a few lines."""


class _NoKeyTwice(yaml.constructor.SafeConstructor):
    """Duplicate keys are refused: the second would silently win. So are merges of merges without end."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _VALUES:
            raise yaml.constructor.ConstructorError(None, None, "merges too much", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is here twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _StrictLoader(_NoKeyTwice, yaml.SafeLoader):
    """YAML 1.1, with messages that people understand."""


if yaml.__with_libyaml__:

    class _FastLoader(_NoKeyTwice, yaml.CSafeLoader):
        """The same six times as fast: of hundreds of backends the other takes a fifth of a second."""

else:
    _FastLoader = _StrictLoader  # type: ignore[misc, assignment]  # one is as good as the other


def read_content(path: Path) -> Any:
    """What a file holds. Raises ConfigError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: bytes, name: str) -> Any:
    """YAML, or JSON, which is YAML but for tabs. `name` is what the text is called in messages. Raises ConfigError."""
    values = _loaded(text, name)
    _check(values, name)
    return values


def _loaded(text: bytes, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_FastLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        # The other would take a second to find that out, and the event loop with it.
        if getattr(error, "problem", None) == "exceeded maximum nesting depth":
            raise ConfigError(f"{name}: is nested too deeply") from None
        # Whatever else it is: read once more for the message.
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{where}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{name}: not YAML: {_first_line(error)}") from None


def _check(values: Any, name: str) -> None:
    """Whether it can be walked through: an alias may contain itself, or make a tree of a billion leaves."""
    level, count = [values], 0
    for _ in range(_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value, name)
            elif isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list | tuple | set):
                below += value
            count += 1
            if count + len(below) > _VALUES:
                raise ConfigError(f"{name}: holds too much; its aliases (*name) may repeat one another")
        if not below:
            return
        level = below
    raise ConfigError(f"{name}: is nested too deeply")


def _check_text(value: str, name: str) -> None:
    if "\0" in value:
        raise ConfigError(f"{name}: a text holds a NUL character, which no setting can have; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{name}: a text holds half a character (\\ud800 to \\udfff alone); remove it"
        ) from None


def as_group(content: Any, name: str) -> dict[str, Any]:
    """A configuration must be a group; nothing at all is an empty one. Raises ConfigError."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{name}: holds no settings; write `key: value` lines, such as `listen: 0.0.0.0:8080`"
        )
    return content


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
