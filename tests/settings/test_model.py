"""What a setting may be, and what must agree between settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stickyroute import defaults
from stickyroute.settings import Settings

ONE = ["http://gpu-1:8000"]


def refused(**values: Any) -> str:
    with pytest.raises(ValidationError) as error:
        Settings(**{"backends": ONE, **values})
    return str(error.value)


def test_the_smallest_configuration_is_one_url() -> None:
    settings = Settings(backends=ONE)
    assert [(b.name, b.url, b.weight) for b in settings.backends] == [("gpu-1:8000", "http://gpu-1:8000", 1)]
    assert settings.listen_address == ("0.0.0.0", 8080)
    assert settings.admin_address == ("127.0.0.1", 9090)
    assert settings.policy == "sticky"
    assert settings.affinity.sources == defaults.AFFINITY_SOURCES


def test_arguments_alone_make_settings_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STICKYROUTE_POLICY", "random")
    assert Settings(backends=ONE).policy == "sticky"


def test_settings_are_frozen_all_the_way_down() -> None:
    settings = Settings(backends=ONE)
    with pytest.raises(ValidationError):
        settings.policy = "ring"
    with pytest.raises(ValidationError):
        settings.limits.pipelined = 1
    with pytest.raises(ValidationError):
        settings.backends[0].weight = 2
    assert isinstance(settings.backends, tuple)
    assert isinstance(settings.affinity.sources, tuple)


def test_the_default_name_tells_backends_behind_one_gateway_apart() -> None:
    settings = Settings(backends=["http://gw:1/a", "http://gw:1/b", "https://[::1]"])
    assert [b.name for b in settings.backends] == ["gw:1/a", "gw:1/b", "[::1]:443"]


@pytest.mark.parametrize(
    ("given", "size"),
    [(1000, 1000), ("1000", 1000), ("64KiB", 65536), (" 2 MiB ", 2 << 20), ("1GiB", 1 << 30)],
)
def test_sizes_may_have_a_unit(given: object, size: int) -> None:
    assert Settings(backends=ONE, limits={"body_bytes": given}).limits.body_bytes == size


@pytest.mark.parametrize("given", ["64MB", "1.5MiB", "-1", "", "MiB", True, -5, None])
def test_a_wrong_size_is_refused(given: object) -> None:
    assert "limits.body_bytes" in refused(limits={"body_bytes": given})


@pytest.mark.parametrize(
    "timeouts",
    [
        {"connect_s": 0},
        {"connect_s": -1},
        {"connect_s": float("inf")},
        {"connect_s": float("nan")},
        {"connect_s": True},
        {"stream_idle_s": None},
        {"upstream_idle_s": 5},
        {"shutdown_s": -1},
    ],
)
def test_a_wrong_wait_is_refused(timeouts: dict[str, object]) -> None:
    assert f"timeouts.{next(iter(timeouts))}" in refused(timeouts=timeouts)


def test_a_reply_may_take_for_ever_unless_told_otherwise() -> None:
    assert Settings(backends=ONE).timeouts.response_header_s is None
    assert Settings(backends=ONE, timeouts={"response_header_s": 30}).timeouts.response_header_s == 30


@pytest.mark.parametrize("weight", [-1, 101, 1.5, "many", True])
def test_a_weight_is_a_small_whole_number(weight: object) -> None:
    assert "backends.0.weight" in refused(backends=[{"url": "http://a", "weight": weight}])


def test_somebody_must_be_served() -> None:
    assert "every weight is 0" in refused(
        backends=[{"url": "http://a", "weight": 0}, {"url": "http://b", "weight": 0}]
    )
    Settings(backends=[{"url": "http://a", "weight": 0}, {"url": "http://b"}])
    assert "name an engine" in refused(backends=[])


@pytest.mark.parametrize("name", ["gpu-1", "[::1]:80", "rack=3/gpu", "a" * 128])
def test_a_name(name: str) -> None:
    assert Settings(backends=[{"name": name, "url": "http://a"}]).backends[0].name == name


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a\\b", "a\nb", "naïve", "a" * 129])
def test_a_wrong_name_is_refused(name: str) -> None:
    assert "backends.0.name" in refused(backends=[{"name": name, "url": "http://a"}])


def test_two_backends_differ_in_name_and_url() -> None:
    assert "backends[0].name" in refused(
        backends=[{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}]
    )
    assert "backends[0].url" in refused(
        backends=[{"name": "a", "url": "http://x:80/"}, {"name": "b", "url": "http://X"}]
    )


def test_the_ports_differ() -> None:
    assert "public port too" in refused(listen="0.0.0.0:9090")
    assert "public port too" in refused(listen="127.0.0.1:8", admin_listen="127.0.0.1:8")
    Settings(backends=ONE, listen="127.0.0.1:0", admin_listen="127.0.0.1:0")
    Settings(backends=ONE, listen="127.0.0.2:9090", admin_listen="127.0.0.1:9090")


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("header:X-Session-ID", "header:x-session-id"),
        ("body:metadata.user_id", "body:metadata.user_id"),
        ("prefix", "prefix"),
    ],
)
def test_a_source_of_the_affinity_key(source: str, kept: str) -> None:
    assert Settings(backends=ONE, affinity={"sources": [source]}).affinity.sources == (kept,)


@pytest.mark.parametrize(
    "sources",
    [[], ["user"], ["header:"], ["header:a b"], ["body:"], ["body:a..b"], ["cookie:x"], ["prefix", "prefix"]],
)
def test_a_wrong_source_is_refused(sources: list[str]) -> None:
    assert "affinity.sources" in refused(affinity={"sources": sources})


@pytest.mark.parametrize("name", ["X-Request-ID", "traceparent", "x-correlation-id"])
def test_an_id_that_differs_on_every_request_keeps_nobody_in_place(name: str) -> None:
    assert "differs on every request" in refused(affinity={"sources": [f"header:{name}"]})


@pytest.mark.parametrize(
    "route", ["/v1/score", "POST v1/score", "FETCH /x", "POST /a b", "POST /a?b", "POST"]
)
def test_a_wrong_route_is_refused(route: str) -> None:
    assert "METHOD /path" in refused(extra_routes=[route])


def test_a_route_is_kept_in_one_spelling() -> None:
    assert Settings(backends=ONE, extra_routes=["post  /v1/score"]).extra_routes == ("POST /v1/score",)


def test_yaml_reads_a_bare_off_as_false() -> None:
    assert Settings(backends=ONE, access_log=False).access_log == "off"
    assert "access_log" in refused(access_log=True)


def test_origins_have_no_path() -> None:
    assert Settings(backends=ONE, cors={"allow_origins": ["*", "https://a.example:8443"]}).cors.allow_origins
    assert "origin" in refused(cors={"allow_origins": ["https://a.example/"]})


def test_files_must_be_there(tmp_path: Path) -> None:
    assert "names no file" in refused(tls={"cert": str(tmp_path / "none.pem"), "key": str(tmp_path)})


@pytest.mark.parametrize("key", ["", "two words", "naïve", "line\nbreak"])
def test_a_wrong_key_is_refused_and_not_told(key: str) -> None:
    message = str(refused(api_keys=[{"name": "a", "key": key}]))
    assert "printable ASCII" in message
    assert not key or key not in message


def test_gateway_keys_differ() -> None:
    message = refused(api_keys=[{"name": "a", "key": "k"}, {"name": "a", "key": "k"}])
    assert "api_keys[0].name" in message
    assert "api_keys[0].key" in message


def test_no_text_of_the_settings_shows_a_secret() -> None:
    settings = Settings(
        backends=[{"url": "http://a", "api_key": "engine-secret"}],
        api_keys=[{"name": "n", "key": "client-secret"}],
    )
    for text in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert "secret" not in text.replace("SecretStr", "")
    assert settings.backends[0].api_key is not None
    assert settings.backends[0].api_key.get_secret_value() == "engine-secret"
