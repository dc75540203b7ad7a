"""Every setting is in docs/configuration.md with its default, and in config/stickyroute.yaml; files load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from stickyroute.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
CONFIG_FILES = sorted([*(ROOT / "config").glob("*.yaml"), ROOT / "deploy" / "stickyroute.compose.yaml"])
DOCUMENT = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.\[\]]+)` \| (.+?) \| .+ \|$", DOCUMENT, re.MULTILINE))


def groups(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from groups(argument)


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        group = next(groups(field.annotation), None)
        if group is None:
            yield prefix + name, field
        else:
            yield from leaves(
                group, prefix + name + ("[]." if get_origin(field.annotation) is tuple else ".")
            )


LEAVES = dict(leaves(Settings))


def test_the_walk_over_the_settings_sees_all_levels() -> None:
    assert {"listen", "backends[].api_key", "affinity.sources", "tls.cert", "api_keys[].key"} <= LEAVES.keys()


def test_the_document_has_a_row_for_every_setting_and_no_other() -> None:
    assert ROWS.keys() == LEAVES.keys()


@pytest.mark.parametrize("path", LEAVES)
def test_the_document_tells_the_default(path: str) -> None:
    default = LEAVES[path].get_default(call_default_factory=True)
    if default is PydanticUndefined:
        told = "required"
    elif path == "backends[].name":
        told = "host, port and path of the URL"
    elif default is None:
        told = "`null`"
    elif default == ():
        told = "`[]`"
    elif isinstance(default, tuple):
        told = ", ".join(f"`{item}`" for item in default)
    elif isinstance(default, bool):
        told = f"`{str(default).lower()}`"
    else:
        told = f"`{default}`"
    assert re.sub(r" \(\d+ .iB\)$", "", ROWS[path]) == told


@pytest.mark.parametrize("path", LEAVES)
def test_every_setting_describes_itself(path: str) -> None:
    description = LEAVES[path].description or ""
    assert description.endswith(".")
    if LEAVES[path].get_default(call_default_factory=True) is None:
        assert "Default:" in description


def test_the_annotated_file_has_every_key_and_its_default() -> None:
    path = ROOT / "config" / "stickyroute.yaml"
    text = path.read_text(encoding="utf-8")
    given = yaml.safe_load(text)
    for name in LEAVES:
        group, _, key = name.rpartition(".")
        if group in {"tls", "api_keys[]", "backends[].events", "discovery[]"}:
            assert re.search(rf"^ *# .*\b{key}: ", text, re.MULTILINE), name
        elif group == "backends[]":
            assert key in given["backends"][0]
        else:
            assert key in (given[group] if group else given), name
    example = load_settings(path).model_dump(exclude={"backends"})
    assert example == Settings(backends=["http://a"]).model_dump(exclude={"backends"})


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.name)
def test_the_files_we_ship_are_right(path: Path) -> None:
    settings = load_settings(path)
    assert settings.backends or settings.discovery
