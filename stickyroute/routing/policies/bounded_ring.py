"""Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam): home, unless it is too full."""

from __future__ import annotations

from collections.abc import Collection

from stickyroute.defaults import BOUNDED_RING_WARM_S
from stickyroute.routing.cost import prompt_tokens
from stickyroute.routing.decision import Decision
from stickyroute.routing.keys import Needs, RequestKeys
from stickyroute.routing.policies.base import Policy, Rand, by_load, last_resort
from stickyroute.routing.view import FleetView

__all__ = ["BoundedRing"]


class BoundedRing(Policy):
    """Home, or the first on the ring after it that is below its bound. Without a key, the least loaded.

    A backend is below its bound while its load is less than `load_factor` times its share of all load, this
    request counted:

        load < load_factor * (all load + this prompt's) * share

    Load is the prompt tokens in flight, and one for each request, so that requests whose prompts are not known
    count as well. Shares go by weight times capacity of the KV cache, over the available backends. `floor`
    requests are always allowed. Where all are at their bounds (because the others were tried) the least loaded
    takes it.

    A backend that is short of room (`Loads.room`) has less of a share, and fewer requests are always allowed.
    Who was sent there within the last `warm_s` seconds loses only half as much: new and idle conversations move
    first, and since room comes back late, none comes home the moment it left.
    """

    __slots__ = ("_factor", "_floor", "_warm_s")
    name = "bounded_ring"
    needs = Needs.KEY | Needs.SIZE

    def __init__(
        self, load_factor: float = 1.25, floor: int = 2, warm_s: float = BOUNDED_RING_WARM_S
    ) -> None:
        if not load_factor >= 1 or floor < 1:
            raise ValueError("load_factor and floor must be at least 1")
        self._factor = load_factor
        self._floor = floor
        self._warm_s = warm_s

    def choose(
        self, keys: RequestKeys, view: FleetView, tried: Collection[int], rand: Rand
    ) -> Decision | None:
        key = keys.affinity
        if key is None:
            return by_load(view, tried, "no_key")
        home = view.ring.home(key)
        if home < 0:
            return last_resort(view, tried, "failover")
        slot = view.slots[home]
        usable = view.available[slot] and slot not in tried
        if view.loads.tight:
            return self._choose_tight(key, home, keys, view, tried)
        if usable and view.in_flight[slot] < self._floor:
            return Decision(slot, "home")
        load, shares = view.totals()
        allowed = self._factor * (load + prompt_tokens(keys, view) + 1.0)  # to be shared out
        if usable and _load(view, slot) * shares < allowed * _share(view, home):
            return Decision(slot, "home")
        return self._after_home(key, view, tried, allowed, shares, "spill" if usable else "failover")

    def _choose_tight(
        self, key: int, home: int, keys: RequestKeys, view: FleetView, tried: Collection[int]
    ) -> Decision | None:
        """The same where somebody is short of room."""
        slots, available, loads = view.slots, view.available, view.loads
        load, shares = view.totals()
        allowed = self._factor * (load + prompt_tokens(keys, view) + 1.0)
        reason = "home"
        least, chosen = -1.0, -1
        for member in view.ring.walk(key):
            slot = slots[member]
            if not available[slot] or slot in tried:
                reason = "failover" if member == home else reason
                continue
            room = loads.room[slot]
            if room < 1.0 and loads.recent.is_warm(key, slot, self._warm_s):
                room = (1.0 + room) / 2
            own, share = _load(view, slot), room * _share(view, member)
            if view.in_flight[slot] < self._floor * room or own * shares < allowed * share:
                return Decision(slot, reason)
            if member == home:
                reason = "spill"
            if chosen < 0 or own / share < least:
                least, chosen = own / share, slot
        if chosen < 0:
            return last_resort(view, tried, "failover")
        return Decision(chosen, "home" if chosen == slots[home] else reason)

    def _after_home(
        self, key: int, view: FleetView, tried: Collection[int], allowed: float, shares: float, reason: str
    ) -> Decision | None:
        """The first in ring order below its bound, else the least loaded for its share."""
        slots, available, in_flight = view.slots, view.available, view.in_flight
        least = -1.0
        chosen = -1
        home = -1
        for member in view.ring.walk(key):
            slot = slots[member]
            if home < 0:
                home = slot
            if not available[slot] or slot in tried:
                continue
            load, share = _load(view, slot), _share(view, member)
            # Multiplied out, so that no division rounds.
            if in_flight[slot] < self._floor or load * shares < allowed * share:
                return Decision(slot, reason)
            if chosen < 0 or load / share < least:
                least = load / share
                chosen = slot
        if chosen < 0:
            return last_resort(view, tried, "failover")
        return Decision(chosen, "home" if chosen == home else reason)


def _load(view: FleetView, slot: int) -> float:
    return view.loads.in_flight_tokens[slot] + view.in_flight[slot]


def _share(view: FleetView, member: int) -> float:
    return view.loads.capacity_tokens[view.slots[member]] * view.weights[member]
