"""`stickyroute explain`: where a request would go, by a running proxy's word or by a configuration alone.

Owns how the request is read from a file and flags, and the exit codes: 0, 1 for a request that would be refused.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from stickyroute import __version__
from stickyroute.console.client import Refused, open_admin
from stickyroute.control.explain import Asked, as_text, read_asked
from stickyroute.errors import ConfigError, StickyrouteError
from stickyroute.fleet import BackendSpec, Fleet
from stickyroute.live.build import gateway_keys, tuning_of
from stickyroute.live.members import offline_members
from stickyroute.metrics import Metrics
from stickyroute.openai.routes import RouteTable
from stickyroute.proxy import Front, Proxy
from stickyroute.proxy.explain import Explainer
from stickyroute.routing.affinity import build_affinity
from stickyroute.routing.policies import build_policy
from stickyroute.routing.router import Router
from stickyroute.settings import Settings, load_settings

__all__ = ["explain", "offline"]


def explain(flags: argparse.Namespace, out: TextIO | None = None) -> int:
    """Run the command. Raises ConfigError, and OSError for a file that cannot be read."""
    out = out if out is not None else sys.stdout
    data = sys.stdin.buffer.read() if flags.file == "-" else Path(flags.file).read_bytes()
    try:
        asked = read_asked(data, flags.path, dict(map(_header, flags.header)))
    except StickyrouteError as error:
        raise ConfigError(f"{flags.file}: {error.message}") from None
    if flags.tenant is not None:
        asked.tenant = flags.tenant
    if flags.config is not None:
        settings = load_settings(flags.config)
        members = offline_members(settings)
        answer = offline(settings, members.specs).explain(
            asked.path,
            asked.headers,
            asked.body,
            method=asked.method,
            tenant=asked.tenant,
            reveal=flags.reveal,
        )
        answer["notes"].append(
            "Explained against an idle fleet of this configuration: nothing is waiting or cached."
        )
        answer["notes"] += members.notes("leave out --config to ask the running proxy")
    else:
        admin = open_admin(flags)
        try:
            answer = admin.post("/explain" + ("?reveal=1" if flags.reveal else ""), _wrapped(asked))
        except Refused as refused:
            print(f"stickyroute: {refused}", file=sys.stderr)
            return 1
        finally:
            admin.close()
    print(
        json.dumps(answer, indent=2) if flags.json else as_text(answer),
        end="\n" if flags.json else "",
        file=out,
    )
    return 1 if answer["refused"] is not None else 0


def offline(settings: Settings, specs: Sequence[BackendSpec]) -> Explainer:
    """The proxy that these settings make, with an idle fleet of `specs` and no sockets: it can explain and nothing
    else.

    Backends without `models` count as serving any.
    """
    fleet = Fleet(specs, settings.ring.vnodes, tuning_of(settings))
    metrics, routes = Metrics(fleet, __version__), RouteTable(settings.extra_routes)
    router = Router(build_policy(settings), random.Random())
    front = Front(fleet, routes, metrics, None, gateway_keys(settings), frozenset())
    affinity = build_affinity(settings, router.needs)
    proxy = Proxy(settings, fleet, [], routes, affinity, router, front, metrics, None)
    return Explainer(proxy, fleet, front)


def _wrapped(asked: Asked) -> bytes:
    body: Any
    try:
        body = asked.body.decode()
    except UnicodeDecodeError:
        raise ConfigError("the request's body is not UTF-8") from None
    parts = {"path": asked.path, "method": asked.method, "headers": asked.headers, "body": body}
    if asked.tenant is not None:
        parts["tenant"] = asked.tenant
    return json.dumps(parts).encode()


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text}: write NAME:VALUE, such as x-session-id:alice")
    return name.strip(), value.strip()
