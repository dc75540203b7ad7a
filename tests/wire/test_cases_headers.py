"""Group D of the field's bug reports: headers and HTTP conformance. Each test is named after its case."""

from __future__ import annotations

import gzip
import hashlib
import os

import pytest

from tests.support.fake_backend import Call, echo, fakes, reply
from tests.support.raw_client import CHAT, chat, request
from tests.support.run_proxy import run_proxy


async def test_b42_the_backend_gets_the_host_it_answers_to() -> None:
    async def by_host(call: Call) -> None:
        await (echo if call.get("host") == call.fake.authority else reply(400, b"wrong host"))(call)

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, by_host)
        assert (await proxy.ask(host="api.public")).status == 200
        assert fake.requests[0].get("x-forwarded-host") == "api.public"


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("status", [200, 400, 503])
async def test_b43_exactly_one_framing_that_matches_the_bytes(
    status: int, framing: str, streams: bool
) -> None:
    body = os.urandom(7000)
    kind = "text/event-stream" if streams else "application/json"
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, reply(status, body, framing=framing, fields=[("Content-Type", kind)]))
        for _ in range(2):
            answer = await client.ask(request(chat(stream=streams)))  # checks that there is one framing
            assert (answer.status, answer.body) == (status, body)
            assert answer.framing == ("length" if framing == "length" else "chunked")
            assert client.nothing_left


@pytest.mark.parametrize("wanted", ["gzip", "identity"])
async def test_b44_content_coding_is_between_client_and_backend(wanted: str) -> None:
    async def by_choice(call: Call) -> None:
        await reply(200, b'{"x":"' + b"y" * 5000 + b'"}', gzip=call.get("accept-encoding") == "gzip")(call)

    async with fakes() as fake, run_proxy([fake]) as proxy:
        fake.on(CHAT, by_choice)
        answer = await proxy.ask(headers={"Accept-Encoding": wanted})
        coded = answer.get("content-encoding") == "gzip"
        assert coded == (wanted == "gzip")
        assert (gzip.decompress(answer.body) if coded else answer.body) == b'{"x":"' + b"y" * 5000 + b'"}'


async def test_b46_the_client_s_key_reaches_the_worker_and_a_401_is_not_ill_health() -> None:
    async def guarded(call: Call) -> None:
        await (echo if call.get("authorization") == "Bearer k" else reply(401, b'{"error":"Unauthorized"}'))(
            call
        )

    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy:
        for fake in (a, b):
            fake.on(CHAT, guarded)
        first = await proxy.ask(headers={"Authorization": "Bearer k", "x-session-id": "s"})
        assert first.status == 200
        for _ in range(50):
            bad = await proxy.ask(headers={"Authorization": "Bearer wrong", "x-session-id": "s"})
            assert (bad.status, bad.body) == (401, b'{"error":"Unauthorized"}')
        again = await proxy.ask(headers={"Authorization": "Bearer k", "x-session-id": "s"})
        assert again.backend == first.backend


async def test_b48_head_works_where_get_does() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        for path in ("/v1/models", "/health", "/v1/models/m"):
            got = await client.ask(request(method="GET", path=path), method="GET")
            sent = (await proxy.metrics()).sum("stickyroute_sent_bytes_total")
            head = await client.ask(request(method="HEAD", path=path), method="HEAD")
            assert (await proxy.metrics()).sum("stickyroute_sent_bytes_total") == sent
            assert (got.status, head.status) == (200, 200)
            assert head.body == b""
            assert head.get("content-length") in (None, got.get("content-length"))
            assert client.nothing_left
        assert fake.requests == []


async def test_b48_a_preflight_needs_no_key() -> None:
    origin = "https://app.example.com"
    ask = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    key = [{"name": "t", "key": "secret-key-1"}]
    async with fakes() as fake:
        async with run_proxy([fake], api_keys=key) as proxy:
            answer = await proxy.ask(method="OPTIONS", path=CHAT, headers=ask)
            assert answer.status in (200, 204)
            assert answer.get("access-control-allow-origin") is None
        async with run_proxy([fake], api_keys=key, cors={"allow_origins": [origin]}) as proxy:
            answer = await proxy.ask(method="OPTIONS", path=CHAT, headers=ask)
            assert answer.status in (200, 204)
            assert answer.get("access-control-allow-origin") == origin
            assert "POST" in (answer.get("access-control-allow-methods") or "")
            assert "authorization" in (answer.get("access-control-allow-headers") or "").lower()
            for path, method in ((CHAT, "POST"), ("/v1/models", "GET")):
                body = chat() if method == "POST" else None
                headers = {"Origin": origin, "Authorization": "Bearer secret-key-1"}
                answer = await proxy.ask(body, method=method, path=path, headers=headers)
                assert (answer.status, answer.get("access-control-allow-origin")) == (200, origin)
            other = await proxy.ask(
                method="OPTIONS", path=CHAT, headers={**ask, "Origin": "https://evil.example"}
            )
            assert other.get("access-control-allow-origin") is None
        assert len(fake.requests) == 1


async def test_b50_hop_by_hop_fields_stop_here_in_both_directions() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(
            CHAT, reply(200, b"{}", fields=[("Connection", "close, X-Bar"), ("X-Bar", "1"), ("X-Baz", "2")])
        )
        headers = {"Connection": "X-Foo", "X-Foo": "1", "TE": "trailers", "Proxy-Authorization": "Basic eA=="}
        for _ in range(2):
            answer = await client.ask(request(headers=headers))
            assert (answer.get("x-bar"), answer.get("x-baz"), answer.closes) == (None, "2", False)
            assert not fake.requests[-1].names & {"x-foo", "te", "proxy-authorization"}


async def test_b50_connection_cannot_be_used_to_strip_what_the_proxy_adds() -> None:
    """A client that names our fields in Connection must not hide its address or lose its framing."""
    named = "close, Host, X-Forwarded-For, X-Request-Id, Content-Length, Content-Type, X-Forwarded-Host"
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert (await proxy.ask(chat(), headers={"Connection": named})).status == 200
        seen = fake.requests[0]
        assert seen.get("host") == fake.authority
        assert seen.get("x-forwarded-for") == "127.0.0.1"
        assert seen.request_id
        assert seen.body == chat()


async def test_b52_multipart_is_relayed_like_anything_else() -> None:
    part = os.urandom(3 << 20)
    body = (
        b'--b0undary\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + part
        + b"\r\n--b0undary--\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=b0undary", "Authorization": "Bearer k"}
    async with fakes() as fake, run_proxy([fake]) as proxy:
        answer = await proxy.ask(body, path="/v1/audio/transcriptions", headers=headers)
        assert answer.status == 200
        seen = fake.requests[0]
        assert seen.get("authorization") == "Bearer k"
        assert seen.get("content-type") == headers["Content-Type"]
        assert seen.sha256 == hashlib.sha256(body).hexdigest()
