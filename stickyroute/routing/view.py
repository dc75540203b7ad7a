"""What a policy sees of a pool: its ring and the live state of its members.

Owns how members map to the fleet's slots, and the turn of each member. The arrays are the fleet's own:
policies read them and never write them. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter, mul
from typing import Any, TypeVar

from stickyroute.routing.loads import Loads
from stickyroute.routing.ring import Ring

__all__ = ["FleetView", "Groups", "picker"]

Groups = list[tuple[int, list[int]]]
"""(How many of a prompt's first blocks, the slots that hold so many or more), the most blocks first."""

_Value = TypeVar("_Value")


class FleetView:
    """One pool. Member i of `ring` is the backend in slot `slots[i]` and has `weights[i]`.

    `in_flight` (requests) and `available` (0 or 1) are indexed by slot. `placed` are the members with a
    weight; the others serve only when none of those can. `credits` belongs to `take_turn` alone; it lives
    here so that every set of candidates has a rotation of its own, and loses it together with its ring.
    `relative_weights` are over the mean of those that have one, and `even` says that they are all 1. `loads` are the
    fleet's; `bytes_per_token` of the text these backends are sent is learned by the fleet. `size` is the number of
    members, of the whole pool where this is a part of one.
    """

    __slots__ = (
        "_members",
        "_pick",
        "available",
        "bytes_per_token",
        "credits",
        "even",
        "in_flight",
        "loads",
        "placed",
        "relative_weights",
        "ring",
        "size",
        "slots",
        "total_weight",
        "unplaced",
        "weights",
    )

    def __init__(
        self,
        ring: Ring,
        slots: Sequence[int],
        weights: Sequence[int],
        loads: Loads,
        available: bytearray,
        bytes_per_token: float = 4.0,
    ) -> None:
        if not len(ring.members) == len(slots) == len(weights):
            raise ValueError("ring, slots and weights must tell of the same members")
        self.ring = ring
        self.slots = tuple(slots)
        self.size = len(self.slots)
        self.weights = tuple(weights)
        self.loads = loads
        self.in_flight = loads.in_flight
        self.bytes_per_token = bytes_per_token
        self.available = available
        self.placed = tuple(member for member, weight in enumerate(weights) if weight)
        self.unplaced = tuple(member for member, weight in enumerate(weights) if not weight)
        self.total_weight = sum(weights)
        mean = self.total_weight / len(self.placed) if self.placed else 1.0
        self.relative_weights = tuple(weight / mean if weight else 1.0 for weight in weights)
        self.even = len(set(weights)) < 2
        self._pick = None if self.slots == tuple(range(len(loads.in_flight))) else picker(self.slots)
        self.credits = [0.0] * len(self.slots)
        # Needed where members are not numbered as slots are, or not all slots are members.
        self._members = None if self._pick is None else {slot: i for i, slot in enumerate(self.slots)}

    def read(self, values: list[_Value]) -> list[_Value]:
        """What a list by slot says of the members, in one step of C; to look at only, for it may be that list."""
        return values if self._pick is None else list(self._pick(values))

    def groups(self, chain: Sequence[int]) -> Groups:
        """Who of the members holds how much of a prompt. Nothing for what nobody holds."""
        groups = self.loads.index.groups(chain)
        members = self._members
        if members is None:
            return groups
        mine: Groups = []
        more = 0
        for level, slots in groups:
            slots = [slot for slot in slots if slot in members]
            if len(slots) > more:
                more = len(slots)
                mine.append((level, slots))
        return mine

    def member(self, slot: int) -> int:
        """Which of the members is in a slot."""
        return slot if self._members is None else self._members[slot]

    def shares(self) -> Sequence[float]:
        """Of load, for each member: its weight, less where it has less room."""
        loads = self.loads
        if not loads.tight:
            return self.weights
        return [weight * room for weight, room in zip(self.weights, self.read(loads.room), strict=True)]

    def totals(self) -> tuple[float, float]:
        """What is in flight on the members that have a weight and are available, in tokens and one more for each
        request; and their shares, which are weight x room x capacity of the KV cache."""
        available, loads, slots = self.available, self.loads, self.slots
        weights = self.shares()
        tokens, capacity = loads.in_flight_tokens, loads.capacity_tokens
        if self.placed and not self.unplaced and 0 not in available:  # in steps of C, for hundreds
            requests = self.read(self.in_flight)
            total = sum(self.read(tokens)) + sum(requests)
            if self.even and weights is self.weights:
                return total, sum(self.read(capacity)) * weights[0]
            return total, sum(map(mul, self.read(capacity), weights))
        total = shares = 0.0
        for member in self.placed:
            slot = slots[member]
            if available[slot]:
                total += tokens[slot] + self.in_flight[slot]
                shares += capacity[slot] * weights[member]
        return total, shares

    def usable(self, tried: Collection[int]) -> Sequence[int]:
        """The members with a weight that are available and whose slot is not in `tried`."""
        available = self.available
        if not tried and 0 not in available:
            return self.placed
        slots = self.slots
        return [member for member in self.placed if available[slots[member]] and slots[member] not in tried]

    def least_loaded(self, members: Sequence[int]) -> Sequence[int]:
        """Those of `members` (all with a weight) that have the fewest requests in flight for their share."""
        slots, weights, in_flight = self.slots, self.weights, self.in_flight
        if self.loads.tight:
            # With one request more, so that room counts also where nothing is in flight.
            shares = self.shares()
            loads = {member: (in_flight[slots[member]] + 1) / shares[member] for member in members}
            fewest = min(loads.values(), default=0.0)
            return [member for member, load in loads.items() if load <= fewest]
        least = -1.0
        found: list[int] = []
        for member in members:
            load = in_flight[slots[member]] / weights[member]
            if load < least or not found:
                least = load
                found = [member]
            elif load == least:
                found.append(member)
        return found

    def take_turn(self, members: Sequence[int]) -> int:
        """The next of `members` in rotation, each as often as its share says (nginx's smooth round robin)."""
        if len(members) == 1:
            return members[0]
        turns, weights = self.credits, self.shares()
        paid = 0.0
        best = members[0]
        most = None
        for member in members:
            weight = weights[member]
            paid += weight
            turns[member] += weight
            if most is None or turns[member] > most:
                most = turns[member]
                best = member
        turns[best] -= paid
        return best

    def last_resort(self, tried: Collection[int]) -> int | None:
        """The least loaded available member without a weight, for when no other can serve."""
        slots, in_flight = self.slots, self.in_flight
        left = [m for m in self.unplaced if self.available[slots[m]] and slots[m] not in tried]
        return min(left, key=lambda member: in_flight[slots[member]]) if left else None


def picker(slots: tuple[int, ...]) -> Callable[[Any], Iterable[Any]]:
    """What takes the values at these places out of a list."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: [values[slot] for slot in slots]
