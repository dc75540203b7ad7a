"""Masked secrets that come back."""

from __future__ import annotations

import pytest
import yaml

from stickyroute.errors import ConfigError
from stickyroute.settings import Settings, effective_yaml, load_text

PRESENT = Settings(
    backends=[
        {"name": "a", "url": "http://a", "api_key": "key-a"},
        {"name": "b", "url": "http://b", "api_key": "key-b"},
    ],
    discovery=[
        {"kind": "dns", "host": "one", "api_key": "key-one"},
        {"kind": "kubernetes", "service": "two", "port": 8000, "api_key": "key-two"},
    ],
    api_keys=[{"name": "team", "key": "key-team"}],
    admin_token="key-admin",
)


def test_what_is_shown_comes_back_as_it_was() -> None:
    shown = effective_yaml(PRESENT)
    assert "key-" not in shown
    settings, overruled = load_text(shown.encode(), "body", present=PRESENT)
    assert settings == PRESENT
    assert overruled == ()


def test_a_secret_follows_its_name_not_its_place() -> None:
    shown = yaml.safe_load(effective_yaml(PRESENT))
    shown["backends"].reverse()
    shown["discovery"].insert(0, {"kind": "dns", "host": "new"})
    settings, _ = load_text(yaml.safe_dump(shown).encode(), "body", present=PRESENT)
    keys = [entry.api_key and entry.api_key.get_secret_value() for entry in settings.discovery]
    assert keys == [None, "key-one", "key-two"]
    assert [b.api_key.get_secret_value() for b in settings.backends if b.api_key] == ["key-b", "key-a"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"backends": [{"name": "c", "url": "http://c", "api_key": "**********"}]}, "backends[0].api_key"),
        ({"backends": [{"url": "http://a", "api_key": "**********"}]}, "backends[0].api_key"),
        (
            {"discovery": [{"kind": "dns", "host": "other", "api_key": "**********"}]},
            "discovery[0].api_key",
        ),
        ({"backends": ["http://a"], "api_keys": [{"name": "x", "key": "**********"}]}, "api_keys[0].key"),
    ],
)
def test_a_mask_of_nobody_s_is_no_secret(change: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(yaml.safe_dump(change).encode(), "body", present=PRESENT)
    assert refused.value.message == f"{where}: is a mask for a secret that is not known here; write it out"


def test_a_text_without_end_of_nesting_is_refused() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_text(b"[" * 100_000, "body")
