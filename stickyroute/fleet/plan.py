"""A change of members, thought through before it is made: who comes and goes, and which keys move.

Owns the comparison and the ring that will be. Changes nothing: `Fleet.apply` does. Everything that takes long
is done in `steps`, a few milliseconds each.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from stickyroute.fleet.spec import Backend, BackendSpec
from stickyroute.routing.moves import moves
from stickyroute.routing.ring import Points, Ring, finish

__all__ = ["Applied", "Plan"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What `Fleet.apply` did. `changed` kept their names, and so their slots; each backend as it is now."""

    added: tuple[Backend, ...]
    removed: tuple[Backend, ...]
    changed: tuple[Backend, ...]


class Plan:
    """`specs` in the place of what is there. Made by `Fleet.plan`; whoever does not take the steps has them
    taken when a result is asked for.

    `added`, `removed` and `changed` are names. Shares are parts of all keys, 0 to 1.
    """

    def __init__(
        self, specs: Sequence[BackendSpec], present: Sequence[BackendSpec], before: Ring, points: Points
    ) -> None:
        known = {spec.name: spec for spec in present}
        names = {spec.name for spec in specs}
        if len(names) != len(specs):
            raise ValueError("backends must have different names")
        self.specs = tuple(specs)
        self.added = tuple(spec.name for spec in specs if spec.name not in known)
        self.removed = tuple(spec.name for spec in present if spec.name not in names)
        self.changed = tuple(spec.name for spec in specs if known.get(spec.name, spec) != spec)
        self._before = before
        self._points = points
        self._ring: Ring | None = None
        self._moved = 0.0
        self._minimum = 0.0
        self._gains: dict[str, float] = {}
        self._losses: dict[str, float] = {}
        self._steps = self._take_steps()
        self._done = False

    def steps(self) -> Generator[None, None, None]:
        """All of the work, to be spread over the turns of a loop."""
        while not self._done:
            try:
                next(self._steps)
            except StopIteration:
                self._done = True
            yield

    @property
    def ring(self) -> Ring:
        """The ring of all backends; its members are in the order of `specs`."""
        for _ in self.steps():
            if self._ring is not None:
                break
        assert self._ring is not None
        return self._ring

    @property
    def moved_share(self) -> float:
        """The keys that get another home."""
        finish(self.steps())
        return self._moved

    @property
    def minimum_share(self) -> float:
        """The fewest that have to, given what each backend owned and will own."""
        finish(self.steps())
        return self._minimum

    @property
    def gains(self) -> dict[str, float]:
        """The keys that each backend gets from others, or that nobody had."""
        finish(self.steps())
        return dict(self._gains)

    @property
    def losses(self) -> dict[str, float]:
        """The keys that each backend loses."""
        finish(self.steps())
        return dict(self._losses)

    def _take_steps(self) -> Generator[None, None, None]:
        before = self._before
        ring = self._ring = yield from self._points.change(
            before, [(spec.name, spec.weight) for spec in self.specs]
        )
        if ring.fingerprint == before.fingerprint:
            return
        yield from before.share_steps()
        yield from ring.share_steps()
        gains, losses = self._gains, self._losses

        def moved(loser: str | None, winner: str | None, share: float) -> None:
            if loser is not None:
                losses[loser] = losses.get(loser, 0.0) + share
                self._moved += share
            if winner is not None:
                gains[winner] = gains.get(winner, 0.0) + share

        yield from moves(before, ring, moved)
        owned = dict(zip(before.members, before.shares(), strict=True))
        owns = dict(zip(ring.members, ring.shares(), strict=True))
        self._minimum = sum(max(0.0, share - owns.get(name, 0.0)) for name, share in owned.items())
