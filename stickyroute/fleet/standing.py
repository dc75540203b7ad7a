"""How each backend stands: what probes, traffic, metrics and the operator say of it, and what follows.

Owns the fleet's arrays by slot, and how what is heard reaches `health` (who may be sent requests), `books` (what they
were given), `weights` (how much room they have) and `warnings`. Knows slots; who is in them is the fleet's.
"""

from __future__ import annotations

from array import array

from stickyroute.fleet.books import Books
from stickyroute.fleet.health import HealthBook
from stickyroute.fleet.outcome import Event, Outcome
from stickyroute.fleet.rules import FleetRules
from stickyroute.fleet.sample import Sample
from stickyroute.fleet.states import BackendState, Operator
from stickyroute.fleet.tuning import Tuning
from stickyroute.fleet.warnings import BackendWarning, Warnings
from stickyroute.fleet.weights import Rooms
from stickyroute.routing.loads import Loads

__all__ = ["Standing"]

_START_JITTER_S = 1.0


class Standing:
    """`count` slots at first. The base of `Fleet`."""

    def __init__(self, count: int, tuning: Tuning, rules: FleetRules) -> None:
        self._books = Books(count, tuning)
        self.loads: Loads = self._books.loads
        self.in_flight = self.loads.in_flight
        self.available = bytearray(b"\x01" * count)
        self._limits: list[int] = [0] * count
        self._health = HealthBook(self.available, self._limits, self.in_flight, rules.health)
        self._rooms = Rooms(self.loads, rules.room)
        self._recent = self.loads.recent
        self._warnings = Warnings(rules.warnings, self._recent, self._health.note)
        self._samples: list[Sample | None] = [None] * count
        self._sampled_s = array("d", [0.0] * count)
        self._drained_from: list[int] = [0] * count
        self._now_s = 0.0

    # What is heard of them.

    def record_sample(self, slot: int, sample: Sample, now_s: float) -> None:
        """What a look at the backend's metrics said. A start time that moved, or a sum that fell, is a restart:
        nothing is cached there any more."""
        before, self._samples[slot] = self._samples[slot], sample
        self._sampled_s[slot] = now_s
        books = self._books
        if before is not None and _restarted(before, sample):
            books.record_restart(slot)
            self._health.restarted(slot, now_s)
            self._warnings.restarted(slot)
            self._rooms.join(slot, now_s)
        if sample.block_size_tokens is not None:
            books.record_block(slot, sample.block_size_tokens)
        if sample.capacity_tokens is not None:
            books.record_capacity(slot, sample.capacity_tokens)
        elif sample.blocks is not None and sample.block_size_tokens is not None:
            books.record_capacity(slot, sample.blocks * sample.block_size_tokens)
        if sample.kv_utilization is not None:
            books.record_kv(slot, sample.kv_utilization)
        if sample.running is not None:
            books.record_requests(slot, sample.running + (sample.waiting or 0))
        self._rooms.record(slot, sample, now_s)
        self._warnings.record(slot, sample, now_s)

    def sample(self, slot: int) -> tuple[Sample, float] | None:
        """The last sample of a backend and when it was taken; it may be old. None if there never was one."""
        sample = self._samples[slot]
        return None if sample is None else (sample, self._sampled_s[slot])

    def record_probe(self, slot: int, ok: bool, now_s: float, why: str = "") -> None:
        """A probe was answered, well or not (`why`). A refused connection is better told as an outcome."""
        self._health.probe(slot, ok, now_s, why)
        self._follow(now_s)

    def record_outcome(
        self,
        slot: int,
        outcome: Outcome,
        now_s: float,
        jitter: float,
        retry_after_s: float | None = None,
        why: str = "",
    ) -> None:
        """What became of an attempt. `jitter`: 0 to 1; `retry_after_s` is what a BUSY answer asks for."""
        if outcome is Outcome.ANSWERED and not self._health.marked[slot]:
            return
        self._health.outcome(slot, outcome, now_s, jitter, retry_after_s, why)
        self._follow(now_s)

    def tick(self, now_s: float) -> None:
        """Time passes: pauses end, rooms change. To be called some times a second."""
        self._now_s = now_s
        self._health.tick(now_s)
        self._rooms.tick(now_s)
        self._follow(now_s)

    def take_events(self) -> list[Event]:
        """The changes of state since the last call, for the log; kept in bounded number."""
        return self._health.take_events()

    # Reachability.

    def record_refused(self, slot: int, now_s: float, jitter: float) -> None:
        """The backend refused a connection: no requests for it until it is reachable again.

        When to look again backs off from 0.25 s to 5 s; `jitter` (0 to 1) stretches a step by up to its
        double. Refusals before that time belong to the same outage and change nothing.
        """
        self.record_outcome(slot, Outcome.CONNECT_FAILED, now_s, jitter)

    def record_reachable(self, slot: int, now_s: float | None = None) -> None:
        """The backend answered: requests may go there, and the next refusal backs off from the start."""
        now_s = self._now_s if now_s is None else now_s
        self._health.reachable(slot, now_s)
        self._follow(now_s)

    def is_refused(self, slot: int) -> bool:
        """Whether it refused connections when last tried."""
        return self._health.retry_at_s(slot) is not None

    def retry_due(self, slot: int, now_s: float) -> bool:
        """Whether it is time to look again at a backend that refused."""
        retry_at_s = self._health.retry_at_s(slot)
        return retry_at_s is not None and now_s >= retry_at_s

    def retry_in_s(self, slot: int, now_s: float) -> float | None:
        """Seconds until a backend that refused is looked at again, 0 when due; None for others."""
        retry_at_s = self._health.retry_at_s(slot)
        return None if retry_at_s is None else max(0.0, retry_at_s - now_s)

    def next_retry_s(self, now_s: float) -> float:
        """Seconds until one of those that are out may be in again; 0 if one may, or nobody is out."""
        return self._health.next_change_s(now_s) or 0.0

    # The operator.

    def drain(self, slot: int, now_s: float) -> None:
        """No more requests, other than those that only this one can answer; what runs is finished."""
        self._operate(slot, Operator.DRAINING, now_s)

    def undrain(self, slot: int, now_s: float) -> None:
        """Take requests again."""
        self._operate(slot, Operator.ACTIVE, now_s)

    def disable(self, slot: int, now_s: float) -> None:
        """No more requests of any kind; what runs is finished."""
        self._operate(slot, Operator.DISABLED, now_s)

    def enable(self, slot: int, now_s: float) -> None:
        """Take requests again."""
        self._operate(slot, Operator.ACTIVE, now_s)

    def takes_pinned(self, slot: int) -> bool:
        """Whether it may be sent what only it can answer: also while it drains."""
        return bool(self._health.pinnable[slot])

    def is_well(self, slot: int) -> bool:
        """Whether real traffic says nothing against it: no failure of late, no pause."""
        return not self._health.marked[slot]

    def state(self, slot: int) -> BackendState:
        """What is known of one backend's state."""
        return self._health.state(slot, self._now_s, self.in_flight[slot], self._drained_from[slot])

    def warnings(self, slot: int) -> tuple[BackendWarning, ...]:
        """What about its engine costs its users time, with the flag to set."""
        return self._warnings.of(slot)

    def ejections(self, slot: int) -> int:
        """How often backends in this slot were taken out for what their answers were."""
        return self._health.ejections.get(slot, 0)

    def warming(self, slot: int) -> float:
        """How far its slow start is, 0 to 1."""
        return self._rooms.warming(slot, self._now_s)

    def retune(self, rules: FleetRules) -> None:
        """Other rules from now on; what is known stays."""
        self._health.rules = rules.health
        self._rooms.rules = rules.room
        self._warnings.rules = rules.warnings

    # Slots.

    def _grow(self, count: int) -> None:
        """There are at least `count` slots from now on."""
        self._books.grow(count)
        self._health.grow(count)
        self._rooms.grow(count)
        self._warnings.grow(count)
        more = count - len(self._samples)
        if more > 0:
            self._samples += [None] * more
            self._sampled_s.extend([0.0] * more)
            self._drained_from += [0] * more

    def _blank(self, slot: int) -> None:
        """Somebody else is in the slot, of whom nothing is known."""
        self._restart(slot)
        self._books.reset(slot)

    def _restart(self, slot: int) -> None:
        self._books.record_restart(slot)
        self._rooms.forget(slot)
        self._warnings.forget(slot)
        self._samples[slot] = None

    def _operate(self, slot: int, operator: Operator, now_s: float) -> None:
        self._drained_from[slot] = self.in_flight[slot]
        self._health.operate(slot, operator, now_s)

    def _follow(self, now_s: float) -> None:
        """What a change of health means for the rest."""
        health = self._health
        if health.emptied:
            for slot in health.emptied:
                self._books.record_restart(slot)
            health.emptied.clear()
        if health.rejoined:
            for slot in health.rejoined:
                self._rooms.join(slot, now_s)
            health.rejoined.clear()


def _restarted(before: Sample, after: Sample) -> bool:
    if before.started_s is not None and after.started_s is not None:
        # Some engines compute it from their uptime, so it jitters.
        return abs(after.started_s - before.started_s) > _START_JITTER_S
    return (
        before.queries_tokens is not None
        and after.queries_tokens is not None
        and after.queries_tokens < before.queries_tokens
    )
