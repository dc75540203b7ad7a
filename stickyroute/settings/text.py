"""YAML and JSON as plain values, read strictly, with messages that say where a mistake is.

Owns the reading of a file or a text; what the values mean is nothing to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stickyroute.errors import ConfigError

__all__ = ["as_group", "parse", "read_content"]


class _NoKeyTwice(yaml.constructor.SafeConstructor):
    """Duplicate keys are refused: the second would silently win."""

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
