"""What a scrape says of each backend: what it holds, how it is, what its engine tells, what was learned.

Owns the names of these metrics. Reads the fleet and the counters, and changes neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from stickyroute.clock import monotonic
from stickyroute.metrics.counters import Counters
from stickyroute.metrics.exposition import Family, counter, gauge
from stickyroute.metrics.watched import Watched

__all__ = ["STATES", "fleet_families"]

_BACKEND = ("backend",)
_Rows = list[tuple[tuple[str, ...], float]]

STATES = ("draining", "disabled", "unknown", "unhealthy", "ejected", "paused")
"""What else a backend may be than simply well; several at once."""

_FINGERPRINT_DIGITS = 13  # hexadecimal: as much as a sample, a float, keeps whole


def fleet_families(counters: Counters) -> Iterator[Family]:
    """Every family with the label `backend` and no pool, and those of the fleet as a whole."""
    yield from _state_families(counters)
    yield from _engine_families(counters.fleet)
    yield from _learned_families(counters.fleet)
    yield from _ring_families(counters.fleet)


def _state_families(counters: Counters) -> Iterator[Family]:
    fleet = counters.fleet
    in_flight: _Rows = []
    available: _Rows = []
    states: _Rows = []
    warnings: _Rows = []
    for backend in fleet.backends:
        slot, name = backend.slot, backend.name
        in_flight.append(((name,), fleet.in_flight[slot]))
        available.append(((name,), 1 if fleet.available[slot] else 0))
        state = fleet.state(slot)
        words = (
            state.operator,
            state.health,
            "ejected" if state.ejected else "",
            "paused" if state.paused_s > 0 else "",
        )
        states += [((name, word), 1 if word in words else 0) for word in STATES]
        warnings += [((name, warning.code), 1) for warning in fleet.warnings(slot)]
    yield gauge(
        "stickyroute_backend_in_flight", "Requests in flight on the backend now.", _BACKEND, in_flight
    )
    yield gauge(
        "stickyroute_backend_available",
        "1 while new requests may go to the backend, else 0.",
        _BACKEND,
        available,
    )
    yield gauge(
        "stickyroute_backend_state",
        "1 while the backend is so, else 0.",
        ("backend", "state"),
        states,
    )
    yield gauge(
        "stickyroute_backend_warnings",
        "1 for each thing about the backend's engine that costs its users time.",
        ("backend", "code"),
        warnings,
    )
    yield counter(
        "stickyroute_backend_ejections",
        "Times the backend was taken out for what its answers were.",
        _BACKEND,
        [((backend.name,), fleet.ejections(backend.slot)) for backend in fleet.backends],
    )
    yield counter(
        "stickyroute_upstream_failures",
        "Attempts that failed on their backend.",
        ("backend", "kind"),
        list(counters.failures.items()),
    )


def _engine_families(fleet: Watched) -> Iterator[Family]:
    """What the engines say of themselves; what one does not say has no series."""
    age: _Rows = []
    rows: dict[str, _Rows] = {attribute: [] for _, _, attribute, _ in _ENGINE}
    now_s = monotonic()
    for backend in fleet.backends:
        known = fleet.sample(backend.slot)
        if known is None:
            continue
        sample, taken_s = known
        labels = (backend.name,)
        age.append((labels, now_s - taken_s))
        for attribute, mine in rows.items():
            value = getattr(sample, attribute)
            if value is not None:
                mine.append((labels, value))
    for name, help_text, attribute, make in _ENGINE:
        yield make(f"stickyroute_backend_{name}", help_text, _BACKEND, rows[attribute])
    yield gauge(
        "stickyroute_backend_sample_age_seconds",
        "How old it is, what the engine said of itself last.",
        _BACKEND,
        age,
    )


_ENGINE = (
    (
        "kv_utilization",
        "The part of its KV cache that running requests hold, 0 to 1, as the engine says.",
        "kv_utilization",
        gauge,
    ),
    ("engine_running", "Requests that run, as the engine says.", "running", gauge),
    ("engine_waiting", "Requests that wait, as the engine says.", "waiting", gauge),
    ("preemptions", "Requests the engine took the cache from while they ran.", "preemptions", counter),
    (
        "engine_queried_tokens",
        "Prompt tokens the engine looked up in its prefix cache, as it says.",
        "queries_tokens",
        counter,
    ),
    ("engine_hit_tokens", "Those of them that it found there, as it says.", "hits_tokens", counter),
)


def _learned_families(fleet: Watched) -> Iterator[Family]:
    """What the token-counting policies go by."""
    loads = fleet.loads
    weight: _Rows = []
    backlog: _Rows = []
    rate: _Rows = []
    trust: _Rows = []
    for backend in fleet.backends:
        slot, labels = backend.slot, (backend.name,)
        weight.append((labels, backend.spec.weight * loads.room[slot]))
        backlog.append((labels, loads.backlog_tokens[slot]))
        rate.append((labels, 1.0 / loads.token_s[slot]))
        trust.append((labels, loads.trust[slot]))
    yield gauge(
        "stickyroute_backend_effective_weight",
        "The backend's weight by how much room it has: less while its cache is full or it has just come.",
        _BACKEND,
        weight,
    )
    yield gauge(
        "stickyroute_backend_backlog_tokens",
        "Uncached prompt tokens sent to the backend that wait for their first token.",
        _BACKEND,
        backlog,
    )
    yield gauge(
        "stickyroute_backend_prefill_tokens_per_second",
        "Uncached prompt tokens a second that the backend computes, as learned.",
        _BACKEND,
        rate,
    )
    yield gauge(
        "stickyroute_backend_trust",
        "The part of what is believed to be cached on the backend that is, as learned from replies.",
        _BACKEND,
        trust,
    )
    yield gauge(
        "stickyroute_kappa",
        "How much longer a request waits than its own work takes: mean TTFT by mean service time, less 1.",
        (),
        [((), loads.kappa.value)],
    )


def _ring_families(fleet: Watched) -> Iterator[Family]:
    yield gauge(
        "stickyroute_ring_fingerprint",
        "A number that two replicas have in common if and only if they agree on every home.",
        (),
        [((), int(fleet.fingerprint[:_FINGERPRINT_DIGITS], 16))],
    )
    yield counter(
        "stickyroute_fleet_changes",
        "Changes of members or weights since the start.",
        (),
        [((), fleet.changes)],
    )
    yield counter(
        "stickyroute_moved_keys_share",
        "Sum over those changes of the part, 0 to 1, of all keys that got another home.",
        (),
        [((), fleet.moved_share)],
    )
