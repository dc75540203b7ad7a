"""The fleet: flat arrays by slot, and the few ways they change.

Owns every count and every fact about a backend that changes while the proxy runs. Nothing else writes the
arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stickyroute.fleet.books import Books
from stickyroute.fleet.lease import Lease
from stickyroute.fleet.pools import Models, Pool, Pools
from stickyroute.fleet.sample import Sample
from stickyroute.fleet.spec import Backend, BackendSpec
from stickyroute.fleet.tuning import Tuning
from stickyroute.routing.keys import NO_KEYS, RequestKeys
from stickyroute.routing.loads import Loads

__all__ = ["Fleet"]

BACKOFF_FIRST_S = 0.25
BACKOFF_LAST_S = 5.0
MODELS_PER_BACKEND = 1000
"""Further models a backend lists are ignored, so that no backend can make the pools grow without end."""
MODEL_NAME_CHARS = 256
"""A model with a longer name is ignored, for the same reason."""


_START_JITTER_S = 1.0


class Fleet:
    """The backends of `specs`, in that order; `vnodes` is the number of ring points per unit of weight, `tuning`
    where learning starts.

    `loads` is what policies see. `in_flight` (requests) and `available` (0 or 1) are indexed by slot, for
    others to read. Every backend is presumed available until it refuses a connection. Raises ValueError for a
    name given twice.
    """

    def __init__(self, specs: Sequence[BackendSpec], vnodes: int, tuning: Tuning | None = None) -> None:
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError("backends must have different names")
        self.backends = tuple(Backend(slot, spec) for slot, spec in enumerate(specs))
        count = len(specs)
        tuning = tuning if tuning is not None else Tuning()
        self._books = Books(count, tuning)
        self.loads: Loads = self._books.loads
        self.in_flight = self.loads.in_flight
        self.available = bytearray(b"\x01" * count)
        self._limits = tuple(spec.max_in_flight for spec in specs)
        self._failures = array("q", [0] * count)
        self._retry_at_s = array("d", [0.0] * count)
        self._rows: list[list[dict[str, Any]]] = [_configured_rows(spec.models, []) for spec in specs]
        self._served: list[Models | None] = [
            None if spec.models is None else Models(spec.models) for spec in specs
        ]
        self._samples: list[Sample | None] = [None] * count
        self._sampled_s = array("d", [0.0] * count)
        self._pools = Pools(
            self.backends, vnodes, self.loads, self.available, self._served, tuning.bytes_per_token
        )

    # Which backends.

    def pool(self, model: str | None) -> Pool | None:
        """The backends that serve `model`, for None all. None when everybody's models are known, none is it.

        A backend whose models are unknown is held to serve any.
        """
        return self._pools.find(model)

    @property
    def many_pools(self) -> bool:
        """Whether the model of a request makes a difference."""
        return self._pools.many

    # Requests in flight.

    def settle(self, now_s: float) -> None:
        """Bring backlogs up to date. Call it before a choice; without it they are a little behind."""
        self._books.settle(now_s)

    def lease(
        self,
        slot: int,
        keys: RequestKeys = NO_KEYS,
        now_s: float = 0.0,
        pool: Pool | None = None,
        streams: bool = True,
    ) -> Lease | None:
        """A place on the backend in `slot`, to release on every exit; None when `max_in_flight` are taken.

        The request counts as dispatched at `now_s`. `keys` say how much the backend has to compute for it;
        `streams` that its first token will be seen.
        """
        limit = self._limits[slot]
        if limit is not None and self.in_flight[slot] >= limit:
            return None
        return Lease(self._books, slot, keys, None if pool is None else pool.view, now_s, streams)

    def record_sample(self, slot: int, sample: Sample, now_s: float) -> None:
        """What a look at the backend's metrics said. A start time that moved, or a sum that fell, is a restart:
        nothing is cached there any more."""
        before, self._samples[slot] = self._samples[slot], sample
        self._sampled_s[slot] = now_s
        books = self._books
        if before is not None and _restarted(before, sample):
            books.record_restart(slot)
        if sample.capacity_tokens is not None:
            books.record_capacity(slot, sample.capacity_tokens)
        elif sample.blocks is not None and sample.block_size_tokens is not None:
            books.record_capacity(slot, sample.blocks * sample.block_size_tokens)
        if sample.kv_utilization is not None:
            books.record_kv(slot, sample.kv_utilization)

    def sample(self, slot: int) -> tuple[Sample, float] | None:
        """The last sample of a backend and when it was taken; it may be old. None if there never was one."""
        sample = self._samples[slot]
        return None if sample is None else (sample, self._sampled_s[slot])

    # Reachability.

    def record_refused(self, slot: int, now_s: float, jitter: float) -> None:
        """The backend refused a connection: no requests for it until it is reachable again.

        When to look again backs off from 0.25 s to 5 s; `jitter` (0 to 1) stretches a step by up to its
        double. Refusals before that time belong to the same outage and change nothing.
        """
        if not self.available[slot] and now_s < self._retry_at_s[slot]:
            return
        if self.available[slot]:
            # Nobody listens, so the process is gone, and with it all that was cached.
            self._books.record_restart(slot)
        step_s = min(BACKOFF_LAST_S / 2, BACKOFF_FIRST_S * 2 ** min(self._failures[slot], 16))
        self.available[slot] = 0
        self._failures[slot] += 1
        self._retry_at_s[slot] = now_s + step_s * (1 + min(1.0, max(0.0, jitter)))

    def record_reachable(self, slot: int) -> None:
        """The backend answered: requests may go there, and the next refusal backs off from the start."""
        self.available[slot] = 1
        self._failures[slot] = 0

    def retry_due(self, slot: int, now_s: float) -> bool:
        """Whether it is time to look again at a backend that is unavailable."""
        return not self.available[slot] and now_s >= self._retry_at_s[slot]

    def retry_in_s(self, slot: int, now_s: float) -> float | None:
        """Seconds until an unavailable backend is looked at again, 0 when due; None while available."""
        return None if self.available[slot] else max(0.0, self._retry_at_s[slot] - now_s)

    def next_retry_s(self, now_s: float) -> float:
        """Seconds until an unavailable backend is due for another look; 0 if one is, or all are available."""
        waits = [
            self._retry_at_s[backend.slot] - now_s
            for backend in self.backends
            if not self.available[backend.slot]
        ]
        return max(0.0, min(waits, default=0.0))

    # Models.

    def record_models(self, slot: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """What the backend's `/v1/models` lists. An empty list says nothing: its models are then unknown.

        Where the configuration names the backend's models, the rows only add their fields to those.
        """
        configured = self.backends[slot].spec.models
        usable = [dict(row) for row in rows if _is_usable(row)][:MODELS_PER_BACKEND]
        if configured is not None:
            self._rows[slot] = _configured_rows(configured, usable)
        else:
            self._rows[slot] = usable
        adapters = any(row.get("owned_by") == "sglang" for row in usable)
        names = configured if configured is not None else tuple(dict.fromkeys(row["id"] for row in usable))
        served = Models(names, adapters) if names else None
        if served != self._served[slot]:
            self._served[slot] = served
            self._pools.rebuild(self._served)

    def models(self) -> list[list[dict[str, Any]]]:
        """The rows of each available backend, as it listed them."""
        return [rows for slot, rows in enumerate(self._rows) if self.available[slot]]

    # For people.

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON values, without secrets; `models` is null where they are unknown."""
        pools = self._pools
        everyone = pools.anyone.view.ring
        shares = everyone.shares()
        return {
            "ring_fingerprint": everyone.fingerprint,
            "backends": [self._backend_state(backend, shares[backend.slot]) for backend in self.backends],
            "pools": [
                {"model": name, "backends": [self.backends[slot].name for slot in pool.view.slots]}
                for name, pool in pools.by_model.items()
            ],
        }

    def _backend_state(self, backend: Backend, share: float) -> dict[str, Any]:
        slot, spec = backend.slot, backend.spec
        served = self._served[slot]
        return {
            "name": spec.name,
            "url": spec.url,
            "weight": spec.weight,
            "available": bool(self.available[slot]),
            "in_flight": self.in_flight[slot],
            "max_in_flight": spec.max_in_flight,
            "failures": self._failures[slot],
            "ring_share": round(share, 4),
            "models": None if served is None else list(served.names),
        }


def _restarted(before: Sample, after: Sample) -> bool:
    if before.started_s is not None and after.started_s is not None:
        # Some engines compute it from their uptime, so it jitters.
        return abs(after.started_s - before.started_s) > _START_JITTER_S
    return (
        before.queries_tokens is not None
        and after.queries_tokens is not None
        and after.queries_tokens < before.queries_tokens
    )


def _is_usable(row: Mapping[str, Any]) -> bool:
    name = row.get("id")
    return isinstance(name, str) and 0 < len(name) <= MODEL_NAME_CHARS


def _configured_rows(names: Sequence[str] | None, listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each configured model: the backend's own, or what OpenAI's clients need at least."""
    by_name = {row["id"]: row for row in listed}
    return [
        by_name.get(name, {"id": name, "object": "model", "created": 0, "owned_by": "stickyroute"})
        for name in names or ()
    ]
