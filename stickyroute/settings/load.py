"""From a YAML file, the environment and flags to one checked `Settings`, or to one error with every mistake.

Owns where a value comes from (flags, else environment, else file, else default) and how a mistake is told.
Secrets never reach a message.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource

from stickyroute.errors import ConfigError
from stickyroute.settings.checks import Problem, Problems
from stickyroute.settings.groups import BackendSettings, GatewayKey
from stickyroute.settings.masks import masks, unmasked
from stickyroute.settings.model import Settings, backend_problems, key_problems
from stickyroute.settings.text import as_group, parse, read_content

Model = TypeVar("Model", bound=BaseModel)

_PREFIX = "STICKYROUTE_"
# What Kubernetes puts into every pod beside a Service called stickyroute.
_SERVICE_LINKS = re.compile(r"STICKYROUTE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP).*)?)")

_PHRASES = {
    "missing": "is missing; it is required",
    "tuple_type": "must be a list",
    "string_type": "must be text; put it in quotes",
    "model_type": "must be a group of `key: value` lines",
    "model_attributes_type": "must be a group of `key: value` lines",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
}


def load_settings(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of one run; `overrides` are flags, nested like the file. Raises ConfigError."""
    return _load({} if path is None else as_group(read_content(path), str(path)), dict(overrides or {}))


def load_text(
    text: bytes, name: str, overrides: Mapping[str, Any] | None = None, present: Settings | None = None
) -> tuple[Settings, tuple[str, ...]]:
    """The same from the text of a file, called `name` in messages; and what in it flags or the environment overrule.

    A secret that is masked, as `effective_yaml` shows it, stays what it is in `present`. Raises ConfigError.
    """
    file = as_group(parse(text, name), name)
    if present is not None:
        file = unmasked(file, present)
        masked = [
            f"{_dotted(path)}: is a mask for a secret that is not known here; write it out"
            for path in masks(file)
        ]
        if masked:
            raise ConfigError("\n".join(masked))
    flags = dict(overrides or {})
    settings = _load(file, flags)
    overruled = dict.fromkeys((*_overruled(file, flags), *_overruled(file, _Environment(Settings)())))
    return settings, tuple(overruled)


def _load(file: dict[str, Any], flags: Mapping[str, Any]) -> Settings:
    environment = _Environment(Settings)()
    values = _without_nulls(_merged(_merged(file, environment), flags))
    problems = list(_misspelt_variables())
    settings = None
    try:
        settings = Settings(**{str(key): value for key, value in values.items()})
    except ValidationError as error:
        problems += _problems(error, values)
    if settings is None or problems:
        raise ConfigError("\n".join(_line(problem, flags, environment) for problem in problems))
    return settings


def read_backends(path: Path) -> tuple[BackendSettings, ...]:
    """The backends of a file of discovery: a list as under `backends`, or a group with that one key.

    Raises ConfigError with every mistake.
    """
    content = read_content(path)
    rows = content.get("backends") if isinstance(content, dict) and set(content) <= {"backends"} else content
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: must be a list of backends, or `backends:` with one")
    problems: list[Problem] = []
    backends: list[BackendSettings] = []
    for index, row in enumerate(_without_nulls(rows)):
        try:
            backends.append(BackendSettings.model_validate(row))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                loc = ("backends", index, *detail["loc"])
                problems.append(Problem(loc, _what(detail, loc)))
        else:
            if backends[-1].events is not None:
                what = "cannot be followed here; name this backend in the configuration itself"
                problems.append(Problem(("backends", index, "events"), what))
    problems += backend_problems(list(enumerate(backends)), found=True)
    if problems:
        raise ConfigError(
            "\n".join(f"{path}: {_dotted(problem.path)}: {problem.what}" for problem in problems)
        )
    return tuple(backends)


def effective_yaml(settings: Settings) -> str:
    """Every setting with the value in force, as YAML; secrets are masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)


class _Environment(EnvSettingsSource):
    """STICKYROUTE_ variables, nested by two underscores. What is not JSON stays text, judged as such."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def _overruled(file: Mapping[str, Any], over: Mapping[str, Any]) -> Iterator[str]:
    """Paths at which `over` has another value than `file`."""
    for key, value in over.items():
        below = file.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            yield from (f"{key}.{path}" for path in _overruled(below, value))
        elif below is not None and below != value:
            yield key


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid upon `under`: groups key by key, everything else whole."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _without_nulls(value: Any) -> Any:
    """`key: null`, and a group whose lines are all commented out, are the same as no key at all."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _problems(error: ValidationError, values: Mapping[str, Any]) -> Iterator[Problem]:
    checked_between_parts = False
    for detail in error.errors(include_url=False):
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            checked_between_parts = checked_between_parts or not detail["loc"]
            for problem in cause.problems:
                yield Problem((*detail["loc"], *problem.path), problem.what)
        else:
            yield Problem(detail["loc"], _what(detail, detail["loc"]))
    if not checked_between_parts:
        yield from backend_problems(
            list(_valid(BackendSettings, values.get("backends"))),
            found=bool(values.get("discovery")),
            given=bool(values.get("backends")),
        )
        yield from key_problems(list(_valid(GatewayKey, values.get("api_keys"))))


def _valid(model: type[Model], raw: object) -> Iterator[tuple[int, Model]]:
    """The items that are right by themselves, with their places, so that checks between them still run."""
    for index, item in enumerate(raw if isinstance(raw, list | tuple) else ()):
        try:
            yield index, model.model_validate(item)
        except ValidationError:
            continue  # told already


def _what(detail: ErrorDetails, loc: tuple[str | int, ...]) -> str:
    kind, given = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys_at(loc[:-1])
        return "is no setting; " + (_near(str(loc[-1]), known) or f"known here: {', '.join(known)}")
    if kind in _PHRASES:
        return _PHRASES[kind]
    cause = given.get("error")
    if isinstance(cause, ValueError):
        return str(cause)
    told = detail["msg"].replace("Input should", "must", 1)
    if kind == "literal_error" and isinstance(detail["input"], str):
        near = _near(detail["input"], re.findall(r"'([^']*)'", given["expected"]))
        return f"{told}; {near}" if near else told
    return told


def _near(word: str, known: list[str]) -> str:
    """A question with the one of `known` that may have been meant; empty where none is close."""
    close = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def _keys_at(loc: tuple[str | int, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in loc:
        if isinstance(part, str):
            model = next(_models_in(model.model_fields[part].annotation))
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _misspelt_variables() -> Iterator[Problem]:
    """Variables close to a setting's but none. Others are left alone: they may be somebody else's."""
    known = list(Settings.model_fields)
    for variable in os.environ:
        if not variable.upper().startswith(_PREFIX) or _SERVICE_LINKS.fullmatch(variable.upper()):
            continue
        key = variable[len(_PREFIX) :].lower().partition("__")[0]
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
        if key not in known and close:
            yield Problem((variable,), f"is no setting; did you mean {_PREFIX}{close[0].upper()}?")


def _line(problem: Problem, flags: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    source = ""
    if _gives(flags, problem.path):
        source = " (from a flag)"
    elif _gives(environment, problem.path):
        source = " (from the environment)"
    return f"{_dotted(problem.path)}{source}: {problem.what}"


def _gives(values: Any, path: tuple[str | int, ...]) -> bool:
    """Whether a source has a value on the way to `path`."""
    for part in path:
        if not isinstance(values, dict):
            return True
        if part not in values:
            return False
        values = values[part]
    return True


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "settings"
