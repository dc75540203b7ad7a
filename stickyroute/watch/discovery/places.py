"""What a source of discovery finds, and what becomes of it together with the options of its entry. Values only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stickyroute.fleet import BackendSpec
from stickyroute.settings import BackendSettings, DiscoverySettings

__all__ = ["Found", "Listener", "Place", "Source", "backoff_s", "spec_of"]

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """One backend as its source tells it. `own` are options that the source gives this one alone.

    `draining`: it finishes what it has and takes nothing new, such as a pod that is being ended.
    """

    name: str
    host: str
    port: int
    draining: bool = False
    own: BackendSettings | None = None


class Found(NamedTuple):
    """One backend of discovery, ready for the fleet. `source` is the label of the entry that found it."""

    spec: BackendSpec
    draining: bool
    source: str


class Listener(Protocol):
    """Who hears of a source's answers."""

    def found(self, places: Sequence[Place]) -> None:
        """All backends there are now."""

    def failed(self, why: str) -> None:
        """No answer; whatever was known stays."""


class Source(Protocol):
    """Where backends are found."""

    async def run(self, listener: Listener) -> None:
        """Tell of every change, for ever. What can go wrong in the world goes to `listener.failed`."""

    def again(self) -> None:
        """Look again soon: one of those found cannot be reached."""


def spec_of(entry: DiscoverySettings, place: Place) -> BackendSpec:
    """The backend as the fleet wants it: its own options, else those of the entry."""
    own = place.own

    def option(name: str) -> Any:
        return getattr(own if own is not None and name in own.model_fields_set else entry, name)

    scheme: str = entry.scheme
    base_path = entry.base_path
    if own is not None:
        scheme, base_path = own.address.scheme, own.address.base_path
    api_key, ca = option("api_key"), option("ca")
    return BackendSpec(
        name=place.name,
        scheme=scheme,
        host=place.host,
        port=place.port,
        base_path=base_path,
        weight=option("weight"),
        api_key=api_key.get_secret_value() if api_key is not None else None,
        ca=str(ca) if ca is not None else None,
        tls_verify=option("tls_verify"),
        models=option("models"),
        max_in_flight=option("max_in_flight"),
        engine=own.engine if own is not None else None,
    )


def backoff_s(failures: int) -> float:
    """Seconds until the next try after so many failures in a row: 0.5 doubling to 30, jittered down to half."""
    pause_s: float = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
    return pause_s * random.uniform(0.5, 1.0)
