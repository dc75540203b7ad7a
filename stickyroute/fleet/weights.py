"""How much of its share of load each backend should have now: its room, by slot.

    room = f(KV utilization, waiting) x slow start, above 0 and at most 1

f is 1 up to the marks and falls in a straight line to `floor` where the cache is full or `waiting_full` requests
wait for each of the engine's ranks. It falls at once and comes back late: only below the marks by
`hysteresis`, and not before `cool_down_s` have passed since it last fell. Between two samples what we sent and what
ended since is credited. A sample that is too old fades to "nothing speaks against it", as does one that never
came.

Room bounds load and moves no key. Owns the samples' figures and writes `Loads.room` alone. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from stickyroute import defaults
from stickyroute.fleet.sample import Sample
from stickyroute.routing.loads import Loads

__all__ = ["RoomRules", "Rooms", "room_of"]

_NEVER_S = float("-inf")
_COLD = 0.1  # of its share, for one that has just come


@dataclass(frozen=True, slots=True)
class RoomRules:
    """`kv_mark`: utilization, 0 to 1. `waiting_mark`, `waiting_full`: requests of one rank. `floor`: the least room,
    above 0. `hysteresis`: of utilization, and the same part of `waiting_full`. `sample_limit_s`: older figures fade
    over as long again. `slow_start_s`: how long one that (re)joins is warmed up; 0 for not at all."""

    kv_mark: float = defaults.ROOM_KV_MARK
    waiting_mark: float = defaults.ROOM_WAITING_MARK
    waiting_full: float = defaults.ROOM_WAITING_FULL
    floor: float = defaults.ROOM_FLOOR
    hysteresis: float = 0.1
    cool_down_s: float = defaults.ROOM_COOL_DOWN_S
    sample_limit_s: float = 3 * defaults.SCRAPE_INTERVAL_S
    slow_start_s: float = defaults.ROOM_SLOW_START_S


def room_of(kv: float, waiting: float, rules: RoomRules) -> float:
    """f, of the greater of the two pressures."""
    full = max(
        (kv - rules.kv_mark) / (1.0 - rules.kv_mark),
        (waiting - rules.waiting_mark) / (rules.waiting_full - rules.waiting_mark),
    )
    return 1.0 - (1.0 - rules.floor) * min(1.0, max(0.0, full))


class _Figures:
    __slots__ = ("in_flight", "joined_s", "kv", "level", "low_s", "taken_s", "tokens", "waiting")

    def __init__(self) -> None:
        self.kv: float | None = None
        self.waiting = 0.0
        self.taken_s = _NEVER_S
        self.tokens = 0.0  # of ours that were in flight then, and requests
        self.in_flight = 0
        self.level = 1.0  # f with its hysteresis
        self.low_s = _NEVER_S  # when it last fell
        self.joined_s = _NEVER_S


class Rooms:
    """Keeps `loads.room` and `loads.tight`."""

    def __init__(self, loads: Loads, rules: RoomRules) -> None:
        self.rules = rules
        self._loads = loads
        self._figures = [_Figures() for _ in loads.in_flight]
        self._low: set[int] = set()  # whose room is below 1, or will be looked at anyway
        self._known: set[int] = set()

    def grow(self, count: int) -> None:
        """There are `count` slots now."""
        self._figures += [_Figures() for _ in range(count - len(self._figures))]

    def forget(self, slot: int) -> None:
        """Nothing is known of it, and nothing speaks against it."""
        self._figures[slot] = _Figures()
        self._known.discard(slot)
        self._low.discard(slot)
        self._loads.room[slot] = 1.0
        self._loads.tight = bool(self._low)

    def join(self, slot: int, now_s: float) -> None:
        """It comes, or comes back, with a cold cache."""
        self._figures[slot].joined_s = now_s
        self._update(slot, now_s)

    def record(self, slot: int, sample: Sample, now_s: float) -> None:
        """What the engine says of itself."""
        if sample.kv_utilization is None and sample.waiting is None:
            return
        figures, loads = self._figures[slot], self._loads
        figures.kv = sample.kv_utilization or 0.0
        figures.waiting = (sample.waiting or 0) / max(1, sample.ranks or 1)
        figures.taken_s = now_s
        figures.tokens, figures.in_flight = loads.in_flight_tokens[slot], loads.in_flight[slot]
        self._known.add(slot)
        self._update(slot, now_s)

    def tick(self, now_s: float) -> None:
        """Time has passed and requests went their way."""
        low, loads, all_figures = self._low, self._loads, self._figures
        for slot in self._known | low:
            figures = all_figures[slot]
            # One with all its room, and no more of ours than at its sample, has nothing to fall for.
            if (
                slot in low
                or loads.in_flight_tokens[slot] > figures.tokens
                or loads.in_flight[slot] > figures.in_flight
            ):
                self._update(slot, now_s)

    def warming(self, slot: int, now_s: float) -> float:
        """How far a slow start is, 0 to 1."""
        slow_s = self.rules.slow_start_s
        since_s = now_s - self._figures[slot].joined_s
        return 1.0 if since_s >= slow_s else max(0.0, since_s / slow_s)

    def _update(self, slot: int, now_s: float) -> None:
        figures, rules, loads = self._figures[slot], self.rules, self._loads
        least, most = self._bounds(slot, figures, now_s)
        if figures.level > most:
            figures.level, figures.low_s = most, now_s
        elif figures.level < least and now_s >= figures.low_s + rules.cool_down_s:
            figures.level = least
        room = figures.level * (_COLD + (1.0 - _COLD) * self.warming(slot, now_s))
        loads.room[slot] = room
        if room < 1.0:
            self._low.add(slot)
        else:
            self._low.discard(slot)
        loads.tight = bool(self._low)

    def _bounds(self, slot: int, figures: _Figures, now_s: float) -> tuple[float, float]:
        """From where up to where f may be now: below it rises, above it falls."""
        rules, loads = self.rules, self._loads
        if figures.kv is None:
            return 1.0, 1.0
        age_s = now_s - figures.taken_s
        faded = min(1.0, max(0.0, age_s / rules.sample_limit_s - 1.0)) if rules.sample_limit_s else 0.0
        if faded >= 1.0:
            return 1.0, 1.0
        kv, waiting = figures.kv, figures.waiting
        kv += loads.kv_per_token[slot] * (loads.in_flight_tokens[slot] - figures.tokens)
        if waiting:
            # Who comes to a queue waits in it.
            waiting = max(0.0, waiting + loads.in_flight[slot] - figures.in_flight)
        most = room_of(kv, waiting, rules)
        least = room_of(kv + rules.hysteresis, waiting + rules.hysteresis * rules.waiting_full, rules)
        return least + (1.0 - least) * faded, most + (1.0 - most) * faded
