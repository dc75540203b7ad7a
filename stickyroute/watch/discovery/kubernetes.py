"""Backends from Kubernetes: the ready endpoints of a Service, or the ready pods with a label.

Owns list and watch: what is there is listed once, then changes come from that version on; a watch that ends is
taken up where it was, and after a 410 Gone everything is listed again, while what was known stays. Objects are
read as plain JSON, only the few fields that matter. kubernetes-asyncio brings the connection and the credentials.

A pod that is being ended is draining: it takes nothing new and finishes what it has.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from stickyroute.clock import monotonic
from stickyroute.errors import ConfigError
from stickyroute.settings import DiscoverySettings
from stickyroute.watch.discovery.places import Listener, Place, backoff_s

__all__ = ["KubernetesSource"]

WATCH_S = 300
"""Seconds after which the server ends a watch, which costs one request; up to a tenth longer by chance."""
GRACE_S = 15
"""A watch that the server should have ended so long ago is on a dead connection."""
SHORT_S = 1.0
LIST_S = 30
LIST_ITEMS = 100
"""Objects in one answer. Pods take 10 to 50 KB each, and what is read at once holds up streams."""
OBJECT_BYTES = 16 * 1024 * 1024
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_Object = Mapping[str, Any]


class _Gone(Exception):
    """The version that a watch began from is no longer kept: list again."""


class _Refused(Exception):
    """The API said no; the text says what to do."""


class KubernetesSource:
    """Endpoints of `entry.service`, or pods of `entry.selector`. Raises ConfigError without kubernetes-asyncio."""

    def __init__(self, entry: DiscoverySettings) -> None:
        if find_spec("kubernetes_asyncio") is None:
            raise ConfigError(
                "discovery: kind kubernetes needs kubernetes-asyncio: pip install 'stickyroute[kubernetes]'"
            )
        self._entry = entry
        # Of each object only what matters: pods are large, and change all the time in ways that do not.
        self._found: dict[str, tuple[Place, ...]] = {}
        self._version = ""
        self._failures = 0

    def again(self) -> None:
        """A watch is told of every change at once."""

    async def run(self, listener: Listener) -> None:
        # Half a second of imports, which streams need not wait for.
        await asyncio.to_thread(import_module, "kubernetes_asyncio.client")
        while True:
            try:
                async with await self._connect() as api:
                    while True:
                        began_s = monotonic()
                        await self._follow(api, listener)
                        # A server that ends every watch at once is not to be asked in a tight loop.
                        await asyncio.sleep(0.0 if monotonic() - began_s > SHORT_S else backoff_s(1))
            except _Gone:
                self._version = ""
                self._failures += 1
                if self._failures == 1:
                    continue
            except _Refused as error:
                self._version = ""
                self._failures += 1
                listener.failed(str(error))
            except aiohttp.ClientPayloadError:
                self._failures += 1
                listener.failed("the watch broke off")
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self._failures += 1
                listener.failed(f"the API cannot be reached: {type(error).__name__} {error}".rstrip())
            await asyncio.sleep(backoff_s(self._failures))

    async def _follow(self, api: Any, listener: Listener) -> None:
        """List, where there is no version to begin from, then watch until the server ends that."""
        if not self._version:
            await self._list(api)
            listener.found(self._places())
        async for event in self._watch(api):
            self._failures = 0
            if event is None or self._take(event):
                listener.found(self._places())

    async def _connect(self) -> Any:
        from kubernetes_asyncio import client, config

        configuration = client.Configuration()
        try:
            if self._entry.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                own: Any = config.load_incluster_config  # of which its package tells no types
                own(client_configuration=configuration)
            else:
                file = self._entry.kubeconfig
                await config.load_kube_config(
                    config_file=None if file is None else str(file), client_configuration=configuration
                )
        except config.ConfigException as error:
            raise OSError(f"no way to the Kubernetes API: {error}") from None
        configuration.retries = None
        return client.ApiClient(configuration)

    # The two questions.

    async def _list(self, api: Any) -> None:
        found: dict[str, tuple[Place, ...]] = {}
        options: dict[str, Any] = {"limit": LIST_ITEMS, "_request_timeout": LIST_S}
        while True:
            reply = await self._ask(api, **options)
            async with reply:
                answer = orjson.loads(await reply.read())
            found.update((_name(item), self._read(item)) for item in answer.get("items") or ())
            metadata = answer.get("metadata") or {}
            if not metadata.get("continue"):
                break
            options["_continue"] = metadata["continue"]
        self._found, self._version = found, metadata.get("resourceVersion") or ""

    async def _watch(self, api: Any) -> AsyncIterator[_Object | None]:
        """The events, after None for a watch that has begun."""
        seconds = WATCH_S + random.randrange(WATCH_S // 10)
        reply = await self._ask(
            api,
            watch=True,
            resource_version=self._version,
            allow_watch_bookmarks=True,
            timeout_seconds=seconds,
            _request_timeout=seconds + GRACE_S,
        )
        async with reply:
            yield None
            rest = b""
            async for piece in reply.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield orjson.loads(line)
                if len(rest) > OBJECT_BYTES:
                    raise ValueError("an object is too large")

    async def _ask(self, api: Any, **options: Any) -> aiohttp.ClientResponse:
        from kubernetes_asyncio import client

        entry, namespace = self._entry, self._namespace()
        # Typed as what they make of an answer, which is not asked for here.
        ask: Any = client.CoreV1Api(api).list_namespaced_pod
        selector = entry.selector
        if entry.service is not None:
            ask = client.DiscoveryV1Api(api).list_namespaced_endpoint_slice
            selector = f"kubernetes.io/service-name={entry.service}"
        try:
            reply: aiohttp.ClientResponse = await ask(
                namespace, label_selector=selector, _preload_content=False, **options
            )
        except client.ApiException as error:
            _raise_for(error.status or 0, str(error.reason), entry, namespace)
            raise _Refused(f"the API answered {error.status} {error.reason}") from None
        if reply.status != 200:
            status, reason = reply.status, reply.reason or ""
            reply.release()
            _raise_for(status, reason, entry, namespace)
        return reply

    def _namespace(self) -> str:
        if self._entry.namespace is not None:
            return self._entry.namespace
        try:
            return _NAMESPACE_FILE.read_text(encoding="ascii").strip() or "default"
        except OSError:
            return "default"

    # What the answers mean.

    def _take(self, event: _Object) -> bool:
        """Apply one event of a watch; whether it changed anything. Raises _Gone."""
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            if item.get("code") == 410:
                raise _Gone
            raise _Refused(
                f"the watch ended: {item.get('message') or item.get('reason') or item.get('code')}"
            )
        self._version = (item.get("metadata") or {}).get("resourceVersion") or self._version
        before = self._found.get(_name(item), ())
        if kind == "DELETED":
            self._found.pop(_name(item), None)
            return bool(before)
        if kind not in ("ADDED", "MODIFIED"):
            return False
        now = self._found[_name(item)] = self._read(item)
        return now != before

    def _read(self, item: _Object) -> tuple[Place, ...]:
        return tuple((_of_slice if self._entry.service is not None else _of_pod)(item, self._entry.port))

    def _places(self) -> list[Place]:
        found: dict[str, Place] = {}
        for place in chain.from_iterable(self._found.values()):
            # Twice for a moment, when an endpoint moves from one slice to another: the one in service counts.
            if place.name not in found or found[place.name].draining:
                found[place.name] = place
        return [found[name] for name in sorted(found)]


def _raise_for(status: int, reason: str, entry: DiscoverySettings, namespace: str) -> None:
    if status == 410:
        raise _Gone
    what = "endpointslices (discovery.k8s.io)" if entry.service is not None else "pods"
    if status in (401, 403):
        raise _Refused(
            f"the API answered {status}: the service account may not list and watch {what} in {namespace}; "
            "deploy/kubernetes.yaml has the role it needs"
        )
    raise _Refused(f"the API answered {status} {reason} for {what} in {namespace}")


def _name(item: _Object) -> str:
    return str((item.get("metadata") or {}).get("name") or "")


def _of_slice(one: _Object, port: int | str | None) -> Iterable[Place]:
    number = _port([(row.get("name"), row.get("port")) for row in one.get("ports") or ()], port)
    for endpoint in one.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        addresses = endpoint.get("addresses") or ()
        draining = bool(conditions.get("terminating"))
        # A missing word means yes, says the API.
        serves = conditions.get("serving") if draining else conditions.get("ready")
        if number is None or not addresses or serves is False:
            continue
        named = (endpoint.get("targetRef") or {}).get("name") or endpoint.get("hostname")
        yield Place(named or _authority(addresses[0], number), addresses[0], number, draining)


def _of_pod(pod: _Object, port: int | str | None) -> Iterable[Place]:
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    address = status.get("podIP")
    containers = (pod.get("spec") or {}).get("containers") or ()
    ports = [(row.get("name"), row.get("containerPort")) for c in containers for row in c.get("ports") or ()]
    number = _port(ports, port)
    draining = metadata.get("deletionTimestamp") is not None
    ready = any(
        row.get("type") == "Ready" and row.get("status") == "True" for row in status.get("conditions") or ()
    )
    if address and number is not None and status.get("phase") == "Running" and (ready or draining):
        yield Place(_name(pod), address, number, draining)


def _port(ports: Iterable[tuple[Any, Any]], wanted: int | str | None) -> int | None:
    """The wanted port by number or name; with none wanted the first there is."""
    if isinstance(wanted, int):
        return wanted
    for name, number in ports:
        if number is not None and wanted in (None, name):
            return int(number)
    return None


def _authority(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
