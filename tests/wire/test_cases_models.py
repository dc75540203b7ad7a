"""Group H of what broke elsewhere, the lists of models and paths in URLs (B95, B96)."""

from __future__ import annotations

import json

import pytest

from tests.support.fake_backend import fakes, silent
from tests.support.raw_client import CHAT
from tests.support.run_proxy import run_proxy
from tests.wire.inside import until


async def test_b95_models_are_listed_once_with_their_fields_whoever_is_slow_or_away() -> None:
    async with fakes("a", "b", "slow") as (a, b, slow):
        a.models = [{"id": "m1", "object": "model", "max_model_len": 8192, "permission": [{"id": "p"}]}]
        b.models = [{"id": "m1", "object": "model"}, {"id": "m2", "object": "model"}]
        slow.on("/v1/models", silent())
        async with run_proxy([a, b]) as proxy:
            # By a reload: a start would wait a moment for it.
            config = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
            entries = [one.settings() for one in (a, b, slow)]
            assert (await proxy.put_config(json.dumps({**config, "backends": entries}))).status == 200
            await until(lambda: slow.probes)
            reply = await proxy.ask(method="GET", path="/v1/models")
            assert reply.status == 200
            rows = {row["id"]: row for row in reply.json["data"]}
            assert [row["id"] for row in reply.json["data"]] == ["m1", "m2"]
            assert rows["m1"]["max_model_len"] == 8192
            assert rows["m1"]["permission"] == [{"id": "p"}]
            await b.die()
            reply = await proxy.ask(method="GET", path="/v1/models")
            assert (reply.status, reply.json["data"][0]["id"]) == (200, "m1")


@pytest.mark.parametrize("slash", ["", "/"])
async def test_b96_a_path_in_a_backend_s_url_is_put_before_everything_that_is_asked_there(slash: str) -> None:
    async with fakes() as fake:
        quick = {"probe": {"interval_s": 0.05}}
        async with run_proxy([{"name": "a", "url": f"{fake.url}/base{slash}"}], **quick) as proxy:
            assert (await proxy.ask()).status == 200
            assert fake.requests[0].target == f"/base{CHAT}"
            asked = {"/base/v1/models", "/base/metrics", "/base/health"}
            await fake.until(lambda: asked <= {probe.target for probe in fake.probes})
