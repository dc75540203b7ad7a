"""What a policy looks at, backend by backend: the figures behind one decision.

Owns which figures tell of which policy, and the predicted time to first token. It reads what the policies read and
makes no choice: that is `Router.peek`, by the policy's own function. Seconds, tokens and parts (0 to 1); pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stickyroute.routing.cost import prompt_tokens
from stickyroute.routing.keys import RequestKeys
from stickyroute.routing.policies import Policy
from stickyroute.routing.policies.sticky import Sticky
from stickyroute.routing.view import FleetView

__all__ = ["LOOKS_AT", "Figures", "figures"]

LOOKS_AT: dict[str, tuple[str, ...]] = {
    "sticky": ("place", "backlog_tokens", "held_tokens", "in_flight"),
    "bounded_ring": ("place", "in_flight_tokens", "in_flight", "weight"),
    "ring": ("place",),
    "least_tokens": ("backlog_tokens", "in_flight", "weight"),
    "least_requests": ("in_flight", "weight"),
    "power_of_two": ("in_flight", "weight"),
    "round_robin": ("weight",),
    "random": ("weight",),
}
"""The figures that a policy goes by; sticky has its terms besides."""


class Figures(NamedTuple):
    """One backend, as seen for one request.

    `place` is its place in the ring's order from the key on, 1 for home, None without a key or without points.
    `held_blocks` and `held_tokens` are what it is believed to hold of the prompt, `overlap` the same as a part of
    it; `predicted_ttft_s` is what the first token would take there: what waits, what is missing, and a step.
    `terms` are the policy's own, in seconds, empty for one that has none; `cost_s` is their sum.
    """

    slot: int
    weight: int
    place: int | None
    in_flight: int
    in_flight_tokens: float
    backlog_tokens: float
    held_blocks: int
    held_tokens: float
    overlap: float
    predicted_ttft_s: float
    terms: dict[str, float]
    cost_s: float | None


def figures(policy: Policy, keys: RequestKeys, view: FleetView) -> list[Figures]:
    """The figures of every member of the pool, in the pool's order."""
    loads = view.loads
    tokens = prompt_tokens(keys, view)
    held = _held_tokens(keys, view, tokens)
    places: dict[int, int] = {}
    if keys.affinity is not None:
        places = {member: place for place, member in enumerate(view.ring.walk(keys.affinity), 1)}
    terms = policy.explain(keys, view) if isinstance(policy, Sticky) else {}
    rows = []
    for member, slot in enumerate(view.slots):
        blocks, known = held[member]
        own: dict[str, Any] = terms[slot]._asdict() if slot in terms else {}
        wait_s = (loads.backlog_tokens[slot] + max(0.0, tokens - known)) * loads.token_s[slot]
        rows.append(
            Figures(
                slot,
                view.weights[member],
                places.get(member),
                loads.in_flight[slot],
                loads.in_flight_tokens[slot],
                loads.backlog_tokens[slot],
                blocks,
                known,
                known / tokens if tokens else 0.0,
                loads.step_s + wait_s,
                own,
                terms[slot].cost_s if slot in terms else None,
            )
        )
    return rows


def _held_tokens(keys: RequestKeys, view: FleetView, tokens: float) -> list[tuple[int, float]]:
    """For each member the blocks it is believed to hold, and in tokens, trust and the conversation's tail counted:
    what a lease there would go by."""
    chain, loads = keys.chain, view.loads
    if not chain or not keys.prompt_bytes:
        return [(0, 0.0)] * len(view.slots)
    index = loads.index
    by_slot = index.held(chain)
    found = []
    for slot in view.slots:
        blocks = by_slot[slot]
        known = 0.0
        if blocks:
            holder, tail = index.tail(chain[blocks - 1], keys.affinity or 0)
            known = tokens * keys.ends[blocks - 1] / keys.prompt_bytes + (tail if holder == slot else 0.0)
            known = loads.trust[slot] * min(tokens, known)
        found.append((blocks, known))
    return found
