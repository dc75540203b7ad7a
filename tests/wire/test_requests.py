"""What the data plane owes, the request's half: from the client's bytes to what the backend sees."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from tests.support.fake_backend import FakeBackend, fakes, held
from tests.support.raw_client import CHAT, RawClient, chat, request
from tests.support.run_proxy import run_proxy

MIB = 1 << 20


async def test_http_1_1_is_spoken_both_ways() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        reply = await proxy.ask()
        assert (reply.minor, reply.status) == (1, 200)
        assert fake.requests[0].version == b"HTTP/1.1"
        assert fake.requests[0].method == "POST"


async def test_an_http_1_0_client_is_answered_and_its_backend_still_hears_1_1() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        reply = await client.ask(request(minor=0), minor=0)
        assert (reply.status, reply.closes) == (200, True)
        assert await client.rest() == b""
        assert fake.requests[0].version == b"HTTP/1.1"


async def test_keep_alive_one_connection_carries_many_requests_on_both_sides() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        for i in range(5):
            reply = await client.ask(request(chat(f"turn {i}"), headers={"x-session-id": "s"}))
            assert (reply.status, reply.closes) == (200, False)
        assert len(fake.used) == 1
        assert len(fake.requests) == 5


async def test_keep_alive_is_given_to_an_http_1_0_client_that_asks_for_it() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        for _ in range(2):
            reply = await client.ask(request(minor=0, headers={"Connection": "keep-alive"}), minor=0)
            assert (reply.status, reply.closes) == (200, False)
        assert len(fake.requests) == 2


async def test_connection_close_is_honoured() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        reply = await client.ask(request(headers={"Connection": "close"}))
        assert reply.closes
        assert await client.rest() == b""
        assert len(fake.requests) == 1


async def test_what_follows_a_connection_close_is_no_request() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        client.send(request(headers={"Connection": "close"}) + request())
        assert (await client.response()).status == 200
        assert await client.rest() == b""
        assert len(fake.requests) == 1


async def test_pipelining_answers_come_in_the_order_of_the_requests() -> None:
    async with fakes("a", "b") as (a, b), run_proxy([a, b]) as proxy, await proxy.client() as client:
        sent = [request(path=f"{CHAT}?n={i}", headers={"x-session-id": f"user {i}"}) for i in range(12)]
        client.send(b"".join(sent))
        replies = [await client.response() for _ in sent]
        assert [reply.json["target"] for reply in replies] == [f"{CHAT}?n={i}" for i in range(12)]
        assert len(a.requests) + len(b.requests) == 12


async def test_pipelining_a_local_answer_waits_for_the_slow_one_before_it() -> None:
    gate = asyncio.Event()
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        fake.on(CHAT, held(gate))
        client.send(request() + request(method="GET", path="/health"))
        await fake.arrived()
        assert (await proxy.ask(method="GET", path="/health")).status == 200
        assert client.nothing_left
        gate.set()
        assert (await client.response()).json["backend"] == "a"
        assert (await client.response(method="GET")).status == 200


async def test_pipelining_more_than_the_limit_is_only_read_later() -> None:
    async with (
        fakes() as fake,
        run_proxy([fake], limits={"pipelined": 2}) as proxy,
        await proxy.client() as client,
    ):
        client.send(b"".join(request(path=f"{CHAT}?n={i}") for i in range(30)))
        for i in range(30):
            assert (await client.response()).json["target"] == f"{CHAT}?n={i}"
        assert len(fake.requests) == 30


async def test_a_request_split_at_every_byte_is_one_request() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        client.transport.set_write_buffer_limits(high=0)
        body = chat()
        for byte in request(body, chunks=[body[:10], body[10:]]):
            client.send(bytes([byte]))
        assert (await client.response()).status == 200
        assert [call.body for call in fake.requests] == [body]


@pytest.mark.parametrize("size", [0, 1, 1000, 65_535, 65_536, 1_000_000])
async def test_a_body_by_content_length_arrives_as_it_was_sent(size: int) -> None:
    async with fakes() as fake, run_proxy([fake], strict_json=False, strict_models=False) as proxy:
        body = bytes(i % 251 for i in range(size))
        reply = await proxy.ask(body, path="/tokenize", headers={"Content-Type": "application/octet-stream"})
        assert reply.json["sha256"] == hashlib.sha256(body).hexdigest()
        assert fake.requests[0].get("content-length") == str(size)


@pytest.mark.parametrize("chunk", [1, 7, 4096, 10_000])
async def test_a_chunked_body_arrives_whole_and_with_one_framing(chunk: int) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        body = chat("x" * 3000)
        pieces = [body[i : i + chunk] for i in range(0, len(body), chunk)]
        reply = await client.ask(request(chunks=pieces))
        assert reply.status == 200
        call = fake.requests[0]
        assert call.body == body
        assert len(call.all("content-length")) + len(call.all("transfer-encoding")) == 1
        assert (await client.ask(request(body))).status == 200


async def test_chunk_extensions_and_request_trailers_do_not_change_the_request() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        body = chat()
        head = request(chunks=[], headers={"x-session-id": "first"}).removesuffix(b"0\r\n\r\n")
        client.send(head + b"%x;name=value\r\n%b\r\n" % (len(body), body))
        client.send(b"0\r\nx-session-id: second\r\nX-Late: 1\r\n\r\n" + request(body))
        assert (await client.response()).status == 200
        assert (await client.response()).status == 200
        first, second = fake.requests
        assert first.body == second.body == body
        assert first.get("x-session-id") == "first"
        assert first.get("x-late") is None


async def test_a_body_of_just_the_cap_passes_and_one_byte_more_is_a_413_with_nothing_forwarded() -> None:
    async with fakes() as fake, run_proxy([fake], limits={"body_bytes": 5000}) as proxy:
        body = chat("x" * 4000)
        body += b" " * (5000 - len(body))
        assert (await proxy.ask(body)).status == 200
        for over in (request(body + b" "), request(chunks=[body, b" "])):
            async with await proxy.client() as client:
                reply = await client.ask(over)
                assert reply.status == 413
                assert reply.json["error"]["type"] == "invalid_request_error"
                assert reply.json["error"]["code"]
                assert reply.closes
        assert len(fake.requests) == 1
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_requests_total", status="4xx") == 2


async def test_a_413_is_readable_although_the_client_is_still_sending() -> None:
    async with fakes() as fake, run_proxy([fake], limits={"body_bytes": 1000}) as proxy:
        for head in (
            request(headers={"Content-Length": str(8 * MIB)}, body=None, method="PUT", path=CHAT).replace(
                b"PUT", b"POST"
            ),
            request(chunks=[]).removesuffix(b"0\r\n\r\n") + b"%x\r\n" % (8 * MIB),
        ):
            async with await proxy.client() as client:
                client.send(head)
                for _ in range(128):
                    client.send(b"x" * 65_536)
                assert (await client.response()).status == 413
        assert fake.requests == []


async def test_the_default_cap_is_64_mib() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        head = "POST {} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n"
        async with await proxy.client() as client:
            client.send(head.format(CHAT, 64 * MIB).encode())
            assert (await client.read(25)) == b"HTTP/1.1 100 Continue\r\n\r\n"
        async with await proxy.client() as client:
            client.send(head.format(CHAT, 64 * MIB + 1).encode())
            reply = await client.response()
            assert (reply.status, reply.informational) == (413, [])
        assert fake.requests == []


async def test_expect_100_continue_is_answered_here_before_any_backend_is_asked() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        body = chat()
        for count in (1, 2):
            whole = request(body, headers={"Expect": "100-continue"})
            client.send(whole[: -len(body)])
            assert (await client.read(25)) == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert len(fake.requests) == count - 1
            client.send(body)
            reply = await client.response()
            assert (reply.status, reply.informational) == (200, [])
            assert fake.requests[-1].body == body
            assert fake.requests[-1].get("expect") is None


async def test_expect_from_an_http_1_0_client_gets_no_1xx() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        reply = await proxy.ask(headers={"Expect": "100-continue"}, minor=0)
        assert reply.status == 200
        assert fake.requests[0].get("expect") is None


async def test_an_unknown_expectation_is_417() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert (await proxy.ask(headers={"Expect": "miracles"})).status == 417
        assert fake.requests == []


TARGETS = [
    f"{CHAT}?x=%2F%2f&y=a%20b+c&&=;'!~*()",
    f"{CHAT}?",
    f"{CHAT}?a?b",
    f"{CHAT}?url=http://other/@x//y/../z",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_the_target_is_forwarded_byte_for_byte(target: str) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert (await proxy.ask(path=target)).status == 200
        assert fake.requests[0].target == target


async def test_the_target_of_a_template_is_forwarded_byte_for_byte_too() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        target = "/v1/responses/resp_Ab.c-~@1?stream=true&starting_after=3&x=%2f%2F"
        assert (await proxy.ask(path=target, method="GET")).status == 200
        assert fake.requests[0].target == target
        assert fake.requests[0].method == "GET"


async def test_hop_by_hop_fields_and_those_connection_names_are_stripped_from_requests() -> None:
    hop = {
        "Connection": "X-Foo, keep-alive, X-Bar",
        "X-Foo": "1",
        "x-bar": "2",
        "Keep-Alive": "timeout=5",
        "TE": "trailers",
        "Trailer": "X-Late",
        "Proxy-Authorization": "Basic eA==",
        "Proxy-Connection": "keep-alive",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA",
    }
    async with fakes() as fake, run_proxy([fake]) as proxy:
        reply = await proxy.ask(chat(), headers={**hop, "X-Kept": "yes", "Accept": "text/event-stream"})
        assert reply.status == 200
        seen = fake.requests[0]
        assert not seen.names & {name.lower() for name in hop} - {"connection"}
        assert (seen.get("connection") or "keep-alive").lower() == "keep-alive"
        assert (seen.get("x-kept"), seen.get("accept")) == ("yes", "text/event-stream")


async def test_end_to_end_fields_travel_unchanged_repeated_ones_too() -> None:
    fields = [("X-One", "a"), ("X-One", "b"), ("Cookie", "c=1; d=2"), ("X-Latin", "caf\xe9"), ("X-Empty", "")]
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert (await proxy.ask(chat(), headers=fields)).status == 200
        seen = fake.requests[0]
        assert seen.all("x-one") == ["a", "b"]
        assert [seen.get(name) for name, _ in fields[2:]] == ["c=1; d=2", "caf\xe9", ""]


async def test_the_backend_gets_its_own_host_and_is_told_the_client_s() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert (await proxy.ask(chat(), headers={"X-Forwarded-For": "203.0.113.9"})).status == 200
        seen = fake.requests[0]
        assert seen.get("host") == fake.authority
        assert seen.get("x-forwarded-host") == "api.public"
        assert seen.get("x-forwarded-proto") == "http"
        assert seen.get("x-forwarded-for") == "203.0.113.9, 127.0.0.1"


async def test_without_a_claim_the_forwarded_address_is_the_peer_alone() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        await proxy.ask()
        assert fake.requests[0].get("x-forwarded-for") == "127.0.0.1"


async def test_each_request_gets_one_id_that_backend_and_client_both_see() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        ids = [(await proxy.ask()).get("x-request-id") for _ in range(20)]
        assert ids == fake.executed
        assert len(set(ids)) == 20
        assert all(ids)


async def test_a_sane_id_of_the_client_is_kept() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        reply = await proxy.ask(headers={"X-Request-Id": "req-42_a.b"})
        assert reply.get("x-request-id") == fake.requests[0].request_id == "req-42_a.b"


@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_base_path_is_joined_with_one_slash(slash: str) -> None:
    async with fakes() as fake:
        url = f"{fake.url}/base/deep{slash}"
        async with run_proxy([{"name": "a", "url": url}]) as proxy:
            assert (await proxy.ask(path=f"{CHAT}?q=1")).status == 200
            assert fake.requests[0].target == f"/base/deep{CHAT}?q=1"
            asked = {"/base/deep/v1/models", "/base/deep/metrics"}
            await fake.until(lambda: asked <= {probe.target for probe in fake.probes})
            assert all(probe.target.startswith("/base/deep/") for probe in fake.probes)


async def test_methods_and_paths_that_are_not_ours_touch_no_backend() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        for method, path in [
            ("POST", "/flush_cache"),
            ("GET", "/flush_cache"),
            ("POST", "/sleep"),
            ("POST", "/v1/load_lora_adapter"),
            ("POST", "/start_profile"),
            ("GET", "/metrics"),
            ("POST", "/v1/chat/completions/"),
            ("POST", "/V1/chat/completions"),
            ("POST", "/v1/../flush_cache"),
            ("POST", "/v1/%63hat/completions"),
            ("GET", "/v1/responses/..%2f..%2fflush_cache"),
            ("GET", "/v1/responses/../../flush_cache"),
        ]:
            reply = await proxy.ask(chat() if method == "POST" else None, method=method, path=path)
            assert reply.status == 404, (method, path)
            assert reply.json["error"]["type"]
        reply = await proxy.ask(method="DELETE", path=CHAT)
        assert reply.status == 405
        assert "POST" in (reply.get("allow") or "")
        assert fake.requests == []


async def test_an_extra_route_is_forwarded_unparsed() -> None:
    async with fakes() as fake, run_proxy([fake], extra_routes=["PATCH /v9/odd"]) as proxy:
        reply = await proxy.ask(b"\x00not json\xff", method="PATCH", path="/v9/odd?x=1")
        assert reply.status == 200
        assert (fake.requests[0].method, fake.requests[0].body) == ("PATCH", b"\x00not json\xff")


async def test_a_head_over_the_limit_is_431() -> None:
    async with fakes() as fake, run_proxy([fake], limits={"head_bytes": 4096}) as proxy:
        assert (await proxy.ask(headers={"X-Big": "x" * 3000})).status == 200
        assert (await proxy.ask(headers={"X-Big": "x" * 5000})).status == 431
        assert (await proxy.ask(headers=[(f"X-{i}", "x" * 50) for i in range(100)])).status == 431
        assert (await proxy.ask(path=CHAT + "?" + "x" * 5000)).status == 431
        async with await proxy.client() as client:  # and the head need not be complete for that
            client.send(b"POST / HTTP/1.1\r\nX-Endless: " + b"x" * 100_000)
            assert (await client.response()).status == 431
        assert len(fake.requests) == 1


async def test_the_reply_of_a_request_s_json_is_valid_for_each_local_route() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy, await proxy.client() as client:
        assert (await client.ask(request(method="GET", path="/health"), method="GET")).status == 200
        listing = await client.ask(request(method="GET", path="/v1/models"), method="GET")
        assert [row["id"] for row in json.loads(listing.body)["data"]] == ["m"]
        assert fake.requests == []


async def test_a_backend_that_is_given_by_name_is_reached() -> None:
    async with fakes() as fake:
        backend = FakeBackend.settings(fake) | {"url": f"http://localhost:{fake.port}"}
        async with run_proxy([backend]) as proxy:
            assert (await proxy.ask()).status == 200
            assert fake.requests[0].get("host") == f"localhost:{fake.port}"


async def test_a_client_that_leaves_in_the_middle_of_its_request_reaches_no_backend() -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        whole = request(chat("x" * 500))
        for cut in (10, 60, len(whole) - 300, len(whole) - 1):
            client = await RawClient.connect(proxy.port)
            client.send(whole[:cut])
            client.transport.close()
            await client.ended.wait()
        assert (await proxy.ask()).status == 200
        assert len(fake.requests) == 1
