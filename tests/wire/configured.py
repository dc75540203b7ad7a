"""Configurations as text, and what a running proxy says of its own."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.fake_backend import FakeBackend
from tests.support.raw_client import request
from tests.support.run_proxy import INDEX, RunningProxy


def text(*backends: FakeBackend | dict[str, Any], **settings: Any) -> str:
    entries = [one.settings() if isinstance(one, FakeBackend) else one for one in backends]
    ports = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    settings["sticky"] = {**INDEX, **settings.get("sticky", {})}
    return yaml.safe_dump({**ports, "backends": entries, "response_headers": True, **settings})


async def homes(proxy: RunningProxy, count: int = 40) -> dict[str, str]:
    """The backend that answers each of so many sessions."""
    found = {}
    async with await proxy.client() as client:
        for i in range(count):
            reply = await client.ask(request(headers={"x-session-id": f"s{i}"}))
            assert reply.status == 200
            found[f"s{i}"] = reply.backend
    return found


async def config(proxy: RunningProxy) -> dict[str, Any]:
    told: dict[str, Any] = (await proxy.admin("/fleet")).json["config"]
    return told
