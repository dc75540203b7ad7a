"""Where a running proxy's configuration comes from: its file, the admin port, flags, certificates."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path

import pytest
import trustme

from tests.support.fake_backend import fakes
from tests.support.raw_client import request
from tests.support.run_proxy import RunningProxy, run_configured, run_proxy
from tests.wire.configured import config, text
from tests.wire.inside import until


async def test_a_file_is_followed_through_mistakes_and_back(tmp_path: Path) -> None:
    """B88: good, broken, good with one more; broken again, and the same good as before."""
    path = tmp_path / "stickyroute.yaml"
    async with fakes("a", "b") as (a, b):
        path.write_text(text(a))
        async with run_configured(path) as proxy:
            live = proxy.app.live
            path.write_text("backends: [")
            await until(lambda: live.refused == 1)
            assert (await proxy.ask()).status == 200
            path.write_text(text(a, b))
            await until(lambda: live.applied == 1)
            assert [one.name for one in proxy.app.fleet.backends] == ["a", "b"]
            path.write_text("backends: [")
            await until(lambda: live.refused == 2)
            assert (await config(proxy))["last_error"].startswith(f"{path}, line 1")
            path.write_text(text(a, b))
            await until(lambda: live.applied == 2)
            told = await config(proxy)
            assert (told["last_error"], told["source"]) == (None, str(path))
            path.unlink()
            await until(lambda: live.refused == 3)
            assert (await proxy.ask()).status == 200


async def test_editors_that_rename_and_symlinks_that_turn_are_changes(tmp_path: Path) -> None:
    """A Kubernetes ConfigMap is a link to a folder that is a link to a dated folder, which is replaced."""
    async with fakes("a", "b") as (a, b):
        for number, backends in enumerate([(a,), (a, b), (b,)]):
            folder = tmp_path / f"..{number}"
            folder.mkdir()
            (folder / "stickyroute.yaml").write_text(text(*backends))
        (tmp_path / "..data").symlink_to("..0")
        path = tmp_path / "stickyroute.yaml"
        path.symlink_to("..data/stickyroute.yaml")
        async with run_configured(path) as proxy:
            live = proxy.app.live
            (tmp_path / "..data_tmp").symlink_to("..1")
            os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
            await until(lambda: live.applied == 1)
            assert [one.name for one in proxy.app.fleet.backends] == ["a", "b"]
            (tmp_path / "edited").write_text(text(b))
            os.replace(tmp_path / "edited", path)
            await until(lambda: live.applied == 2)
            assert [one.name for one in proxy.app.fleet.backends] == ["b"]


async def test_a_reload_can_be_asked_for_and_the_file_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "stickyroute.yaml"
    async with fakes("a", "b") as (a, b):
        path.write_text(text(a, reload_on_change=False))
        async with run_configured(path) as proxy:
            path.write_text(text(a, b, reload_on_change=False))
            proxy.app.reloader.soon()
            await until(lambda: proxy.app.live.applied == 1)
            assert [one.name for one in proxy.app.fleet.backends] == ["a", "b"]


async def test_without_a_file_there_is_nothing_to_read_again(caplog: pytest.LogCaptureFixture) -> None:
    async with fakes() as fake, run_proxy([fake]) as proxy:
        assert not await proxy.app.live.reload("SIGHUP")
        assert "SIGHUP: there is no configuration file to read; use PUT /config" in caplog.text
        assert (await config(proxy))["last_error"] is None


async def test_the_effective_configuration_shows_no_secret_and_may_be_sent_back() -> None:
    async with (
        fakes() as fake,
        run_proxy(
            [fake.settings(api_key="engine-key")], api_keys=[{"name": "team", "key": "sesame"}]
        ) as proxy,
    ):
        shown = (await proxy.admin("/config")).body.decode()
        assert "engine-key" not in shown
        assert "sesame" not in shown
        shown = shown.replace("policy: sticky", "policy: ring")
        answer = (await proxy.put_config(shown)).json
        assert [change["path"] for change in answer["changes"]] == ["policy"]
        assert (await proxy.ask(headers={"x-api-key": "sesame"})).status == 200
        assert fake.requests[0].get("authorization") == "Bearer engine-key"
        as_json = (await proxy.admin("/config?format=json")).json
        assert (as_json["policy"], as_json["backends"][0]["api_key"]) == ("ring", "**********")
        assert (await proxy.put_config(json.dumps(as_json, indent="\t"))).status == 200
        unknown = await proxy.put_config("backends: [{name: x, url: 'http://x', api_key: '**********'}]")
        assert "backends[0].api_key: is a mask" in unknown.json["error"]["message"]


async def test_flags_overrule_a_body_and_the_answer_says_so(tmp_path: Path) -> None:
    path = tmp_path / "stickyroute.yaml"
    async with fakes() as fake:
        path.write_text(text(fake))
        async with run_configured(path) as proxy:
            answer = (await proxy.put_config(text(fake, listen="127.0.0.1:9", policy="ring"))).json
            assert (answer["overruled"], answer["needs_restart"]) == (["listen"], [])


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_change_needs_the_token_where_one_is_set(token: str | None) -> None:
    async with fakes() as fake, run_proxy([fake], admin_token="sesame") as proxy:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        assert (await proxy.put_config(text(fake), **headers)).status == 401
        answer = await proxy.put_config(text(fake, admin_token="**********"), Authorization="Bearer sesame")
        assert answer.status == 200
        assert proxy.app.live.generation == 2


async def test_a_renewed_certificate_is_shown_from_the_next_handshake_on(tmp_path: Path) -> None:
    authority = trustme.CA()
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)

    def issue() -> bytes:
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    async def shown(proxy: RunningProxy) -> bytes:
        async with await proxy.client(tls=client_tls) as client:
            assert (await client.ask(request())).status == 200
            found: bytes = client.transport.get_extra_info("ssl_object").getpeercert(True)
            return found

    path = tmp_path / "stickyroute.yaml"
    async with fakes() as fake:
        first = issue()
        tls = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
        path.write_text(text(fake, tls=tls))
        async with run_configured(path) as proxy:
            assert await shown(proxy) == first
            async with await proxy.client(tls=client_tls) as kept:
                second = issue()
                async with asyncio.timeout(10):
                    while await shown(proxy) != second:
                        await asyncio.sleep(0.01)
                assert (await kept.ask(request())).status == 200
            (tmp_path / "key.pem").write_text("no key")
            await until(lambda: proxy.app.live.last_error is not None)
            assert await shown(proxy) == second
            answer = (await proxy.put_config(text(fake))).json
            assert answer["needs_restart"] == ["tls"]
