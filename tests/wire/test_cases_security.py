"""Group I of the field's bug reports: security. Each test is named after its case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_backend import Call, Canary, drop, fakes, raw, reply
from tests.support.raw_client import CHAT, RawClient, Truncated, chat, request
from tests.support.run_proxy import RunningProxy, run_proxy

KEY = "gateway-key-0123456789"
KEYS = [{"name": "team-a", "key": KEY}]
BEARER = {"Authorization": f"Bearer {KEY}"}


async def test_b97_nobody_can_register_a_backend() -> None:
    async with Canary() as canary, fakes() as fake, run_proxy([fake]) as proxy:
        url = f"http://127.0.0.1:{canary.port}"
        body = json.dumps({"url": url, "worker": url, "backend": url, "name": "evil"}).encode()
        paths = [
            "/add_worker",
            "/register",
            "/register_worker",
            "/backends",
            "/fleet",
            "/admin/backends",
            "/workers",
            "/reload",
        ]
        for path in [*paths, f"/add_worker?url={url}"]:
            for method in ("GET", "POST", "PUT", "DELETE"):
                answer = await proxy.ask(body if method != "GET" else None, method=method, path=path)
                assert answer.status in (401, 403, 404, 405)
        for path in paths:
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                async with await RawClient.connect(proxy.admin_port) as client:
                    answer = await client.ask(
                        request(body, method=method, path=path, headers={"Connection": "close"})
                    )
                    assert answer.status in (401, 403, 404, 405)
        assert (await proxy.ask()).status == 200
        assert canary.contacts == 0


async def test_b98_no_request_chooses_its_destination() -> None:
    async with Canary() as canary, fakes() as fake, run_proxy([fake]) as proxy:
        there = f"127.0.0.1:{canary.port}"
        url = f"http://{there}"
        body = chat(api_base=url, base_url=url, endpoint=url, url=url, backend=url)
        headers = {
            "X-Backend-Url": url,
            "X-Forwarded-Host": there,
            "Forwarded": f"host={there}",
            "X-Original-URL": url,
        }
        assert (await proxy.ask(body, headers=headers)).status == 200
        assert (await proxy.ask(host=there)).status == 200
        for target in (
            f"{url}{CHAT}", f"{url}/", f"http://user@{there}{CHAT}", f"//{there}{CHAT}", f"/@{there}{CHAT}",
            f"@{there}{CHAT}", f"{there}{CHAT}", f"https://{there}", "*", f"{CHAT}@{there}", f"http:///{there}",
        ):  # fmt: skip
            for method in ("GET", "POST"):
                async with await proxy.client() as client:
                    client.send(request(chat() if method == "POST" else None, method=method, path=target))
                    assert (await client.response(method=method)).status in (200, 400, 404, 405)
        async with await proxy.client() as client:
            client.send(request(method="CONNECT", path=there))
            assert (await client.response(method="CONNECT")).status >= 400
        assert canary.contacts == 0
        assert {call.get("host") for call in fake.requests} == {fake.authority}
        assert {call.path for call in fake.requests} <= {CHAT, "/"}  # GET / is an engine's own


@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
async def test_b99_the_gateway_key_never_reaches_a_backend(header: str) -> None:
    offered = {header: f"Bearer {KEY}" if header == "Authorization" else KEY}
    async with fakes("a", "b") as (a, b):
        async with run_proxy(
            [a.settings(api_key="engine-key-B"), b], api_keys=KEYS, policy="round_robin"
        ) as proxy:
            for _ in range(4):
                assert (await proxy.ask(headers=offered)).status == 200
            for path in ("/tokenize", "/v1/realtime?model=m"):
                for _ in range(2):
                    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"} if "realtime" in path else {}
                    await proxy.ask(
                        None if upgrade else b"{}",
                        method="GET" if upgrade else "POST",
                        path=path,
                        headers=offered | upgrade,
                    )
        assert {call.get("authorization") for call in a.requests} == {"Bearer engine-key-B"}
        assert {call.get("authorization") for call in b.requests} == {None}
        assert not any(KEY.encode() in call.head for call in a.requests + b.requests + a.probes + b.probes)
        assert len(a.requests) == len(b.requests) == 4


async def test_b99_without_gateway_keys_a_backend_s_own_key_replaces_the_client_s() -> None:
    async with fakes("a", "b") as (a, b):
        async with run_proxy([a.settings(api_key="engine-key-B"), b], policy="round_robin") as proxy:
            for _ in range(2):
                await proxy.ask(headers={"Authorization": "Bearer mine", "x-api-key": "mine"})
        assert a.requests[0].get("authorization") == "Bearer engine-key-B"
        assert a.requests[0].get("x-api-key") is None
        assert (b.requests[0].get("authorization"), b.requests[0].get("x-api-key")) == ("Bearer mine", "mine")


@pytest.mark.parametrize(
    "offered",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY[:-1]},
        {"x-api-key": ""},
        {"Authorization": "Basic eA=="},
    ],
)
async def test_b100_no_header_replaces_the_key(offered: dict[str, str]) -> None:
    spoofed = {
        "X-Forwarded-For": "127.0.0.1",
        "X-Real-IP": "127.0.0.1",
        "Forwarded": "for=127.0.0.1",
        "X-Forwarded-User": "admin",
    }
    async with fakes() as fake, run_proxy([fake], api_keys=KEYS) as proxy:
        for path, method in (
            (CHAT, "POST"),
            ("/v1/models", "GET"),
            ("/tokenize", "POST"),
            ("/v1/messages", "POST"),
        ):
            answer = await proxy.ask(
                chat() if method == "POST" else None, method=method, path=path, headers=spoofed | offered
            )
            assert answer.status == 401
            assert answer.json["error"]["type"] == "authentication_error"
        assert fake.requests == []


async def test_b100_the_real_peer_is_appended_to_what_a_client_claims() -> None:
    async with fakes() as fake, run_proxy([fake], api_keys=KEYS) as proxy:
        assert (await proxy.ask(headers=BEARER | {"X-Forwarded-For": "10.0.0.1, 10.0.0.2"})).status == 200
        assert fake.requests[0].get("x-forwarded-for") == "10.0.0.1, 10.0.0.2, 127.0.0.1"
        twice = [*BEARER.items(), ("X-Forwarded-For", "10.0.0.1"), ("X-Forwarded-For", "10.0.0.2")]
        assert (await proxy.ask(chat(), headers=twice)).status == 200
        assert fake.requests[1].get("x-forwarded-for") == "10.0.0.1, 10.0.0.2, 127.0.0.1"


INNER = b"POST /tokenize?smuggled HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
LINE = b"POST /tokenize HTTP/1.1\r\nHost: h\r\n"
AS_CHUNKS = b"0\r\n\r\n" + INNER


def sized(fields: bytes, body: bytes = AS_CHUNKS, line: bytes = LINE) -> bytes:
    """A request with these fields and a Content-Length over the whole of `body`."""
    return line + b"Content-Length: %d\r\n" % len(body) + fields + b"\r\n" + body


SMUGGLING = {
    "length and chunked": sized(b"Transfer-Encoding: chunked\r\n"),
    "chunked and length": LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + AS_CHUNKS,
    "two lengths": LINE + b"Content-Length: 5\r\nContent-Length: %d\r\n\r\n" % len(AS_CHUNKS) + AS_CHUNKS,
    "two lengths in one field": LINE + b"Content-Length: 5, %d\r\n\r\n" % len(AS_CHUNKS) + AS_CHUNKS,
    "space before the colon": sized(b"Transfer-Encoding : chunked\r\n"),
    "tab before the colon": sized(b"Transfer-Encoding\t: chunked\r\n"),
    "vertical tab before chunked": sized(b"Transfer-Encoding: \x0bchunked\r\n"),
    "chunked in quotes": sized(b'Transfer-Encoding: "chunked"\r\n'),
    "xchunked": sized(b"Transfer-Encoding: xchunked\r\n"),
    "chunked, identity": sized(b"Transfer-Encoding: chunked, identity\r\n"),
    "identity, chunked": sized(b"Transfer-Encoding: identity, chunked\r\n"),
    "two codings": sized(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"),
    "chunked twice": LINE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + AS_CHUNKS,
    "obs-fold in the coding": sized(b"Transfer-Encoding:\r\n chunked\r\n"),
    "obs-fold hides the coding": sized(b"X-A: b\r\n Transfer-Encoding: chunked\r\n"),
    "bare LF before the coding": sized(b"X-A: b\nTransfer-Encoding: chunked\r\n"),
    "bare CR before the coding": sized(b"X-A: b\rTransfer-Encoding: chunked\r\n"),
    "bare LF everywhere": sized(b"Transfer-Encoding: chunked\r\n").replace(b"\r\n", b"\n"),
    "nul in a field": sized(b"X-A: b\0Transfer-Encoding: chunked\r\n"),
    "plus in the length": LINE + b"Content-Length: +5\r\n\r\n" + AS_CHUNKS,
    "hex length": LINE + b"Content-Length: 0x5\r\n\r\n" + AS_CHUNKS,
    "empty length": LINE + b"Content-Length: \r\n\r\n" + AS_CHUNKS,
    "chunk size with 0x": LINE + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + INNER,
    "chunk size with a space": LINE
    + b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n"[:-1]
    + INNER,
    "chunk size too large": LINE + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + AS_CHUNKS,
    "bare LF in a chunk extension": LINE + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\nhello\r\n" + AS_CHUNKS,
    "chunk longer than its size": LINE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n" + AS_CHUNKS,
    "chunked in HTTP/1.0": sized(b"Transfer-Encoding: chunked\r\n", line=LINE.replace(b"1.1", b"1.0")),
    "a space before the first field": LINE[:25] + b" X: y\r\n" + LINE[25:] + b"Content-Length: 0\r\n\r\n",
    "no host": b"POST /tokenize HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two hosts": LINE + b"Host: other\r\nContent-Length: 0\r\n\r\n",
}


async def replies(proxy: RunningProxy, data: bytes) -> list[int]:
    """The status of each reply to `data` until the connection ends."""
    statuses: list[int] = []
    async with await proxy.client() as client:
        client.send(data)
        try:
            while True:
                statuses.append((await client.response(timeout_s=3)).status)
        except (Truncated, TimeoutError):
            return statuses


@pytest.mark.parametrize("what", SMUGGLING)
async def test_b102_an_ambiguous_request_is_refused_or_is_one_request(what: str) -> None:
    limits = {"client_idle_s": 0.1, "client_head_s": 0.1, "client_body_s": 0.1}
    async with fakes() as fake, run_proxy([fake], timeouts=limits) as proxy:
        statuses = await replies(proxy, SMUGGLING[what])
        assert not [call.target for call in fake.requests if "smuggled" in call.target]
        assert len(fake.requests) <= 1
        assert len(statuses) == 1
        assert statuses[0] in (200, 400, 408, 501)
        if fake.requests:  # one normalized request
            framings = fake.requests[0].all("content-length") + fake.requests[0].all("transfer-encoding")
            assert len(framings) == 1


@pytest.mark.parametrize(
    "sent",
    [b"a\x1b[31mb", b"x%0ainjected", b"caf\xe9", b"i" * 8192, b"a b", b'"quoted"', b"<script>", b"a,b", b""],
    ids=["esc", "percent", "obs-text", "8k", "space", "quotes", "markup", "comma", "empty"],
)
async def test_b104_a_client_s_request_id_is_sane_or_replaced(sent: bytes, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    async with fakes() as fake:
        async with (
            run_proxy([fake], access_log="json", access_log_path=log) as proxy,
            await proxy.client() as client,
        ):
            whole = request(headers={"X-Request-Id": "MARK"}).replace(b"MARK", sent)
            answer = await client.ask(whole)
            if answer.status == 400:  # a control character in a field is no HTTP
                assert b"\x1b" in sent
                return
            echoed = answer.get("x-request-id") or ""
            assert answer.status == 200
            assert 0 < len(echoed) <= 256
            assert echoed.isascii()
            assert echoed.isprintable()
            assert fake.requests[0].request_id == echoed
        lines = log.read_text().splitlines()
        assert len(lines) == 1
        assert json.loads(lines[0])["request_id"] == echoed


async def test_b104_two_request_ids_become_one() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        answer = await proxy.ask(chat(), headers=[("X-Request-Id", "one"), ("X-Request-Id", "two")])
        assert fake.requests[0].request_id == answer.get("x-request-id")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_b106_a_redirect_is_relayed_and_never_followed(status: int) -> None:
    async with Canary() as canary, fakes() as fake, run_proxy([fake]) as proxy:
        there = f"http://127.0.0.1:{canary.port}/internal"
        fake.on(CHAT, reply(status, b"moved", fields=[("Location", there)]))
        fake.on("/v1/models", reply(status, b"moved", fields=[("Location", there)]))
        answer = await proxy.ask()
        assert (answer.status, answer.get("location"), answer.body) == (status, there, b"moved")
        assert canary.contacts == 0


async def test_b106_the_proxy_s_own_probes_follow_no_redirect() -> None:
    async with Canary() as canary, fakes() as fake:
        fake.on(
            "/v1/models", reply(307, b"", fields=[("Location", f"http://127.0.0.1:{canary.port}/v1/models")])
        )
        async with run_proxy([fake]) as proxy:
            assert (await proxy.ask()).status == 200
        assert fake.probes
        assert canary.contacts == 0


async def test_b107_nothing_internal_is_on_the_public_port() -> None:
    async with fakes() as fake, run_proxy([fake], api_keys=KEYS) as proxy:
        for path in (
            "/metrics",
            "/debug",
            "/docs",
            "/admin",
            "/fleet",
            "/healthz",
            "/readyz",
            "/openapi.json",
            "/config",
        ):
            for headers in ({}, BEARER):
                answer = await proxy.ask(method="GET", path=path, headers=headers)
                assert answer.status in (401, 404), path
        assert fake.requests == []


async def test_b107_no_error_tells_an_address_or_a_key() -> None:
    async with fakes() as fake:
        entry = fake.settings(api_key="engine-key-B")
        limits = {"body_bytes": 100_000}
        async with run_proxy(
            [entry], api_keys=KEYS, limits=limits, timeouts={"response_header_s": 0.1}
        ) as proxy:
            asked: list[tuple[bytes, dict[str, str], str]] = [
                (chat(), {}, CHAT),
                (chat(model="nope"), BEARER, CHAT),
                (b"{", BEARER, CHAT),
                (chat("x" * 100_000), BEARER, CHAT),
                (chat(), BEARER, "/nowhere"),
            ]
            answers = [await proxy.ask(body, path=path, headers=headers) for body, headers, path in asked]

            async def hang(call: Call) -> None:
                await call.gone.wait()

            for script in (drop(), raw(b"garbage"), hang):
                fake.on(CHAT, script)
                answers.append(await proxy.ask(headers=BEARER))
            await fake.refuse()
            fake.drop_idle()
            answers.append(await proxy.ask(headers=BEARER))
            assert sorted(answer.status for answer in answers) == [
                400,
                401,
                404,
                404,
                413,
                502,
                502,
                503,
                504,
            ]
            for answer in answers:
                told = answer.body.decode() + str(answer.fields)
                assert not [
                    word
                    for word in (str(fake.port), "127.0.0.1", KEY, "engine-key-B", "Traceback")
                    if word in told
                ]


async def test_a_reply_cannot_forge_what_the_proxy_says() -> None:
    forged = [
        ("X-Request-Id", "forged"),
        ("X-Stickyroute-Backend", "forged"),
        ("X-Stickyroute-Reason", "forged"),
    ]
    async with fakes() as fake, run_proxy([fake], response_headers=True) as proxy:
        fake.on(CHAT, reply(200, b"{}", fields=forged))
        answer = await proxy.ask()
        assert answer.get("x-request-id") == fake.requests[0].request_id
        assert answer.get("x-stickyroute-backend") == "a"
        assert answer.get("x-stickyroute-reason") != "forged"
