"""A Kubernetes API server for tests: lists and watches of pods and endpoint slices, with versions as the real one.

Owns the objects, their history and the ways to fail: a version that is too old is 410 Gone, as an answer or as an
event of a running watch; watches can be cut, and questions refused. Label selectors are `key=value` with commas.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

PODS = "pods"
SLICES = "endpointslices"


class FakeKubernetes:
    """`put` and `delete` objects; each is one event for whoever watches."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 100
        self.refusal: int | None = None
        self.lists = 0
        self.watches = 0
        self.tokens: set[str] = set()
        self.port = 0
        self._objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._history: list[tuple[int, str, str, dict[str, Any]]] = []
        self._changed = asyncio.Event()
        self._watching: set[web.StreamResponse] = set()

    # What a test does.

    def put(self, kind: str, item: dict[str, Any], namespace: str = "default") -> None:
        """Add or change an object."""
        key = (kind, namespace, item["metadata"]["name"])
        word = "MODIFIED" if key in self._objects else "ADDED"
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = item
        self._tell(word, kind, namespace, item)

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        item = self._objects.pop((kind, namespace, name))
        self.version += 1
        self._tell(
            "DELETED",
            kind,
            namespace,
            {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}},
        )

    def bookmark(self, kind: str, namespace: str = "default") -> None:
        """A version without a change."""
        self.version += 1
        self._tell("BOOKMARK", kind, namespace, {"metadata": {"resourceVersion": str(self.version)}})

    def forget(self) -> None:
        """Keep no history: whoever comes with an older version is told 410."""
        self.version += 1
        self.oldest = self.version
        self._history.clear()

    def expire(self, kind: str, namespace: str = "default") -> None:
        """Tell running watches that they are too old, and keep no history."""
        self.forget()
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        self._tell("ERROR", kind, namespace, gone)

    def cut(self) -> None:
        """Break every watch off in the middle."""
        for response in tuple(self._watching):
            assert response._payload_writer is not None  # no public way to be so rude
            transport = response._payload_writer.transport
            if transport is not None:
                transport.abort()

    # What the server does.

    def _tell(self, word: str, kind: str, namespace: str, item: dict[str, Any]) -> None:
        self._history.append((self.version, kind, namespace, {"type": word, "object": item}))
        self._changed.set()
        self._changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers.get("Authorization", ""))
        kind, namespace = request.match_info["kind"], request.match_info["namespace"]
        if self.refusal is not None:
            return web.json_response({"kind": "Status", "code": self.refusal}, status=self.refusal)
        labels = [pair.partition("=") for pair in request.query.get("labelSelector", "").split(",") if pair]
        wanted = {key: value for key, _, value in labels}
        if request.query.get("watch", "").lower() == "true":
            return await self._watch(request, kind, namespace, wanted)
        self.lists += 1
        items = [
            item
            for (k, n, _), item in self._objects.items()
            if (k, n) == (kind, namespace) and _fits(item, wanted)
        ]
        first, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", len(items) + 1))
        metadata = {"resourceVersion": str(self.version)}
        if len(items) > first + limit:
            metadata["continue"] = str(first + limit)
        return web.json_response(
            {"kind": "List", "metadata": metadata, "items": items[first : first + limit]}
        )

    async def _watch(
        self, request: web.Request, kind: str, namespace: str, wanted: dict[str, str]
    ) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.oldest:
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        self.watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        self._watching.add(response)
        try:
            while True:
                changed = self._changed
                for version, k, n, event in tuple(self._history):
                    if version > since and (k, n) == (kind, namespace):
                        since = version
                        if event["type"] in ("ERROR", "BOOKMARK") or _fits(event["object"], wanted):
                            await response.write(json.dumps(event).encode() + b"\n")
                        if event["type"] == "ERROR":
                            return response
                await changed.wait()
        except ConnectionError:
            return response
        finally:
            self._watching.discard(response)


def _fits(item: dict[str, Any], wanted: dict[str, str]) -> bool:
    return wanted.items() <= item["metadata"].get("labels", {}).items()


@asynccontextmanager
async def fake_kubernetes(
    kubeconfig: Path, tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeKubernetes]:
    """A running server; `kubeconfig` is written so that clients find it (without TLS)."""
    server = FakeKubernetes()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/{kind:pods}", server.handle)
    app.router.add_get(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/{kind:endpointslices}", server.handle
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.port = runner.addresses[0][1]
    _write(kubeconfig, server.port)
    try:
        yield server
    finally:
        await runner.cleanup()


def _write(kubeconfig: Path, port: int) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "test", "user": {"token": "a-token"}}],
    }
    kubeconfig.write_text(json.dumps(config), encoding="utf-8")


def pod(
    name: str,
    address: str | None = "10.0.0.1",
    *,
    ready: bool = True,
    ending: bool = False,
    phase: str = "Running",
    ports: tuple[tuple[str, int], ...] = (("http", 8000),),
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A pod, as far as anybody looks at it."""
    metadata: dict[str, Any] = {"name": name, "labels": {"app": "vllm", **(labels or {})}}
    if ending:
        metadata["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"containers": [{"ports": [{"name": n, "containerPort": p} for n, p in ports]}]},
        "status": {
            "phase": phase,
            **({"podIP": address} if address is not None else {}),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def endpoint(
    name: str | None,
    address: str,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> dict[str, Any]:
    """One endpoint of a slice."""
    told = {"ready": ready, "serving": serving, "terminating": terminating}
    return {
        "addresses": [address],
        "conditions": {key: value for key, value in told.items() if value is not None},
        **({"targetRef": {"kind": "Pod", "name": name}} if name is not None else {}),
    }


def endpoint_slice(
    name: str,
    *endpoints: dict[str, Any],
    service: str = "vllm",
    ports: tuple[tuple[str, int], ...] = (("http", 8000),),
) -> dict[str, Any]:
    """A slice of a Service."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": n, "port": p} for n, p in ports],
        "endpoints": list(endpoints),
    }
