"""What the proxy itself says when nobody can answer: no backend's name on it, whole sentences, when to come
back."""

import re

import pytest

from tests.support.fake_backend import fakes
from tests.support.raw_client import RawClient, chat, request
from tests.support.run_proxy import run_proxy

MODELS = "/v1/models"


async def test_a_503_of_our_own_names_nobody_that_refused() -> None:
    async with fakes("a", "b") as both, run_proxy(both, response_headers=True) as proxy:
        for backend in both:
            await backend.refuse()
            backend.drop_idle()
        for _ in range(2):  # while it is found out, and once it is known
            answer = await proxy.ask(headers={"x-session-id": "s"})
            assert answer.status == 503
            assert answer.get("x-stickyroute-backend") is None
            assert answer.get("x-stickyroute-reason") is None
            assert answer.json["error"]["message"] == "No backend can take this request now."
        samples = await proxy.metrics()
        assert samples.sum("stickyroute_requests_total", status="5xx", backend="none", reason="none") == 2


async def test_the_models_of_a_fleet_that_is_down_are_a_503_and_not_an_empty_list() -> None:
    async with fakes("a", "b") as both, run_proxy(both) as proxy:
        assert len((await proxy.ask(method="GET", path=MODELS)).json["data"]) == 1
        for backend in both:
            await backend.refuse()
            backend.drop_idle()
        await proxy.ask()
        for path in (MODELS, f"{MODELS}/m", "/health"):
            answer = await proxy.ask(method="GET", path=path)
            assert answer.status == 503
            assert int(answer.get("retry-after") or 0) >= 1
            assert answer.json["error"]["message"] == "No backend is reachable."


async def test_a_model_nobody_has_is_named() -> None:
    async with fakes("a") as a, run_proxy([a]) as proxy:
        for answer in (
            await proxy.ask(method="GET", path=f"{MODELS}/nope"),
            await proxy.ask(chat(model="nope")),
        ):
            assert answer.status == 404
            assert answer.json["error"]["message"] == "The model `nope` does not exist."
            assert answer.json["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "wire",
    [
        request(chat(model="nope")),
        request(b"{"),
        request(method="GET", path="/nowhere"),
        request(method="GET"),
        request(host=None),
        request(headers={"Expect": "magic"}),
        request(headers={"Transfer-Encoding": "gzip"}),
        request(headers={"x-long": "y" * 100_000}),
        b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    ],
)
async def test_every_message_is_a_sentence(wire: bytes) -> None:
    async with fakes("a") as a, run_proxy([a]) as proxy:
        async with await RawClient.connect(proxy.port) as client:
            answer = await client.ask(wire)
        assert 400 <= answer.status < 600
        assert re.fullmatch(r"[A-Z`].*[.]", answer.json["error"]["message"])
