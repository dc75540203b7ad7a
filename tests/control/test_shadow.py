"""The shadow policy behind the proxy: figures in /metrics, a share of the users, on and off while it runs."""

from __future__ import annotations

from tests.support.fake_backend import fakes
from tests.support.raw_client import chat
from tests.support.run_proxy import RunningProxy, run_proxy

TEXT = "Bread is baked each morning. " * 40


async def play(proxy: RunningProxy, users: int = 4, turns: int = 3) -> None:
    for turn in range(turns):
        for user in range(users):
            answer = await proxy.ask(chat(f"{user} {TEXT * (turn + 1)}", user=f"user {user}"))
            assert answer.status == 200


async def test_its_figures_stand_beside_the_live_ones() -> None:
    async with (
        fakes("a", "b", "c") as three,
        run_proxy(three, policy="ring", shadow="round_robin", shadow_share=1) as proxy,
    ):
        await play(proxy)
        samples = await proxy.metrics()
        assert not proxy.app.insight.shadow._running
    assert samples.sum("stickyroute_shadow_decisions_total") == 12
    assert samples.sum("stickyroute_shadow_decisions_total", policy="round_robin") == 12
    live = samples.sum("stickyroute_shadow_live_expected_cached_tokens_total")
    assert live > samples.sum("stickyroute_shadow_expected_cached_tokens_total") >= 0
    assert samples.sum("stickyroute_shadow_imbalance") < samples.sum("stickyroute_shadow_live_imbalance")


async def test_off_has_no_figures() -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        await play(proxy, users=1)
        assert proxy.app.insight.shadow.figures() is None
        assert "stickyroute_shadow" not in (await proxy.admin("/metrics")).body.decode()


async def test_a_share_of_the_users() -> None:
    async with fakes("a", "b") as two, run_proxy(two, shadow="ring", shadow_share=0.5) as proxy:
        await play(proxy, users=40, turns=2)
        figures = proxy.app.insight.shadow.figures()
    assert figures is not None
    assert 20 <= figures.decisions <= 60
    assert figures.decisions % 2 == 0  # whole users: both of their requests or none


async def test_it_comes_and_goes_with_the_settings() -> None:
    async with fakes("a") as fake, run_proxy([fake]) as proxy:
        insight = proxy.app.insight
        insight.retune(proxy.app.settings.model_copy(update={"shadow": "ring", "shadow_share": 1.0}))
        await play(proxy, users=1, turns=2)
        figures = insight.shadow.figures()
        assert figures is not None
        assert (figures.policy, figures.decisions) == ("ring", 2)
        insight.retune(proxy.app.settings)
        assert insight.shadow.figures() is None
