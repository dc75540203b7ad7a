"""HOST:PORT and base URLs: what is read, and what is refused with which advice."""

from __future__ import annotations

import pytest

from stickyroute.settings import Address, parse_backend_url, split_host_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0:8080", "0.0.0.0", 8080),
        ("localhost:0", "localhost", 0),
        ("[::1]:8080", "::1", 8080),
        ("[::]:65535", "::", 65535),
        ("Router-1.internal:80", "router-1.internal", 80),
    ],
)
def test_an_address_is_read_in_parts(text: str, host: str, port: int) -> None:
    assert split_host_port(text) == (host, port)


@pytest.mark.parametrize("address", [Address("::1", 80), Address("127.0.0.1", 0), Address("host", 65535)])
def test_an_address_written_out_reads_back(address: Address) -> None:
    assert split_host_port(str(address)) == address


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("8080", "has no port"),
        (":8080", "has no host"),
        ("host:", "not a number"),
        ("host:65536", "not a number"),
        ("host:-1", "not a number"),
        ("host:٣", "not a number"),
        ("host:100000000000000000000", "not a number"),
        ("::1:8080", "without brackets"),
        ("[host]:80", "not an IPv6 address"),
        ("unix:/run/s.sock", "unix sockets"),
        ("/run/s.sock", "unix sockets"),
        ("http://host:80", "brackets"),
        ("ho st:80", "no valid host"),
    ],
)
def test_a_wrong_address_is_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        split_host_port(text)


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port", "base_path"),
    [
        ("http://gpu-1:8000", "http", "gpu-1", 8000, ""),
        ("http://gpu-1", "http", "gpu-1", 80, ""),
        ("https://gpu-1/", "https", "gpu-1", 443, ""),
        ("HTTP://GPU-1:8000/Base/Path/", "http", "gpu-1", 8000, "/Base/Path"),
        ("http://[::1]:9/", "http", "::1", 9, ""),
        ("http://[fd00::1]", "http", "fd00::1", 80, ""),
        ("http://10.0.0.1:8000/v1beta", "http", "10.0.0.1", 8000, "/v1beta"),
    ],
)
def test_a_url_is_read_in_parts(text: str, scheme: str, host: str, port: int, base_path: str) -> None:
    url = parse_backend_url(text)
    assert url == (scheme, host, port, base_path)
    assert parse_backend_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("gpu-1:8000", "no scheme"),
        ("ftp://gpu-1", "must start with http"),
        ("unix:///run/s.sock", "unix sockets"),
        ("http://gpu-1:8000/v1", "leave it out"),
        ("http://gpu-1:8000/base/v1/", "leave it out"),
        ("http://gpu-1:8000?x=1", "query"),
        ("http://gpu-1:8000/#", "query or fragment"),
        ("http://user:pass@gpu-1:8000", "api_key"),
        ("http://", "no valid host"),
        ("http://:8000", "no valid host"),
        ("http://gpu-1:0", "port"),
        ("http://gpu-1:http", "port"),
        ("http://::1:8000", "brackets"),
        ("http://[::1", "brackets"),
        ("http://[::1]8000", "between"),
        ("http://gpu-1/../x", "prefix of request paths"),
        ("http://gpu-1/a//b", "prefix of request paths"),
        ("http://gpu 1", "space"),
        ("http://gpu-1\r\nx: y", "space"),
        ("http://gpü-1", "outside ASCII"),
    ],
)
def test_a_wrong_url_is_refused_with_advice(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        parse_backend_url(text)


def test_a_refused_url_is_not_repeated() -> None:
    with pytest.raises(ValueError) as refused:
        parse_backend_url("http://user:hunter2@gpu-1:8000")
    assert "hunter2" not in str(refused.value)
