"""The policies by name. Each maps keys, view and tried backends to a decision; none reads the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickyroute.routing.policies.base import Policy, Rand
from stickyroute.routing.policies.bounded_ring import BoundedRing
from stickyroute.routing.policies.least_requests import LeastRequests
from stickyroute.routing.policies.least_tokens import LeastTokens
from stickyroute.routing.policies.power_of_two import PowerOfTwo
from stickyroute.routing.policies.random import Random
from stickyroute.routing.policies.ring import RingOnly
from stickyroute.routing.policies.round_robin import RoundRobin
from stickyroute.routing.policies.sticky import Sticky

if TYPE_CHECKING:
    from stickyroute.settings import Settings

__all__ = ["ALIASES", "POLICIES", "Policy", "Rand", "build_policy", "make_policy"]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        *(Sticky, BoundedRing, RingOnly),
        *(LeastTokens, LeastRequests, PowerOfTwo, RoundRobin, Random),
    )
}

ALIASES = {"least_loaded": LeastRequests.name}
"""Names that policies had before."""


def make_policy(name: str, load_factor: float = 1.25, floor: int = 2) -> Policy:
    """The policy called `name`; the numbers are for bounded_ring. Raises ValueError for an unknown name."""
    name = ALIASES.get(name, name)
    if name == BoundedRing.name:
        return BoundedRing(load_factor, floor)
    if name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name]()


def build_policy(settings: Settings) -> Policy:
    """The policy that the settings ask for."""
    if settings.policy == Sticky.name:
        sticky = settings.sticky
        return Sticky(sticky.tolerance, sticky.bound, sticky.floor_tokens)
    return make_policy(settings.policy, settings.bounded_ring.load_factor, settings.bounded_ring.floor)
