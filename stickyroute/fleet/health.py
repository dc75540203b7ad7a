"""Who may be sent requests: what probes and real traffic say of each backend, and what follows.

Owns the states and their transitions; `available` and `pinnable` are what comes of them. Three things take a
backend out, and each ends in its own way:

- refused: nobody listens, or the engine behind the port is dead. Ends when a probe is answered.
- ejected: its answers are failures, whatever probes say. After a pause, which doubles with jitter, it is let in
  for one request at a time, until `recover` of them were answered.
- unhealthy: `fall` probes in a row failed. Ends after `rise` good ones.

A busy answer only pauses it, as long as it asks. A backend of which nothing is known is used. The operator's
state is apart from all that.

Never all are out: where less than `panic` of a group are left, those that are ejected or paused are used
again, and where nobody is left, those whose probes fail as well; never who refuses. Time and jitter are
arguments; changes are noted as events for others to log, bounded in number. Knows no sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from stickyroute.fleet.outcome import Event, Health, HealthRules, Outcome, Record
from stickyroute.fleet.standby import choose
from stickyroute.fleet.states import BackendState, Operator

__all__ = ["Event", "Health", "HealthBook", "HealthRules", "Outcome"]

REFUSED_FIRST_S = 0.25
REFUSED_LAST_S = 5.0
_EVENTS = 1000  # kept until somebody takes them
_LIMITLESS = 1 << 62
_SILENT_PATIENCE = 6.0
_CALM_S = 10.0  # without a panic until it is said to be over, since it may come and go


class HealthBook:
    """States by slot, for the slots of `available` (0 or 1), which it keeps; `limits` are the requests each may have
    at once: 0 there makes `Fleet.lease` ask `admits` first."""

    def __init__(
        self, available: bytearray, limits: list[int], in_flight: Sequence[int], rules: HealthRules
    ) -> None:
        self.available = available
        self._in_flight = in_flight
        self.pinnable = bytearray(available)  # may be sent what is tied to it and to nobody else
        self.rules = rules
        self._limits = limits
        self._hard = [_LIMITLESS] * len(available)
        self._records: list[Record] = [Record() for _ in available]
        self._names: dict[int, str] = {}
        self._groups: tuple[tuple[int, ...], ...] = ()
        self.marked = bytearray(len(available))
        """Who is not simply well: of any other, an answer need not be told."""
        self._panic: set[int] = set()
        self._panic_told = False
        self._calm_s = 0.0  # since when nobody is used who is out
        self._now_s = 0.0
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self.ejections: dict[int, int] = {}
        """How often each slot was ejected, by whoever was in it."""
        self.rejoined: list[int] = []
        """Slots that came back since somebody emptied the list."""
        self.emptied: list[int] = []
        """Slots whose engine is gone, and with it its cache, likewise."""

    # Members.

    def grow(self, count: int) -> None:
        """There are `count` slots now."""
        while len(self._records) < count:
            self._records.append(Record())
            self.available.append(1)
            self.pinnable.append(1)
            self.marked.append(0)
            self._limits.append(_LIMITLESS)
            self._hard.append(_LIMITLESS)

    def place(
        self, names: dict[int, str], limits: dict[int, int | None], groups: Iterable[tuple[int, ...]]
    ) -> None:
        """These are the members now, with their `max_in_flight`; `groups` as in `Pools.groups`. A slot without a
        member counts as available, so that it is not taken for a backend that is out."""
        self._names = dict(names)
        for slot in range(len(self._records)):
            limit = limits.get(slot)
            self._hard[slot] = self._limits[slot] = _LIMITLESS if limit is None else limit
            if slot not in names:
                self._records[slot] = Record()
                self.available[slot] = self.pinnable[slot] = 1
                self.marked[slot] = 0
        self._panic &= set(names)
        self.regroup(groups)

    def regroup(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Other sets of backends serve one model together."""
        self._groups = tuple(groups)
        self._publish(self._now_s)

    def join(self, slot: int, now_s: float) -> None:
        """Somebody new is in the slot."""
        self._records[slot] = Record(now_s)
        self.marked[slot] = 0

    def forget(self, slot: int, now_s: float) -> None:
        """It is another process now: nothing is known of it, other than what the operator wants."""
        self._records[slot].forget(now_s)
        self.marked[slot] = 0

    # What is heard.

    def probe(self, slot: int, ok: bool, now_s: float, why: str = "") -> None:
        """A probe was answered, well or not."""
        if slot not in self._names:
            return
        record, rules = self._records[slot], self.rules
        if ok:
            record.good, record.bad = record.good + 1, 0
            if record.refused:
                # A process that listens again is a new one.
                self._unrefuse(slot, now_s)
                record.admit_again()
                record.level = record.failures = record.silent = 0
                self._is_healthy(slot, now_s)
            elif record.probe is Health.UNHEALTHY and record.good >= rules.rise:
                self.rejoined.append(slot)
                self._is_healthy(slot, now_s)
            elif record.probe is Health.UNKNOWN:
                record.probe, record.probe_since_s = Health.HEALTHY, now_s
        else:
            record.bad, record.good = record.bad + 1, 0
            record.probe_why = why
            if record.probe is not Health.UNHEALTHY and record.bad >= rules.fall:
                record.probe, record.probe_since_s = Health.UNHEALTHY, now_s
                told = f"{record.bad} probes in a row failed: {why or 'no answer'}"
                self.note(now_s, slot, "unhealthy", told, False)
                self._publish(now_s)

    def outcome(
        self,
        slot: int,
        outcome: Outcome,
        now_s: float,
        jitter: float,
        retry_after_s: float | None = None,
        why: str = "",
    ) -> None:
        """What became of an attempt. `jitter`: 0 to 1, stretches a pause by up to its double."""
        if outcome is Outcome.ANSWERED and not self.marked[slot]:
            return
        if slot not in self._names:
            return
        record = self._records[slot]
        if outcome is Outcome.ANSWERED:
            changed = self._answered(slot, record, now_s)
        elif outcome is Outcome.CONNECT_FAILED:
            changed = self._refuse(slot, now_s, jitter, why or "refuses connections")
        elif outcome is Outcome.BUSY:
            changed = self._pause(record, now_s, retry_after_s)
        else:
            changed = self._failed(slot, record, outcome, now_s, jitter, why)
        self._mark(slot)
        if changed:
            self._publish(now_s)

    def reachable(self, slot: int, now_s: float) -> None:
        """It answered something: it is not refusing."""
        if self._records[slot].refused:
            self._unrefuse(slot, now_s)
            self._is_healthy(slot, now_s)

    def restarted(self, slot: int, now_s: float) -> None:
        """Its engine started anew, so what the old one did no longer counts."""
        record = self._records[slot]
        if record.ejected:
            record.admit_again()
            self.note(now_s, slot, "restarted", "its engine started anew: taken in again", True)
            self._mark(slot)
            self._publish(now_s)

    def operate(self, slot: int, operator: Operator, now_s: float) -> None:
        """The operator's word."""
        record = self._records[slot]
        if record.operator is not operator and slot in self._names:
            record.operator, record.operator_since_s = operator, now_s
            self.note(now_s, slot, operator.value, f"{operator.value}, by the operator", True)
            self._publish(now_s)

    def tick(self, now_s: float) -> None:
        """Pauses end as time passes. Costs nothing while all are well."""
        if self._panic_told and not self._panic and now_s >= self._calm_s + _CALM_S:
            self._panic_told = False
            self.note(now_s, -1, "panic_over", "enough backends are in again", True)
        if 1 not in self.marked:
            return
        changed = False
        for slot in self._names:
            if not self.marked[slot]:
                continue
            record = self._records[slot]
            if record.busy_until_s and now_s >= record.busy_until_s:
                record.busy_until_s = 0.0
                changed = True
            if record.ejected and not record.trying and now_s >= record.until_s:
                record.trying = True
                record.trial_since_s = None
                changed = True
            elif record.trial_since_s is not None and self._is_spent(slot, record, now_s):
                record.trial_since_s = None
                changed = True
            self._mark(slot)
        if changed:
            self._publish(now_s)

    def admits(self, slot: int, now_s: float) -> bool:
        """Whether a request may have a place: asked at the limit, and of those that are let in one at a time."""
        if self._in_flight[slot] >= self._hard[slot]:
            return False
        record = self._records[slot]
        if record.trying and slot not in self._panic:
            if record.trial_since_s is not None:
                return False
            record.trial_since_s = now_s
            self._publish(now_s)
        return True

    # What is told.

    def note(self, now_s: float, slot: int, code: str, text: str, good: bool) -> None:
        """An event, for `take_events`."""
        self._events.append(Event(now_s, slot, code, text, good))

    def take_events(self) -> list[Event]:
        """What changed since the last call, oldest first."""
        events = list(self._events)
        self._events.clear()
        return events

    def state(self, slot: int, now_s: float, in_flight: int, began_in_flight: int) -> BackendState:
        """All of one backend's state."""
        return self._records[slot].state(bool(self.available[slot]), now_s, in_flight, began_in_flight)

    def retry_at_s(self, slot: int) -> float | None:
        """When one that refuses is due for another look; None for any other."""
        record = self._records[slot]
        return record.retry_at_s if record.refused else None

    def next_change_s(self, now_s: float) -> float | None:
        """Seconds until the first of those that are out may be in again by itself; None where nobody is."""
        times = []
        for slot in self._names:
            record = self._records[slot]
            if self.available[slot] or record.operator is not Operator.ACTIVE:
                continue
            if record.refused:
                times.append(record.retry_at_s)
            elif record.ejected:
                times.append(record.until_s)
            elif record.busy_until_s > now_s:
                times.append(record.busy_until_s)
        return max(0.0, min(times) - now_s) if times else None

    # Transitions.

    # Each says whether anything changed for who is used.

    def _answered(self, slot: int, record: Record, now_s: float) -> bool:
        # Where it refuses connections, this was an answer of the process that is going.
        record.failures = record.silent = 0
        if not record.trying:
            return False
        record.trial_since_s = None
        record.trial_good += 1
        if record.trial_good >= self.rules.recover:
            record.admit_again()
            record.back_s = now_s
            self.rejoined.append(slot)
            self.note(now_s, slot, "recovered", f"{self.rules.recover} requests were answered", True)
        return True

    def _pause(self, record: Record, now_s: float, retry_after_s: float | None) -> bool:
        rules = self.rules
        pause_s = rules.busy_s if retry_after_s is None else max(0.0, retry_after_s)
        was_paused = record.busy_until_s > now_s
        record.busy_until_s = max(record.busy_until_s, now_s + min(rules.busy_limit_s, pause_s))
        record.trial_since_s = None
        return not was_paused

    def _refuse(self, slot: int, now_s: float, jitter: float, why: str) -> bool:
        record = self._records[slot]
        if record.refused and now_s < record.retry_at_s:
            return False  # of the same outage
        changed = not record.refused
        if changed:
            # Nobody listens, so the process is gone, and with it all that was cached.
            self.emptied.append(slot)
            record.refused, record.refused_since_s = True, now_s
            if now_s >= record.reachable_s + 2 * REFUSED_LAST_S:
                record.refusals = 0  # another outage; one that comes and goes is looked at ever less often
            self.note(now_s, slot, "refused", why, False)
        record.refused_why = why
        step_s = min(REFUSED_LAST_S / 2, REFUSED_FIRST_S * 2 ** min(record.refusals, 16))
        record.refusals += 1
        record.retry_at_s = now_s + step_s * (1 + min(1.0, max(0.0, jitter)))
        return changed

    def _unrefuse(self, slot: int, now_s: float) -> None:
        record = self._records[slot]
        record.refused = False
        record.reachable_s = now_s
        record.refused_why = ""
        self.rejoined.append(slot)

    def _is_healthy(self, slot: int, now_s: float) -> None:
        record = self._records[slot]
        record.probe, record.probe_since_s, record.probe_why = Health.HEALTHY, now_s, ""
        self.note(now_s, slot, "back", "answers again", True)
        self._mark(slot)
        self._publish(now_s)

    def _failed(
        self, slot: int, record: Record, outcome: Outcome, now_s: float, jitter: float, why: str
    ) -> bool:
        rules = self.rules
        if record.refused or (record.ejected and not record.trying):
            return False  # it began before
        if outcome is Outcome.NO_FIRST_BYTE:
            record.silent += 1
        elif outcome is not Outcome.ENGINE_DEAD:
            record.failures += 1
        if outcome is Outcome.ENGINE_DEAD:
            self.emptied.append(slot)
            told = "its engine is dead"
        elif record.trying:
            told = f"again: {outcome.value}"
        elif record.silent >= rules.silent_after:
            told = f"{record.silent} requests in a row had no first byte"
        elif record.failures >= rules.eject_after:
            told = f"{record.failures} requests in a row failed, the last one: {outcome.value}"
        else:
            return False
        if not record.trying:
            # One that did well for long begins anew.
            record.level = record.level if now_s < record.back_s + 2 * rules.eject_last_s else 0
            record.ejected_since_s = now_s
            record.ejected_why = f"{told}{f' ({why})' if why else ''}"
            # Trials that fail are the same story, and would fill a log.
            self.note(now_s, slot, "ejected", record.ejected_why, False)
            self.ejections[slot] = self.ejections.get(slot, 0) + 1
        record.ejected, record.trying, record.cause = True, False, outcome
        record.trial_good, record.trial_since_s = 0, None
        record.failures = record.silent = 0
        step_s = min(rules.eject_last_s / 2, rules.eject_first_s * 2 ** min(record.level, 16))
        record.level += 1
        record.until_s = now_s + step_s * (1 + min(1.0, max(0.0, jitter)))
        return True

    def _is_spent(self, slot: int, record: Record, now_s: float) -> bool:
        """Whether the one request that was let in tells nothing any more: it is gone, or takes long."""
        assert record.trial_since_s is not None
        if not self._in_flight[slot]:
            return True
        # Where requests wait for ever, the next one would as well.
        patience = _SILENT_PATIENCE if record.cause is Outcome.NO_FIRST_BYTE else 1.0
        return now_s >= record.trial_since_s + patience * self.rules.trial_s

    # What follows.

    def _mark(self, slot: int) -> None:
        record = self._records[slot]
        self.marked[slot] = bool(
            record.refused or record.ejected or record.busy_until_s or record.failures or record.silent
        )

    def _publish(self, now_s: float) -> None:
        """Bring `available`, `pinnable` and `limits` up to date."""
        now_s = self._now_s = max(self._now_s, now_s)
        members = {slot: self._records[slot] for slot in self._names}
        choice = choose(members, self._groups, self.rules.panic, now_s)
        if choice.panic and not self._panic_told:
            self._panic_told = True
            self.note(now_s, -1, "panic", "backends that are out are used: too few others are left", False)
        elif self._panic and not choice.panic:
            self._calm_s = now_s
        self._panic = choice.panic
        used = choice.well | choice.panic | choice.trial
        for slot, record in members.items():
            self.available[slot] = slot in used
            self.pinnable[slot] = slot in choice.pinnable
            self._limits[slot] = 0 if record.trying and slot not in choice.panic else self._hard[slot]
