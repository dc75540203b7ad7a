"""What is heard of a backend, what is remembered of it, and by which rules it is judged. Values only.

Owns the names of outcomes, the rules of `health` with their units, and the record that `health` keeps of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stickyroute import defaults
from stickyroute.fleet.states import BackendState, Operator

__all__ = ["Event", "Health", "HealthRules", "Outcome", "Record"]


class Outcome(Enum):
    """What became of an attempt, as far as it says something of the backend. A 4xx is the client's fault and is
    ANSWERED."""

    ANSWERED = "answered"
    CONNECT_FAILED = "connect_failed"
    RESET = "reset"  # the connection broke, before or after the reply began
    SERVER_ERROR = "server_error"  # a 5xx that is not a busy answer, or an error inside a stream
    BUSY = "busy"  # back-pressure: a 429, a 503, a full queue
    NO_FIRST_BYTE = "no_first_byte"  # given up on after waiting long enough
    ENGINE_DEAD = "engine_dead"  # the server says that the engine behind it is gone


class Health(Enum):
    """What probes say."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """`rise`, `fall`: probes in a row. `eject_after`: resets and 5xx in a row; `silent_after`: requests in a row
    without a first byte. Ejections last from `eject_first_s` to `eject_last_s`. `recover`: answers, one at a time
    (or one each `trial_s`). `panic`: part of a group, 0 to 1. `busy_s`: the pause after a busy answer that names
    none, `busy_limit_s` the longest. All times in seconds."""

    rise: int = defaults.HEALTH_RISE
    fall: int = defaults.HEALTH_FALL
    eject_after: int = defaults.HEALTH_EJECT_AFTER
    silent_after: int = defaults.HEALTH_SILENT_AFTER
    eject_first_s: float = defaults.HEALTH_EJECT_FIRST_S
    eject_last_s: float = defaults.HEALTH_EJECT_LAST_S
    recover: int = defaults.HEALTH_RECOVER
    trial_s: float = 10.0
    panic: float = defaults.HEALTH_PANIC
    busy_s: float = 1.0
    busy_limit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Event:
    """A change of state, in words. `slot` is -1 for one of the whole fleet."""

    now_s: float
    slot: int
    code: str
    text: str
    good: bool


class Record:
    """What is known of one backend. Times are of the fleet's clock."""

    __slots__ = (
        "back_s", "bad", "busy_until_s", "cause", "ejected", "ejected_since_s", "ejected_why", "failures",
        "good", "level", "operator", "operator_since_s", "probe", "probe_since_s", "probe_why",
        "reachable_s", "refusals", "refused", "refused_since_s", "refused_why", "retry_at_s", "silent",
        "trial_good", "trial_since_s", "trying", "until_s",
    )  # fmt: skip

    def __init__(self, now_s: float = 0.0) -> None:
        self.operator = Operator.ACTIVE
        self.operator_since_s = now_s
        self.forget(now_s)

    def forget(self, now_s: float) -> None:
        """Nothing is known of it, other than what the operator wants."""
        self.probe = Health.UNKNOWN
        self.probe_since_s = now_s
        self.probe_why = ""
        self.good = self.bad = 0  # probes in a row
        self.refused = False
        self.refused_since_s = 0.0
        self.refused_why = ""
        self.refusals = 0
        self.reachable_s = float("-inf")  # when it last ceased to refuse
        self.retry_at_s = 0.0
        self.failures = self.silent = 0  # attempts in a row
        self.admit_again()
        self.level = 0
        self.back_s = float("-inf")
        self.busy_until_s = 0.0

    def admit_again(self) -> None:
        """Not ejected any more."""
        self.ejected = self.trying = False
        self.cause: Outcome | None = None
        self.ejected_since_s = self.until_s = 0.0
        self.ejected_why = ""
        self.trial_good = 0
        self.trial_since_s: float | None = None  # since when its one request is under way

    def state(self, available: bool, now_s: float, in_flight: int, began_in_flight: int) -> BackendState:
        """In the words of the fleet."""
        why, since_s = "", self.probe_since_s
        if self.operator is not Operator.ACTIVE:
            why, since_s = f"{self.operator.value}, by the operator", self.operator_since_s
        elif self.refused:
            why, since_s = self.refused_why, self.refused_since_s
        elif self.ejected:
            why, since_s = self.ejected_why, self.ejected_since_s
        elif self.probe is Health.UNHEALTHY:
            why = self.probe_why or "probes fail"
        return BackendState(
            operator=self.operator.value,
            health=self.probe.value,
            ejected=self.refused or self.ejected,
            why=why,
            since_s=since_s,
            available=available,
            in_flight=in_flight,
            began_in_flight=began_in_flight,
            trying=self.trying,
            paused_s=max(0.0, self.busy_until_s - now_s),
            refusals=self.refusals if self.refused else 0,
        )
