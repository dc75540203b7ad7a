"""Who of a group is used, given how each stands: the last word on availability, and panic.

Owns the rule that never all are out. Pure: records in, sets of slots out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from stickyroute.fleet.outcome import Health, Outcome, Record
from stickyroute.fleet.states import Operator

__all__ = ["Choice", "choose"]


class Choice(NamedTuple):
    """Slots. `well`: simply used. `panic`: used though they are out, since too few are left. `trial`: let in for the
    one request they may have now. `pinnable`: may be sent what only they can answer."""

    well: set[int]
    panic: set[int]
    trial: set[int]
    pinnable: set[int]


def choose(
    records: Mapping[int, Record], groups: Iterable[Collection[int]], panic: float, now_s: float
) -> Choice:
    """`records` are those of the members by slot; `groups` the sets of slots that serve something together; `panic`
    is the part of a group, 0 to 1, below which those that are out are used."""
    well: set[int] = set()
    soft: set[int] = set()  # out, but would answer
    ill: set[int] = set()  # out, and probes fail
    trial: set[int] = set()
    pinnable: set[int] = set()
    for slot, record in records.items():
        if _is_dead(record):
            continue
        if record.operator is not Operator.DISABLED:
            pinnable.add(slot)
        if record.operator is not Operator.ACTIVE:
            continue
        paused = record.busy_until_s > now_s
        if record.probe is Health.UNHEALTHY:
            ill.add(slot)
        elif record.ejected or paused:
            soft.add(slot)
            if record.trying and record.trial_since_s is None and not paused:
                trial.add(slot)
        else:
            well.add(slot)
    used: set[int] = set()
    if soft or ill:
        for group in groups:
            active = [slot for slot in group if slot in records and records[slot].operator is Operator.ACTIVE]
            up = sum(1 for slot in active if slot in well)
            if up and up >= panic * len(active):
                continue
            chosen = [slot for slot in active if slot in soft]
            if not up and not chosen:
                chosen = [slot for slot in active if slot in ill]
            used.update(chosen)
    return Choice(well, used, trial, pinnable)


def _is_dead(record: Record) -> bool:
    """Whether it takes no request at all, however many others are out."""
    return record.refused or (record.ejected and record.cause is Outcome.ENGINE_DEAD and not record.trying)
