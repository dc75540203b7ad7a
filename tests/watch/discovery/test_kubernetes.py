"""Discovery in Kubernetes, against an API server of our own that lists and watches as the real one does."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from stickyroute.settings import DiscoverySettings
from stickyroute.watch.discovery import kubernetes, places
from stickyroute.watch.discovery.kubernetes import KubernetesSource
from tests.support.fake_kubernetes import PODS, SLICES, endpoint, endpoint_slice, fake_kubernetes, pod
from tests.watch.discovery.listener import running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.touch()
    return path


def of_pods(kubeconfig: Path, **entry: object) -> KubernetesSource:
    return KubernetesSource(
        DiscoverySettings(kind="kubernetes", selector="app=vllm", kubeconfig=kubeconfig, **entry)
    )


def of_service(kubeconfig: Path, **entry: object) -> KubernetesSource:
    return KubernetesSource(
        DiscoverySettings(kind="kubernetes", service="vllm", kubeconfig=kubeconfig, **entry)
    )


async def test_ready_pods_with_the_label_come_and_go_by_their_names(kubeconfig: Path) -> None:
    async with fake_kubernetes(kubeconfig) as api:
        api.put(PODS, pod("vllm-0", "10.0.0.1"))
        api.put(PODS, pod("vllm-1", "10.0.0.2", ready=False))
        api.put(PODS, pod("vllm-2", None, phase="Pending"))
        api.put(PODS, pod("other", "10.0.0.9", labels={"app": "web"}))
        api.put(PODS, pod("elsewhere", "10.0.0.8"), namespace="kube-system")
        async with running(of_pods(kubeconfig)) as heard:
            await heard.tells("vllm-0=10.0.0.1:8000")
            api.put(PODS, pod("vllm-1", "10.0.0.2"))
            await heard.tells("vllm-0=10.0.0.1:8000", "vllm-1=10.0.0.2:8000")
            api.put(PODS, pod("vllm-0", "10.0.0.1", ending=True, ready=False))
            await heard.tells("vllm-0=10.0.0.1:8000 draining", "vllm-1=10.0.0.2:8000")
            api.delete(PODS, "vllm-0")
            await heard.tells("vllm-1=10.0.0.2:8000")
            api.put(PODS, pod("vllm-0", "10.0.0.5"))
            await heard.tells("vllm-0=10.0.0.5:8000", "vllm-1=10.0.0.2:8000")
        assert api.lists == 1
        assert api.tokens == {"Bearer a-token"}


async def test_endpoints_of_a_service_over_several_slices(kubeconfig: Path) -> None:
    async with fake_kubernetes(kubeconfig) as api:
        api.put(
            SLICES,
            endpoint_slice(
                "vllm-a",
                endpoint("vllm-0", "10.0.0.1"),
                endpoint("vllm-1", "10.0.0.2", ready=False),
                endpoint("vllm-2", "10.0.0.3", ready=False, serving=True, terminating=True),
                endpoint("vllm-3", "10.0.0.4", ready=False, serving=False, terminating=True),
                endpoint(None, "10.0.0.5", ready=None),
            ),
        )
        api.put(SLICES, endpoint_slice("other-a", endpoint("other-0", "10.0.1.1"), service="other"))
        async with running(of_service(kubeconfig)) as heard:
            first = ("10.0.0.5:8000=10.0.0.5:8000", "vllm-0=10.0.0.1:8000", "vllm-2=10.0.0.3:8000 draining")
            await heard.tells(*first)
            # An endpoint that is in two slices for a moment is one backend.
            api.put(
                SLICES,
                endpoint_slice("vllm-b", endpoint("vllm-0", "10.0.0.1"), endpoint("vllm-9", "fd00::9")),
            )
            await heard.tells(*first, "vllm-9=fd00::9:8000")
            api.delete(SLICES, "vllm-a")
            await heard.tells("vllm-0=10.0.0.1:8000", "vllm-9=fd00::9:8000")


async def test_the_port_by_number_by_name_or_the_first(kubeconfig: Path) -> None:
    ports = (("metrics", 9400), ("http", 8000))
    async with fake_kubernetes(kubeconfig) as api:
        api.put(PODS, pod("vllm-0", "10.0.0.1", ports=ports))
        api.put(SLICES, endpoint_slice("vllm-a", endpoint("vllm-0", "10.0.0.1"), ports=ports))
        for entry, port in (({}, 9400), ({"port": "http"}, 8000), ({"port": 7000}, 7000)):
            async with running(of_pods(kubeconfig, **entry)) as heard:
                await heard.tells(f"vllm-0=10.0.0.1:{port}")
            async with running(of_service(kubeconfig, **entry)) as heard:
                await heard.tells(f"vllm-0=10.0.0.1:{port}")
        async with running(of_pods(kubeconfig, port="grpc")) as heard:
            await heard.tells()


async def test_a_long_list_comes_in_parts_and_what_does_not_matter_is_not_told(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "LIST_ITEMS", 3)
    async with fake_kubernetes(kubeconfig) as api:
        for i in range(8):
            api.put(PODS, pod(f"vllm-{i}", f"10.0.0.{i}"))
        async with running(of_pods(kubeconfig)) as heard:
            await heard.until(lambda: api.watches == 1 and heard.answers)
            assert heard.last == [f"vllm-{i}=10.0.0.{i}:8000" for i in range(8)]
            assert api.lists == 3
            told = len(heard.answers)
            for i in range(5):
                api.put(PODS, pod("vllm-0", "10.0.0.0", labels={"seen": str(i)}))
            api.put(PODS, pod("vllm-0", "10.0.0.99"))
            await heard.until(lambda: heard.last[0] == "vllm-0=10.0.0.99:8000")
            assert len(heard.answers) <= told + 2, "the one, and that the watch had begun"


async def test_a_watch_goes_on_from_the_last_version_after_it_broke(kubeconfig: Path) -> None:
    async with fake_kubernetes(kubeconfig) as api:
        api.put(PODS, pod("vllm-0", "10.0.0.1"))
        async with running(of_pods(kubeconfig)) as heard:
            await heard.until(lambda: api.watches == 1 and heard.answers)
            api.bookmark(PODS)
            api.put(PODS, pod("vllm-1", "10.0.0.2"))
            await heard.tells("vllm-0=10.0.0.1:8000", "vllm-1=10.0.0.2:8000")
            api.cut()
            api.put(PODS, pod("vllm-2", "10.0.0.3"))
            await heard.tells("vllm-0=10.0.0.1:8000", "vllm-1=10.0.0.2:8000", "vllm-2=10.0.0.3:8000")
            assert (api.lists, api.watches) == (1, 2)
            assert all(heard.answers), "nobody was ever forgotten"


@pytest.mark.parametrize("how", ["answer", "event"])
async def test_a_version_that_is_gone_is_listed_anew_and_nobody_is_lost(kubeconfig: Path, how: str) -> None:
    async with fake_kubernetes(kubeconfig) as api:
        api.put(PODS, pod("vllm-0", "10.0.0.1"))
        api.put(PODS, pod("vllm-1", "10.0.0.2"))
        async with running(of_pods(kubeconfig)) as heard:
            await heard.until(lambda: api.watches == 1 and len(heard.answers) == 2)
            api.delete(PODS, "vllm-1")
            await heard.tells("vllm-0=10.0.0.1:8000")
            if how == "event":
                api.expire(PODS)
            else:
                api.forget()
                api.cut()
            api.put(PODS, pod("vllm-2", "10.0.0.3"))
            await heard.tells("vllm-0=10.0.0.1:8000", "vllm-2=10.0.0.3:8000")
            assert api.lists == 2
            assert all(heard.answers)


async def test_an_api_that_refuses_is_told_with_what_to_do(kubeconfig: Path) -> None:
    async with fake_kubernetes(kubeconfig) as api:
        api.refusal = 403
        api.put(PODS, pod("vllm-0", "10.0.0.1"))
        async with running(of_pods(kubeconfig, namespace="default")) as heard:
            await heard.until(lambda: heard.failures)
            assert heard.failures[0].startswith(
                "the API answered 403: the service account may not list and watch pods in default"
            )
            api.refusal = None
            await heard.tells("vllm-0=10.0.0.1:8000")


async def test_an_api_that_is_away_is_asked_until_it_is_back(kubeconfig: Path) -> None:
    async with fake_kubernetes(kubeconfig):
        pass
    async with running(of_pods(kubeconfig)) as heard:
        await heard.until(lambda: heard.failures)
        assert heard.failures[0].startswith("the API cannot be reached: ")
        assert not heard.answers


async def test_a_pod_s_own_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("pod-token")
    authority.cert_pem.write_to_path(ca)
    incluster = "kubernetes_asyncio.config.incluster_config"  # by name: it takes half a second to load
    monkeypatch.setattr(f"{incluster}.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(f"{incluster}.SERVICE_CERT_FILENAME", str(ca))
    namespace = tmp_path / "namespace"
    namespace.write_text("llm\n")
    monkeypatch.setattr(kubernetes, "_NAMESPACE_FILE", namespace)
    async with fake_kubernetes(tmp_path / "unused", tls) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        api.put(PODS, pod("vllm-0", "10.0.0.1"), namespace="llm")
        async with running(
            KubernetesSource(DiscoverySettings(kind="kubernetes", selector="app=vllm"))
        ) as heard:
            await heard.tells("vllm-0=10.0.0.1:8000")
        assert api.tokens == {"Bearer pod-token"}


async def test_without_any_way_to_an_api_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    broken = tmp_path / "config"
    broken.write_text("{}")
    async with running(of_pods(broken)) as heard:
        await heard.until(lambda: heard.failures)
        assert "no way to the Kubernetes API" in heard.failures[0]


def test_the_package_is_asked_for_by_name(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "find_spec", lambda name: None)
    with pytest.raises(kubernetes.ConfigError, match=r"pip install 'stickyroute\[kubernetes\]'"):
        of_pods(kubeconfig)
