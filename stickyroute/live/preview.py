"""What a change will do, told before it is done: keys that move, settings that differ, what waits for a restart.

Owns the words and the form. Works on a plan of the fleet; changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stickyroute.fleet.plan import Plan
from stickyroute.live.changes import Change, changes
from stickyroute.live.members import Offline, offline_members
from stickyroute.routing.ring import Points, Ring
from stickyroute.settings import Settings

__all__ = ["Preview", "changes_members", "offline"]

NAMED = 5
"""In a line of text; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A change of settings or of what discovery finds. `changes` is empty for the latter.

    `overruled` are settings that a text gives and a flag or the environment gives otherwise.
    """

    plan: Plan
    changes: tuple[Change, ...] = ()
    overruled: tuple[str, ...] = ()

    @property
    def needs_restart(self) -> tuple[str, ...]:
        """The settings that keep their old value until then."""
        return tuple(change.path for change in self.changes if not change.live)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is different at all."""
        return not (self.changes or changes_members(self.plan))

    def words(self) -> str:
        """The change in one line."""
        plan = self.plan
        told = ["nothing changes" if self.is_empty else _moved(plan)]
        told += [f"{word}: {_some(names)}" for word, names in _members(plan) if names]
        others = [
            str(change)
            for change in self.changes
            if change.live and change.path.partition(".")[0] not in ("backends", "discovery")
        ]
        if others:
            told.append(_some(others))
        if self.needs_restart:
            told.append(f"needs a restart: {_some(self.needs_restart)}")
        if self.overruled:
            told.append(f"overruled by flags or the environment: {_some(self.overruled)}")
        return "; ".join(told)

    def as_json(self) -> dict[str, Any]:
        """The change as JSON values. Shares are parts of all keys, 0 to 1."""
        plan = self.plan
        moves = changes_members(plan)
        return {
            "summary": self.words(),
            "moved_share": round(plan.moved_share, 4) if moves else 0.0,
            "minimum_share": round(plan.minimum_share, 4) if moves else 0.0,
            "gains": {name: round(share, 4) for name, share in plan.gains.items()} if moves else {},
            "losses": {name: round(share, 4) for name, share in plan.losses.items()} if moves else {},
            "added": list(plan.added),
            "removed": list(plan.removed),
            "changed": list(plan.changed),
            "changes": [
                {"path": c.path, "before": c.before, "after": c.after, "live": c.live} for c in self.changes
            ],
            "needs_restart": list(self.needs_restart),
            "overruled": list(self.overruled),
        }


def changes_members(plan: Plan) -> bool:
    """Whether anybody comes, goes or is different. If not, no key moves, and the ring need not be made to see that."""
    return bool(plan.added or plan.removed or plan.changed)


def offline(old: Settings, new: Settings) -> str:
    """The change from one configuration to another as a table for a terminal, as far as files tell, also those of
    discovery."""
    was, will_be = offline_members(old), offline_members(new)
    before, after = was.specs, will_be.specs
    ring = Ring.build([(spec.name, spec.weight) for spec in before], old.ring.vnodes)
    preview = Preview(Plan(after, before, ring, Points(new.ring.vnodes)), changes(old, new))
    return "\n".join([*_keys(preview.plan, ring), *_settings(preview), *_notes(was, will_be)])


def _keys(plan: Plan, ring: Ring) -> list[str]:
    had = dict(zip(ring.members, ring.shares(), strict=True))
    has = dict(zip(plan.ring.members, plan.ring.shares(), strict=True))
    names = list(dict.fromkeys([*had, *has]))
    wide = max([len("backend"), *map(len, names)])
    lines = [f"{'backend':<{wide}}  {'before':>8}  {'after':>8}  {'gains':>8}  {'loses':>8}"]
    for name in names:
        figures = (had.get(name), has.get(name), plan.gains.get(name), plan.losses.get(name))
        told = "  ".join(f"{'-' if share is None else _percent(share):>8}" for share in figures)
        lines.append(f"{name:<{wide}}  {told}{_word(plan, name)}")
    least = (
        f"; {_percent(plan.minimum_share)} is the least that these shares allow" if plan.moved_share else ""
    )
    return [*lines, "", _moved(plan) + least]


def _settings(preview: Preview) -> list[str]:
    lines = []
    for title, live in (("at once", True), ("at the next restart", False)):
        told = [str(change) for change in preview.changes if change.live is live]
        if told:
            lines += ["", f"{title}:", *(f"  {change}" for change in told)]
    return lines


def _notes(*both: Offline) -> list[str]:
    ask = "a running proxy tells with PUT /config?dry_run=1"
    notes = dict.fromkeys(note for one in both for note in one.notes(ask))
    return ["", *(f"note: {note}" for note in notes)] if notes else []


def _word(plan: Plan, name: str) -> str:
    for word, names in _members(plan):
        if name in names:
            return f"  {word}"
    return ""


def _members(plan: Plan) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("added", plan.added), ("removed", plan.removed), ("changed", plan.changed))


def _moved(plan: Plan) -> str:
    if not changes_members(plan) or plan.moved_share == 0:
        return "no key moves"
    gains = sorted(plan.gains.items(), key=lambda item: -item[1])
    names = [f"{name} gains {_percent(share)}" for name, share in gains]
    return f"{_percent(plan.moved_share)} of keys move, {_some(names)}"


def _some(names: tuple[str, ...] | list[str]) -> str:
    told = ", ".join(names[:NAMED])
    return told if len(names) <= NAMED else f"{told} and {len(names) - NAMED} more"


def _percent(share: float) -> str:
    percent = share * 100
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"
