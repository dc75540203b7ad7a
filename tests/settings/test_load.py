"""Where a value comes from, and how every mistake is told with its place and without secrets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stickyroute.errors import ConfigError
from stickyroute.settings import Settings, effective_yaml, load_settings

POLICIES = (
    "'sticky', 'bounded_ring', 'ring', 'least_tokens', 'least_requests', 'power_of_two', 'round_robin', 'random' "
    "or 'least_loaded'"
)
WORDS = """
    listen backends name url weight models api_key affinity sources policy limits body_bytes timeouts
    connect_s retries max tls cert api_keys key cors allow_origins extra_routes access_log
    strict_json nonsense
"""
KEYS = st.sampled_from(WORDS.split())
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("STICKYROUTE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "stickyroute.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def mistakes(path: Path | None, overrides: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_settings(path, overrides)
    return error.value.message.splitlines()


def test_flags_win_over_the_environment_which_wins_over_the_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        """
        backends: [http://file:1]
        policy: ring
        limits: {body_bytes: 1KiB, pipelined: 2, head_bytes: 2KiB}
        """
    )
    monkeypatch.setenv("STICKYROUTE_LIMITS__BODY_BYTES", "3MiB")
    monkeypatch.setenv("STICKYROUTE_LIMITS__PIPELINED", "3")
    settings = load_settings(path, {"limits": {"pipelined": 4}})
    assert settings.policy == "ring"
    assert (settings.limits.head_bytes, settings.limits.body_bytes, settings.limits.pipelined) == (
        2048,
        3 << 20,
        4,
    )
    assert settings.retries.max == 2


def test_a_list_is_replaced_whole(write: Write) -> None:
    path = write("backends: [{url: 'http://a', weight: 3}, http://b]")
    settings = load_settings(path, {"backends": [{"url": "http://c"}]})
    assert [(b.name, b.weight) for b in settings.backends] == [("c:80", 1)]


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("http://a:1,http://b:2", ["a:1", "b:2"]),
        ("http://a:1", ["a:1"]),
        (" http://a:1 , http://b:2, ", ["a:1", "b:2"]),
        ('["http://a:1"]', ["a:1"]),
        ('[{"name": "n", "url": "http://a:1", "weight": 2}]', ["n"]),
    ],
)
def test_backends_in_the_environment(
    variable: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STICKYROUTE_BACKENDS", variable)
    assert [b.name for b in load_settings(None).backends] == names


def test_every_kind_of_value_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pem = tmp_path / "a.pem"
    pem.write_text("")
    for name, value in {
        "BACKENDS": "http://a",
        "LISTEN": "[::1]:80",
        "STRICT_JSON": "false",
        "AFFINITY__SOURCES": "header:x-user-id, prefix",
        "RETRIES__BUDGET": "0.5",
        "TLS__CERT": str(pem),
        "tls__key": str(pem),
        "API_KEYS": '[{"name": "n", "key": "k"}]',
        "EXTRA_ROUTES": "POST /a,GET /b",
        "ACCESS_LOG": "off",
    }.items():
        monkeypatch.setenv(f"STICKYROUTE_{name}", value)
    settings = load_settings(None)
    assert settings.listen == "[::1]:80"
    assert settings.strict_json is False
    assert settings.affinity.sources == ("header:x-user-id", "prefix")
    assert settings.retries.budget == 0.5
    assert settings.tls is not None
    assert settings.tls.key == pem
    assert settings.api_keys[0].key.get_secret_value() == "k"
    assert settings.extra_routes == ("POST /a", "GET /b")
    assert settings.access_log == "off"


def test_every_mistake_is_told_at_once_with_its_place(write: Write) -> None:
    path = write(
        """
        listen: 8080
        polcy: ring
        backends:
          - url: http://a:1/v1
          - {url: "http://b:1", wieght: 2}
          - {name: c, url: "http://c:1"}
          - {name: c, url: "http://c:1/"}
          - {weight: 2}
        limits: {body_bytes: 64MB, pipelined: zero}
        timeouts: 5
        tls: {cert: /nowhere}
        """
    )
    told = dict(line.split(": ", 1) for line in mistakes(path))
    assert told == {
        "listen": "must be HOST:PORT, such as 0.0.0.0:8080; put an IPv6 address in quotes: '[::]:8080'",
        "polcy": "is no setting; did you mean policy?",
        "backends[0].url": "ends in /v1, which the paths of requests already start with; leave it out",
        "backends[1].wieght": "is no setting; did you mean weight?",
        "backends[3].name": "is the same as backends[2].name; each must differ",
        "backends[3].url": "is the same as backends[2].url; each must differ",
        "backends[4].url": "is missing; it is required",
        "limits.body_bytes": "must be a number of bytes, or one with a unit: 65536, 64KiB, 64MiB, 1GiB",
        "limits.pipelined": "must be a whole number",
        "timeouts": "must be a group of `key: value` lines",
        "tls.cert": "names no file",
        "tls.key": "is missing; it is required",
    }


def test_a_key_that_is_close_to_nothing_brings_the_list(write: Write) -> None:
    path = write("backends: [http://a]\nretries: {xyz: 1}")
    assert mistakes(path) == ["retries.xyz: is no setting; known here: max, budget, burst"]


def test_a_mistake_tells_which_source_it_is_in(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("backends: [http://a]\nretries: {max: -1}")
    monkeypatch.setenv("STICKYROUTE_RETRIES__BUDGET", "2")
    assert mistakes(path, {"policy": "none"}) == [
        "policy (from a flag): must be " + POLICIES,
        "retries.max: must be greater than or equal to 0",
        "retries.budget (from the environment): must be less than or equal to 1",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policy: bounded-rign", f"policy: must be {POLICIES}; did you mean bounded_ring?"),
        ("policy: RANDOM", f"policy: must be {POLICIES}; did you mean random?"),
        ("shadow: stiky", f"shadow: must be {POLICIES}; did you mean sticky?"),
        ("policy: 7", f"policy: must be {POLICIES}"),
        (
            "log_level: warn",
            "log_level: must be 'debug', 'info', 'warning' or 'error'; did you mean warning?",
        ),
        ("access_log: jsno", "access_log: must be 'off', 'text' or 'json'; did you mean json?"),
    ],
)
def test_a_misspelt_word_brings_the_one_that_may_have_been_meant(write: Write, text: str, told: str) -> None:
    assert mistakes(write(f"backends: [http://a]\n{text}")) == [told]


def test_no_backend_at_all_is_a_mistake(write: Write) -> None:
    told = (
        "backends: is missing; name an engine: in the file, in STICKYROUTE_BACKENDS, or with --backend URL; "
        "or say under `discovery` where they are found"
    )
    assert mistakes(None) == [told]
    assert mistakes(write("")) == [told]
    assert mistakes(write("backends: []")) == [told]
    assert mistakes(write("retries: {max: -1}")) == ["retries.max: must be greater than or equal to 0", told]


def test_with_discovery_no_backend_need_be_named(write: Write) -> None:
    settings = load_settings(write("discovery: [{kind: dns, host: vllm.local, port: 8000}]"))
    assert (settings.backends, settings.discovery[0].label) == ((), "dns:vllm.local:8000")


def test_two_places_of_discovery_are_two_places(write: Write) -> None:
    entry = "{kind: kubernetes, service: vllm, namespace: llm, port: 8000}"
    assert mistakes(write(f"discovery: [{entry}, {entry.replace('8000', '8001')}, {entry}]")) == [
        "discovery[2]: looks at the same place as discovery[0]; leave one out"
    ]


def test_what_a_kind_of_discovery_lacks_and_what_it_has_no_use_for_is_told(write: Write) -> None:
    entries = (
        "discovery: [{kind: file}, {kind: dns, path: a, port: http, host: h}, {kind: kubernetes, host: h},"
        " {kind: dns, host: h, resolver: '1.2.3.4'}, {kind: consul}]"
    )
    assert mistakes(write(entries)) == [
        "discovery[0].path: is missing; name the file with the list of backends",
        "discovery[1].path: is for file, not for dns; leave it out",
        "discovery[1].port: must be a whole number; only Kubernetes has names for ports",
        "discovery[2].host: is for dns, not for kubernetes; leave it out",
        "discovery[2].service: give either service (its endpoints) or selector (pods by label)",
        "discovery[3].resolver: has no port; write HOST:PORT, such as 0.0.0.0:8080",
        "discovery[4].kind: must be 'file', 'dns' or 'kubernetes'",
    ]


def test_a_slip_in_a_variable_is_told_and_foreign_variables_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STICKYROUTE_BACKENDS", "http://a")
    for foreign in (
        "STICKYROUTE_SERVICE_HOST", "STICKYROUTE_SERVICE_PORT", "STICKYROUTE_SERVICE_PORT_HTTP",
        "STICKYROUTE_PORT", "STICKYROUTE_PORT_8080_TCP_ADDR", "STICKYROUTE_IMAGE_TAG",
    ):  # fmt: skip
        monkeypatch.setenv(foreign, "tcp://10.0.0.1:8080")
    load_settings(None)
    monkeypatch.setenv("STICKYROUTE_POLICYS", "ring")
    assert mistakes(None) == ["STICKYROUTE_POLICYS: is no setting; did you mean STICKYROUTE_POLICY?"]


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("backends: [http://a\nlisten: x:1\n", "line 2, column 7", "expected ',' or ']'"),
        ("backends:\n\t- http://a\n", "line 2, column 1", "cannot start any token"),
        ("policy: ring\npolicy: random\n", "line 2, column 1", "the key 'policy' is here twice"),
        ("limits: {pipelined: 1, pipelined: 2}", "line 1, column 24", "here twice"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1", "another document"),
        ("a: !!python/object:os.system {}", "line 1, column 4", "could not determine a constructor"),
        ("listen: [::1]:8080\n", "line 1, column 10", "expected the node content"),
    ],
)
def test_what_is_not_yaml_is_told_with_line_and_column(
    write: Write, text: str, place: str, what: str
) -> None:
    path = write(text)
    (line,) = mistakes(path)
    assert line.startswith(f"{path}, {place}: not YAML: ")
    assert what in line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "none.yaml") == [
        f"cannot read {tmp_path}/none.yaml: No such file or directory"
    ]
    assert mistakes(tmp_path) == [f"cannot read {tmp_path}: Is a directory"]


def test_a_file_of_something_else_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xff\xfe\x00binary")
    (line,) = mistakes(path)
    assert "not YAML" in line
    path.write_text("just words")
    (line,) = mistakes(path)
    assert "holds no settings" in line


def test_null_is_the_same_as_nothing(write: Write) -> None:
    path = write(
        "backends: [{url: 'http://a', name: null}]\nlimits:\n#  pipelined: 2\nlisten: null\ntls: null\n"
    )
    assert load_settings(path) == Settings(backends=["http://a"])
    path = write("backends: [http://a]\nlimits: {max_connections: 5, pipelined: 5}")
    settings = load_settings(path, {"limits": {"max_connections": None}})
    assert (settings.limits.max_connections, settings.limits.pipelined) == (None, 5)
    assert mistakes(write("backends: [null]")) == ["backends[0]: must be a group of `key: value` lines"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("a1:/ .-\n\u00e4", max_size=8)
    | st.just("http://a:1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(0, 3), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_whatever_is_given_is_settings_or_a_list_of_mistakes(values: dict[str, Any]) -> None:
    try:
        loaded = load_settings(None, values)
    except ConfigError as error:
        told = error.message.splitlines()
    else:
        told = ["right: as it is"]
        assert load_settings(None, yaml.safe_load(effective_yaml(loaded))) == loaded
    assert told
    assert all(": " in line for line in told)


def test_no_message_repeats_a_secret(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        """
        backends:
          - {url: "http://user:hunter2@a", api_key: "hunter2 with space"}
          - {url: "http://b", api_key: [hunter2], api_ky: hunter2}
        api_keys: [{name: n, key: "hunter2\\n"}, {name: n, keys: hunter2}, hunter2]
        """
    )
    monkeypatch.setenv("STICKYROUTE_API_KEYS", "[hunter2")
    assert "hunter2" not in "\n".join(mistakes(path))
    monkeypatch.delenv("STICKYROUTE_API_KEYS")
    lines = mistakes(path)
    assert len(lines) == 8
    assert "hunter2" not in "\n".join(lines)


def test_broken_yaml_around_a_secret_does_not_show_it(write: Write) -> None:
    (line,) = mistakes(write("backends: [{url: http://a, api_key: 'hunter2}]"))
    assert "hunter2" not in line


def test_the_effective_configuration_masks_secrets_and_loads_again(write: Write) -> None:
    path = write(
        "backends: [{url: 'http://a', api_key: hunter2}]\n"
        "api_keys: [{name: n, key: hunter3}]\n"
        "access_log: off\n"
    )
    settings = load_settings(path)
    text = effective_yaml(settings)
    assert "hunter" not in text
    shown = yaml.safe_load(text)
    assert shown["backends"][0]["api_key"] == "**********"
    assert shown["access_log"] == "off"
    again = load_settings(write(text))
    assert effective_yaml(again) == text
